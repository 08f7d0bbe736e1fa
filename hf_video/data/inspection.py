"""Reads every video of a data set, finds those that are broken, and writes a table of those that are not."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from accelerate.utils import gather_object
from datasets import Dataset, concatenate_datasets
from torch import distributed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from hf_video.io import check_regular_file
from hf_video.reading import VideoReadError, probe_video
from hf_video.reading.frame_streaming import stream_frames
from hf_video.reading.sources import is_url, kind_of

from .annotation_files import KNOWN_COLUMNS
from .columns import VideoRows, arrow_column, is_multi_label, label_names
from .stored_videos import BYTES, open_video
from .tables import DURATION, FRAMES

# Start and end in seconds; None stands for the beginning or the end of the video.
Segment = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class InspectedVideo:
    """The result of reading a video.

    Attributes:
        path: the file, the folder of frames, or the name of a video that is stored inside a data set.
        error: why the video cannot be read, None if it can be.
        num_frames: number of frames, 0 if unknown.
        duration: duration in seconds, None if unknown.
        height, width: size of a frame in pixels, 0 if unknown.
    """

    path: str
    error: str | None = None
    num_frames: int = 0
    duration: float | None = None
    height: int = 0
    width: int = 0


def inspect_videos(
    dataset: Dataset,
    *,
    decode: bool = True,
    num_workers: int = 1,
    progress: bool = True,
    chosen: Sequence[int] | None = None,
) -> list[InspectedVideo]:
    """Reads every video of a data set once.

    Args:
        dataset: rows of `load_video_dataset`. A segment without a frame is an error of its video.
        decode: whether to decode all frames; otherwise only the structure of a file and one frame are read.
        num_workers: number of processes that read videos; this one reads them if it is 0 or 1.
        progress: whether to show a progress bar.
        chosen: the numbers of the videos to read, in the order of their first rows; by default all.

    Returns:
        One entry for each video, in the order of their first rows. A broken video raises no error.
    """
    videos = _Videos(dataset, decode)
    numbers = range(len(videos)) if chosen is None else chosen
    loader = DataLoader(
        videos,
        batch_size=None,
        sampler=numbers,
        num_workers=num_workers if num_workers > 1 else 0,
        generator=torch.Generator(),  # a loader draws a seed, which must not be missing in the draws of a training
    )
    return list(tqdm(loader, total=len(numbers), desc="Checking videos", disable=None if progress else True))


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
            inspect_videos(dataset, decode=decode, num_workers=num_workers, progress=rank == 0, chosen=share),
            strict=True,
        )
        if video.error is not None
    ]
    everywhere = gather_object(found) if together else found
    return {path: error for _, path, error in sorted(everywhere)}


class _Videos(torch.utils.data.Dataset):
    """The results for the videos of a data set, in the order of their first rows."""

    def __init__(self, dataset: Dataset, decode: bool):
        self.listed = VideoRows(dataset)
        has_times = {"start", "end"} <= {*dataset.column_names} and any(
            arrow_column(dataset, name).null_count < len(dataset) for name in ("start", "end")
        )
        self.times = dataset.select_columns(["start", "end"]) if has_times else None
        self.files = dataset.select_columns([name for name in ("video", BYTES) if name in dataset.column_names])
        self.decode = decode

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, video: int) -> InspectedVideo:
        rows = self.listed.rows(video)
        segments: list[Segment] = []
        if self.times is not None:
            found = self.times[rows]
            segments = [*zip(found["start"], found["end"], strict=True)]
        return inspect_video(self.files[rows[0]], segments, self.decode)


def inspect_video(video: Mapping[str, object], segments: list[Segment], decode: bool) -> InspectedVideo:
    """What a file holds. What keeps it from being read is in the result."""
    path = str(video["video"])
    try:
        opened = open_video(video)
        kind = kind_of(opened)
        if kind == "path":
            check_regular_file(path)
        metadata = probe_video(opened, segments)
        if decode:
            _decode(opened, path, (metadata.height, metadata.width), metadata.total_num_frames, kind == "folder")
    except Exception as error:  # Damaged files make decoders raise errors of any kind.
        return InspectedVideo(path, tell_reason(path, error))
    return InspectedVideo(
        path,
        num_frames=metadata.total_num_frames,
        duration=metadata.duration,
        height=metadata.height or 0,
        width=metadata.width or 0,
    )


def _decode(opened: object, path: str, size: tuple[int | None, ...], num_frames: int, is_folder: bool) -> None:
    """Decodes all frames in one pass. They must be as many, and as large, as readers expect."""
    count = 0
    for frame in stream_frames(opened, source_fps=1 if is_folder else None):
        count += 1
        if frame.image.shape[:2] != size:
            raise VideoReadError(
                f"{path}: frame {frame.number} is {frame.image.shape[:2]} (height, width), the first is {size}."
            )
    if count != num_frames:
        raise VideoReadError(f"{path} is damaged: it has packets for {num_frames} frames, but gives {count}.")


def tell_reason(video: str, error: Exception) -> str:
    """A sentence that says why a video cannot be read, and names it."""
    # Names of frames that are not UTF-8 have characters that no file of text can hold.
    reason = (str(error) or type(error).__name__).encode(errors="backslashreplace").decode()
    return reason if video in reason else f"{video} cannot be read: {reason}"


def write_manifest(
    path: Path, splits: Mapping[str, Dataset], inspected: Sequence[InspectedVideo], folder: Path
) -> None:
    """Writes the rows whose video can be read as a Parquet file, with `frames` and `duration` of the videos.

    Args:
        path: The file to write.
        splits: Data sets of `load_video_dataset`, with the further columns to keep, of files.
        inspected: The results of `inspect_videos` for the rows of all splits.
        folder: Where the file will be: paths count from there if they are below.

    Raises:
        ValueError: no video can be read.
    """
    rows = concatenate_datasets([*splits.values()])
    path_from, of_row = _paths_from(folder), VideoRows(rows).of_row
    label = "labels" if is_multi_label(rows) else "label"
    ids, names = arrow_column(rows, label), pa.array(label_names(rows), pa.string())
    is_multi = pa.types.is_list(ids.type)
    table = pa.table(
        {
            "path": pa.array([path_from(video.path) for video in inspected], pa.string()).take(of_row),
            "split": pa.array([name for name, split in splits.items() for _ in range(len(split))], pa.string()),
            label: pa.ListArray.from_arrays(ids.offsets, names.take(ids.values)) if is_multi else names.take(ids),
            "start": arrow_column(rows, "start"),
            "end": arrow_column(rows, "end"),
            DURATION: pa.array([video.duration for video in inspected], pa.float64()).take(of_row),
            FRAMES: pa.array([video.num_frames for video in inspected], pa.int64()).take(of_row),
            **{name: arrow_column(rows, name) for name in rows.column_names if name not in KNOWN_COLUMNS},
        }
    )
    table = table.filter(pa.array([video.error is None for video in inspected]).take(of_row))
    if not len(table):
        raise ValueError(f"No video can be read. One of them: {inspected[0].error}")
    pq.write_table(table, path)


def _paths_from(folder: Path) -> Callable[[str], str]:
    """Gives the path of a video from a folder if it lies below it, through links or not; else the whole path."""
    resolve = cache(os.path.realpath)
    prefix = f"{folder}{os.sep}"

    def path_of(video: str) -> str:
        if is_url(video) or video.startswith(prefix):
            return video.removeprefix(prefix)
        place, name = os.path.split(video)
        whole = Path(resolve(place), name)
        return str(whole.relative_to(resolve(folder))) if whole.is_relative_to(resolve(folder)) else video

    return path_of
