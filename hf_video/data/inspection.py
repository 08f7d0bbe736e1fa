"""Reads the videos of a data set to find those that are broken."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import distributed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from hf_video.io import check_regular_file
from hf_video.reading import probe_video, read_video
from hf_video.reading.sources import is_url

from .columns import VideoRows, arrow_column
from .manifest import content_digest
from .stored_videos import BYTES, is_packed, open_video
from .stored_videos import COLUMNS as PACKED_COLUMNS

# Frames decoded at a time: a video need not fit into memory.
_CHUNK = 64

# Start and end in seconds; None stands for the beginning or the end of the video.
Segment = tuple[float | None, float | None]


@dataclass(frozen=True)
class InspectedVideo:
    """The result of reading a video.

    Attributes:
        path: the file, the folder of frames, or the name of a video that is stored inside a data set.
        error: why the video cannot be read, None if it can be.
        num_frames: number of frames, 0 if unknown.
        duration: duration in seconds, None if unknown.
        height, width: size of a frame in pixels, 0 if unknown.
        size: bytes of the file, None if it is no file or was not asked for.
        content: its `content_digest`, None if there is none or it was not asked for.
    """

    path: str
    error: str | None = None
    num_frames: int = 0
    duration: float | None = None
    height: int = 0
    width: int = 0
    size: int | None = None
    content: str | None = None


def inspect_videos(
    dataset: Dataset, *, decode: bool = True, num_workers: int = 1, progress: bool = True
) -> list[InspectedVideo]:
    """Reads every video of a data set once.

    Args:
        dataset: rows of `load_video_dataset`. A segment without a frame is an error of its video.
        decode: whether to decode all frames; otherwise only the structure of a file and one frame are read.
        num_workers: number of processes that read videos; this one reads them if it is 0 or 1.
        progress: whether to show a progress bar.

    Returns:
        One entry for each video, in the order of their first rows. A broken video raises no error.
    """
    return list(iterate_inspected(dataset, decode=decode, num_workers=num_workers, progress=progress))


def iterate_inspected(
    dataset: Dataset,
    *,
    decode: bool = True,
    digest: bool = False,
    num_workers: int = 1,
    progress: bool = True,
    chosen: Sequence[int] | None = None,
) -> Iterator[InspectedVideo]:
    """The results of `inspect_videos` one after the other. Few are kept at a time.

    Args:
        dataset, decode, num_workers, progress: see `inspect_videos`.
        digest: whether to find out size and `content_digest` of each file, too.
        chosen: the numbers of the videos to read, in the order of their first rows; by default all.
    """
    videos = _Videos(dataset, decode, digest)
    numbers = range(len(videos)) if chosen is None else chosen
    loader = DataLoader(
        videos,
        batch_size=None,
        sampler=numbers,
        num_workers=num_workers if num_workers > 1 else 0,
        generator=torch.Generator(),  # a loader draws a seed, which must not be missing in the draws of a training
    )
    yield from tqdm(loader, total=len(numbers), desc="Checking videos", disable=not progress)


def find_broken(dataset: Dataset, *, decode: bool, num_workers: int = 1, at_most: int | None = None) -> dict[str, str]:
    """The videos that cannot be read, with the reasons; of more than `at_most`, a random sample is read. If there are
    several processes, each of them must call this: each reads its share of the videos, and all get the whole answer.
    """
    together = distributed.is_available() and distributed.is_initialized()
    rank, num_processes = (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)
    num_videos = pc.count_distinct(arrow_column(dataset, "video")).as_py()
    if at_most is None or num_videos <= at_most:
        chosen = np.arange(num_videos)
    else:
        chosen = np.sort(np.random.default_rng(0).choice(num_videos, at_most, replace=False))
    share = chosen[rank::num_processes].tolist()
    found = [
        (number, video.path, video.error)
        for number, video in zip(
            share,
            iterate_inspected(dataset, decode=decode, num_workers=num_workers, progress=rank == 0, chosen=share),
            strict=True,
        )
        if video.error is not None
    ]
    everywhere = gather_object(found) if together else found
    return {path: error for _, path, error in sorted(everywhere)}


class _Videos(torch.utils.data.Dataset):
    """The results for the videos of a data set, in the order of their first rows."""

    def __init__(self, dataset: Dataset, decode: bool, digest: bool):
        self.listed = VideoRows(dataset)
        has_times = {"start", "end"} <= {*dataset.column_names} and any(
            arrow_column(dataset, name).null_count < len(dataset) for name in ("start", "end")
        )
        self.times = dataset.select_columns(["start", "end"]) if has_times else None
        needed = ("video", BYTES, *(PACKED_COLUMNS if is_packed(dataset) else ()))
        self.files = dataset.select_columns([name for name in needed if name in dataset.column_names])
        self.decode = decode
        self.digest = digest

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, video: int) -> InspectedVideo:
        rows = self.listed.rows(video)
        segments: list[Segment] = []
        if self.times is not None:
            found = self.times[rows]
            segments = [*zip(found["start"], found["end"], strict=True)]
        return _inspect(self.files[rows[0]], segments, self.decode, self.digest)


def _inspect(video: Mapping[str, Any], segments: list[Segment], decode: bool, digest: bool) -> InspectedVideo:
    path = video["video"]
    make = partial(InspectedVideo, path)
    try:
        opened = open_video(video)
        is_file = isinstance(opened, str) and not is_url(path) and not os.path.isdir(path)
        if is_file:
            check_regular_file(path)
        if digest:
            make = partial(make, size=os.path.getsize(path) if is_file else None, content=content_digest(path))
        metadata = probe_video(opened, segments)
        if decode:
            for first in range(0, metadata.total_num_frames, _CHUNK):
                read_video(
                    opened,
                    lambda metadata, first=first: np.arange(first, metadata.total_num_frames)[:_CHUNK],
                )
    except Exception as error:  # Damaged files make decoders raise errors of any kind.
        return make(error=tell_reason(path, error))
    return make(
        num_frames=metadata.total_num_frames,
        duration=metadata.duration,
        height=metadata.height or 0,
        width=metadata.width or 0,
    )


def tell_reason(video: str, error: Exception) -> str:
    """A sentence that says why a video cannot be read, and names it."""
    # Names of frames that are not UTF-8 have characters that no file of text can hold.
    reason = (str(error) or type(error).__name__).encode(errors="backslashreplace").decode()
    return reason if video in reason else f"{video} cannot be read: {reason}"
