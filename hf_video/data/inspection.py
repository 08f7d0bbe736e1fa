"""Reading the videos of a data set before they are needed."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from hf_video.processing import VideoReadError, probe_video, read_video

# Frames decoded at a time: a video need not fit into memory.
_CHUNK = 64


@dataclass(frozen=True)
class InspectedVideo:
    """What reading a video found.

    Attributes:
        path: its file, or its folder of frames.
        error: why it cannot be read, None if it can.
        num_frames: number of frames, 0 where unknown.
        duration: seconds, None where unknown.
        height, width: of a frame in pixels, 0 where unknown.
    """

    path: str
    error: str | None = None
    num_frames: int = 0
    duration: float | None = None
    height: int = 0
    width: int = 0


def inspect_videos(
    rows: Iterable[dict[str, Any]], *, decode: bool = True, num_workers: int = 1, progress: bool = True
) -> list[InspectedVideo]:
    """Reads every video of a data set once.

    Args:
        rows: as of `load_video_dataset`: `video` and, optionally, `start` and `end` in seconds. A segment that begins
            after the end of its video is an error of the video.
        decode: decode all frames; otherwise the structure of a file and one frame.
        num_workers: videos read at a time, in threads: the decoders run beside each other.
        progress: shows a progress bar.

    Returns:
        One entry a video, in the order in which they first occur. Nothing is raised for a broken video.
    """
    starts: dict[str, float] = {}
    for row in rows:
        starts[row["video"]] = max(starts.get(row["video"], 0.0), row.get("start") or 0.0)
    with ThreadPoolExecutor(max_workers=max(num_workers, 1)) as pool:
        found: Iterator[InspectedVideo] = pool.map(partial(_inspect, decode=decode), starts, starts.values())
        return list(tqdm(found, total=len(starts), desc="Checking videos", disable=not progress))


def _inspect(path: str, start: float, decode: bool) -> InspectedVideo:
    try:
        metadata = probe_video(path)
        if decode:
            for first in range(0, metadata.total_num_frames, _CHUNK):
                read_video(path, lambda metadata, first=first: np.arange(first, metadata.total_num_frames)[:_CHUNK])
    except VideoReadError as error:
        return InspectedVideo(path, error=str(error))
    problem = None
    if metadata.duration and start >= metadata.duration:
        problem = f"{path}: a segment starts at {start:g} s, the video ends at {metadata.duration:g} s"
    return InspectedVideo(
        path, problem, metadata.total_num_frames, metadata.duration, metadata.height or 0, metadata.width or 0
    )
