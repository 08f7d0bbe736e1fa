"""Reads sampled frames of a video by decoding it in order, where hf_video is not installed.

`hf_video.reading` is used in its place where it is: it also reads addresses, is faster, and refuses damaged files.
"""

import io
import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers.video_utils import VideoMetadata

try:
    import av
except ImportError:
    av = None  # type: ignore[assignment]

# Number of frames, duration in seconds, and a function that reads frames by their rising numbers.
_Opened = tuple[int, float | None, Callable[[list[int]], Iterator[np.ndarray]]]


def read_video(video: Any, sample_indices_fn: Callable[..., Any] | None = None) -> tuple[np.ndarray, VideoMetadata]:
    """
    Frames of a video file (path, bytes or open file), or of a folder of JPEG / PNG frames.
    `sample_indices_fn(metadata=...)` returns the indices of the frames to read, of any shape; without it all are read.
    Returns uint8 RGB (*indices.shape, height, width, 3), upright, and the metadata. Raises `ValueError` if the video
    cannot be read or lacks an index, and `ImportError` if neither PyAV nor torchcodec is installed.
    """
    source: Any = io.BytesIO(video) if isinstance(video, bytes) else video
    is_path = isinstance(source, (str, os.PathLike))
    if is_path and not os.path.exists(source):
        raise ValueError(f"{source} does not exist. To read addresses, install hf_video.")
    count, seconds, read = (_open_folder if is_path and os.path.isdir(source) else _open_file)(source)
    metadata = VideoMetadata(total_num_frames=count, fps=count / seconds if seconds else None, duration=seconds)
    indices = np.arange(count) if sample_indices_fn is None else np.asarray(sample_indices_fn(metadata=metadata))
    if not indices.size or indices.min() < 0 or indices.max() >= count:
        raise ValueError(f"{source!s:.200} has {count} frames, and {indices} are asked for.")
    wanted, inverse = np.unique(indices, return_inverse=True)
    frames = np.stack(list(read(wanted.tolist())))
    metadata.height, metadata.width, metadata.frames_indices = *frames.shape[1:3], indices.ravel().tolist()
    return frames[inverse.ravel()].reshape(*indices.shape, *frames.shape[1:]), metadata


def _open_folder(folder: Any) -> _Opened:
    frames = [path for path in Path(folder).iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png")]
    # Frame 2 comes before frame 10.
    paths = sorted(frames, key=lambda path: [part.rjust(20, "0") for part in re.split(r"(\d+)", path.name)])
    return len(paths), None, lambda wanted: (np.asarray(Image.open(paths[i]).convert("RGB")) for i in wanted)


def _open_file(source: Any) -> _Opened:
    if av is None:
        try:
            from torchcodec.decoders import VideoDecoder
        except (ImportError, OSError, RuntimeError) as error:
            raise ImportError("To read video files: pip install av") from error
        decoder = VideoDecoder(source, dimension_order="NHWC")
        seconds = decoder.metadata.end_stream_seconds - decoder.metadata.begin_stream_seconds
        return len(decoder), seconds, lambda wanted: iter(decoder.get_frames_at(wanted).data.numpy())
    # Not every file says how many frames it has. The last frame is shown for as long as the others.
    times = [frame.time or 0.0 for frame in _decode(source)]
    seconds = (times[-1] - times[0]) * len(times) / (len(times) - 1) if len(times) > 1 else None

    def read(wanted: list[int]) -> Iterator[np.ndarray]:
        for number, frame in enumerate(islice(_decode(source), wanted[-1] + 1)):
            if number in wanted:
                yield np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))

    return len(times), seconds, read


def _decode(source: Any) -> Iterator[Any]:
    try:
        getattr(source, "seek", lambda place: None)(0)
        with av.open(source) as container:
            yield from container.decode(video=0)
    except (av.FFmpegError, IndexError) as error:
        raise ValueError(f"{source!s:.200} cannot be read as a video: {error}") from error
