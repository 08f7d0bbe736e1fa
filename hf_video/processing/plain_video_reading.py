"""Reads sampled frames of a video by decoding it in order, where hf_video is not installed: `hf_video.reading` also
reads addresses, is faster, and refuses damaged files."""

import io
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from transformers.video_utils import VideoMetadata

try:
    import av
except ImportError:
    av = None  # type: ignore[assignment]


def read_video(video: Any, sample_indices_fn: Callable[..., Any] | None = None) -> tuple[np.ndarray, VideoMetadata]:
    """
    Frames of a video file (path, bytes or open file) or a folder of JPEG / PNG frames, at the indices of any shape
    that `sample_indices_fn(metadata=...)` returns, or all: uint8 RGB (*indices.shape, height, width, 3), upright.
    Raises `ValueError` if the video cannot be read or lacks an index, `ImportError` without PyAV and torchcodec.
    """
    source: Any = io.BytesIO(video) if isinstance(video, bytes) else video
    is_path = isinstance(source, (str, os.PathLike))
    if is_path and not os.path.exists(source):
        raise ValueError(f"{source} does not exist. To read addresses, install hf_video.")
    try:
        times, seconds, read = (_open_folder if is_path and os.path.isdir(source) else _open_file)(source)
    except (OSError, RuntimeError, ValueError, IndexError, getattr(av, "FFmpegError", OSError)) as error:
        raise ValueError(f"{source!s:.200} cannot be read as a video: {error}") from error
    metadata = VideoMetadata(len(times), len(times) / seconds if seconds else None, duration=seconds)
    metadata.times = np.array(times) - times[0] if seconds else None
    indices = np.arange(len(times)) if sample_indices_fn is None else np.asarray(sample_indices_fn(metadata=metadata))
    if not indices.size or indices.min() < 0 or indices.max() >= len(times):
        raise ValueError(f"{source!s:.200} has {len(times)} frames, and {indices} are asked for.")
    wanted, inverse = np.unique(indices, return_inverse=True)
    frames = np.stack([*read(wanted.tolist())])
    metadata.height, metadata.width, metadata.frames_indices = *frames.shape[1:3], indices.ravel().tolist()
    return frames[inverse.ravel()].reshape(*indices.shape, *frames.shape[1:]), metadata


def _open_folder(folder: Any) -> tuple[Any, float | None, Any]:
    frames = [path for path in Path(folder).glob("[!.]*") if path.suffix.lower() in (".jpg", ".jpeg", ".png")]
    paths = sorted(frames, key=lambda p: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", p.name)])
    upright = partial(map, lambda i: ImageOps.exif_transpose(Image.open(paths[i])).convert("RGB"))
    return paths, None, lambda wanted: map(np.asarray, upright(wanted))


def _open_file(source: Any) -> tuple[Any, float | None, Any]:
    if av is None:
        try:
            from torchcodec.decoders import VideoDecoder
        except (ImportError, OSError, RuntimeError) as error:
            raise ImportError("To read video files, install PyAV: pip install av") from error
        decoder = VideoDecoder(source, dimension_order="NHWC")
        seconds, read = decoder.metadata.duration_seconds, decoder.get_frames_at
        return np.linspace(0, seconds, len(decoder), False), seconds, lambda wanted: read(wanted).data.numpy()
    # Not every file says how many frames it has.
    times = sorted(frame.time or 0.0 for frame in _decode(source))
    mean = (times[-1] - times[0]) / max(len(times) - 1, 1)
    return times, mean * len(times) or None, partial(_pick, source)


def _pick(source: Any, wanted: list[int]) -> Iterator[np.ndarray]:
    for number, frame in enumerate(islice(_decode(source), wanted[-1] + 1)):
        if number in wanted:
            yield np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))


def _decode(source: Any) -> Iterator[Any]:
    getattr(source, "seek", lambda place: None)(0)
    with av.open(source, "r") as container:
        yield from container.decode(container.streams.best("video") or container.streams.video[0])
