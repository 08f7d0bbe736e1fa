"""Reads the videos of a data set to find those that are broken."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from hf_video.processing import probe_video, read_video
from hf_video.text_files import check_regular_file

from .video_column import BYTES, open_video

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
    """

    path: str
    error: str | None = None
    num_frames: int = 0
    duration: float | None = None
    height: int = 0
    width: int = 0


def inspect_videos(
    dataset: Dataset, *, decode: bool = True, num_workers: int = 1, progress: bool = True
) -> list[InspectedVideo]:
    """Reads every video of a data set once.

    Args:
        dataset: rows of `load_video_dataset`. A segment without a frame is an error of its video.
        decode: whether to decode all frames; otherwise only the structure of a file and one frame are read.
        num_workers: number of videos that are read at the same time, in threads.
        progress: whether to show a progress bar.

    Returns:
        One entry for each video, in the order of their first rows. A broken video raises no error.
    """
    rows: dict[str, int] = {}
    segments: dict[str, list[Segment]] = {}
    starts, ends = (
        dataset[name] if name in dataset.column_names else [None] * len(dataset) for name in ("start", "end")
    )
    for row, (video, start, end) in enumerate(zip(dataset["video"], starts, ends, strict=True)):
        rows.setdefault(video, row)
        segments.setdefault(video, []).append((start, end))
    inspect = partial(_inspect, dataset, decode=decode)
    with ThreadPoolExecutor(max_workers=max(num_workers, 1)) as pool:
        found: Iterator[InspectedVideo] = pool.map(inspect, rows.values(), segments.values())
        return list(tqdm(found, total=len(rows), desc="Checking videos", disable=not progress))


def _inspect(dataset: Dataset, row: int, segments: list[Segment], decode: bool) -> InspectedVideo:
    video = dataset[row]
    path = video["video"]
    try:
        if video.get(BYTES) is None and "://" not in path and not os.path.isdir(path):
            check_regular_file(path)
        metadata = probe_video(open_video(video), segments)
        if decode:
            for first in range(0, metadata.total_num_frames, _CHUNK):
                read_video(
                    open_video(video),
                    lambda metadata, first=first: np.arange(first, metadata.total_num_frames)[:_CHUNK],
                )
    except Exception as error:  # Damaged files make decoders raise errors of any kind.
        reason = str(error) or type(error).__name__
        return InspectedVideo(path, error=reason if path in reason else f"{path} cannot be read: {reason}")
    return InspectedVideo(
        path, None, metadata.total_num_frames, metadata.duration, metadata.height or 0, metadata.width or 0
    )
