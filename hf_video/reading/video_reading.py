"""Reading sampled frames of a video: from a file, a URL, bytes or a folder of frames.

The frames are exactly those that decoding the whole file gives. `video_decoding` explains how they are found, and what
happens to broken files.
"""

import io
import math
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Real
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image
from transformers.image_utils import load_image
from transformers.video_utils import VideoMetadata

from .pyav_streams import open_stream, tell_largest_frame
from .remote import open_address
from .sources import VideoReadError, describe, is_url, kind_of
from .video_decoding import VideoFileReader

# Or a `torchcodec.decoders.VideoDecoder`, whose package need not be there.
VideoSource = str | os.PathLike | bytes | BinaryIO | Any

FRAME_EXTENSIONS = (".jpg", ".jpeg", ".png")
# Seconds. The coarsest time bases in use, of Matroska and FLV, round times to milliseconds.
TIME_ROUNDING = 6e-4


def read_video(
    video: VideoSource,
    sample_indices_fn: Callable[..., Any] | None = None,
    *,
    start: float | None = None,
    end: float | None = None,
) -> tuple[np.ndarray, VideoMetadata]:
    """
    Read the sampled frames of a video.

    Args:
        video (`str`, `os.PathLike`, `bytes` or binary file object):
            Path of a video file, its URL, the bytes of a file, an open file, or path of a folder of JPEG / PNG frames,
            which are taken in natural order (frame 2 before frame 10). A URL is one of `http(s)`, or of another
            protocol that fsspec knows, such as `s3` or `hf`. Of an MP4 or MOV file behind it, only the bytes that the
            wanted frames need are fetched; every other file is read to its end. Or a `VideoDecoder` of torchcodec,
            which decodes the frames itself; it counts frames as evenly spaced.
        sample_indices_fn (`Callable`, *optional*):
            Called with `metadata=`, returns the indices of the frames to read: integers of any shape, in any order,
            also repeated. By default all frames are read.
        start (`float`, *optional*):
            Start of the segment to read, in seconds after the first frame. Indices and metadata count from there.
        end (`float`, *optional*):
            End of the segment to read, in seconds after the first frame; a frame at that time is left out.

    Returns:
        `tuple[np.ndarray, VideoMetadata]`: the frames, uint8 RGB of shape (*indices.shape, height, width, 3), upright;
        and metadata with the true number of frames, average frames per second, duration in seconds, size, backend
        and `frames_indices`, the flat list of the indices that were read. A folder has neither rate nor duration.

    Raises:
        `VideoReadError`: if the video cannot be read, a wanted frame is damaged, or the segment holds no frame.
        `ValueError`: for an index outside the video, a segment of a folder of frames, or a `start`
            or `end` that is not a number.
        `TypeError`: if `video` is none of the above.
    """
    timed = read_timed_video(video, sample_indices_fn, start=start, end=end)
    return timed.frames, timed.metadata


class TimedVideo(NamedTuple):
    """
    Frames that were read, and their times.

    Attributes:
        frames: (*indices.shape, height, width, 3) uint8 RGB, upright.
        metadata: see [`read_video`].
        seconds: (*indices.shape) float64, the time of each frame after the first frame of the video; NaN for a folder.
        end: seconds at which the segment, or the video, ends; NaN for a folder.
    """

    frames: np.ndarray
    metadata: VideoMetadata
    seconds: np.ndarray
    end: float


def read_timed_video(
    video: VideoSource,
    sample_indices_fn: Callable[..., Any] | None = None,
    *,
    start: float | None = None,
    end: float | None = None,
) -> TimedVideo:
    """
    Read the sampled frames of a video with their times. Takes and raises what [`read_video`] does.
    """
    with _open_reader(video) as reader:
        first, stop = _find_segment(reader, start, end)
        metadata = _make_metadata(reader, first, stop)
        indices = np.arange(stop - first)
        if sample_indices_fn is not None:
            indices = np.asarray(sample_indices_fn(metadata=metadata))
            _check_indices(indices, stop - first, reader.name)
        frames = _read_frames(reader, indices + first)
        seconds = np.array([reader.seconds(first + frame) for frame in indices.ravel().tolist()])
        last = reader.seconds(stop)
    metadata.frames_indices = indices.ravel().tolist()
    return TimedVideo(frames, metadata, seconds.reshape(indices.shape), last)


def read_video_at(video: VideoSource, seconds: Sequence[float], *, source_fps: float | None = None) -> TimedVideo:
    """
    Read the frames that a video shows at some times.

    Args:
        video (`str`, `os.PathLike`, `bytes` or binary file object):
            As for [`read_video`].
        seconds (`Sequence[float]`):
            Times after the first frame, in any order. Before the first frame it is shown, and after the last one that.
            Timestamps that differ by less than a millisecond count as equal.
        source_fps (`float`, *optional*):
            Frames per second of a folder of frames, which have no times of their own. Other videos ignore it.

    Returns:
        `TimedVideo`: a frame for each time; `seconds` and `end` are as for a video also if `video` is a folder.

    Raises:
        `VideoReadError`: if the video cannot be read, or a wanted frame is damaged.
        `ValueError`: for a folder of frames without `source_fps`.
        `TypeError`: if `video` cannot be read by number of frame.
    """
    with _open_reader(video) as reader:
        is_untimed = math.isnan(reader.seconds(0))
        if is_untimed and source_fps is None:
            raise ValueError(f"{reader.name} is a folder of frames, which have no times: give source_fps.")

        def shown_from(frame: int) -> float:
            return frame / source_fps if is_untimed and source_fps else reader.seconds(frame)

        frames = range(len(reader))
        indices = np.array([bisect_right(frames, time + TIME_ROUNDING, key=shown_from) - 1 for time in seconds])
        indices = indices.clip(0)
        metadata = _make_metadata(reader, 0, len(reader))
        metadata.frames_indices = indices.tolist()
        times = np.array([shown_from(frame) for frame in indices.tolist()])
        return TimedVideo(_read_frames(reader, indices), metadata, times, shown_from(len(reader)))


def probe_video(video: VideoSource, segments: Iterable[tuple[float | None, float | None]] = ()) -> VideoMetadata:
    """
    Metadata of a video, from a pass over the packets that decodes one frame. Only files whose packets do not show the
    frames (AVI, MPEG-4, VP8, streams that begin with damage) are decoded in full.

    Args:
        video (`str`, `os.PathLike`, `bytes` or binary file object):
            As for `read_video`.
        segments (`Iterable[tuple[float | None, float | None]]`, *optional*):
            Pairs of `start` and `end`, as for `read_video`. Each segment must hold a frame.

    Returns:
        `VideoMetadata`: that of `read_video` for the whole video, without `frames_indices`.

    Raises:
        `VideoReadError`: if the video cannot be read, or a segment holds no frame.
        `ValueError`: for a segment of a folder of frames, or one whose times are not numbers.
    """
    with _open_reader(video) as reader:
        for start, end in segments:
            _find_segment(reader, start, end)
        return _make_metadata(reader, 0, len(reader))


class FrameFolder:
    """A folder of JPEG / PNG frames; they have no times."""

    backend = "pil"

    def __init__(self, folder: Path):
        def natural(path: Path) -> list[Any]:
            return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]

        self.name = str(folder)
        frames = (p for p in folder.iterdir() if p.suffix.lower() in FRAME_EXTENSIONS and not p.name.startswith("."))
        self.paths = sorted(frames, key=natural)
        if not self.paths:
            raise VideoReadError(f"{folder} holds no frames: no file ends in {', '.join(FRAME_EXTENSIONS)}.")
        self.height, self.width = self._load(0).shape[:2]

    def __len__(self) -> int:
        return len(self.paths)

    def seconds(self, frame: int) -> float:
        return math.nan

    def read(self, wanted: np.ndarray) -> np.ndarray:
        frames = np.empty((len(wanted), self.height, self.width, 3), dtype=np.uint8)
        for place, i in enumerate(wanted):
            frame = self._load(i)
            if frame.shape != frames.shape[1:]:
                size, expected = frame.shape[:2], (self.height, self.width)
                raise VideoReadError(f"{self.paths[i]} is {size} (height, width) but the first frame is {expected}.")
            frames[place] = frame
        return frames

    def _load(self, frame: int) -> np.ndarray:
        try:
            return np.asarray(load_image(str(self.paths[frame])))
        except Image.DecompressionBombError as error:
            raise VideoReadError(f"{self.paths[frame]} is too large; {tell_largest_frame()}") from error
        except (OSError, ValueError) as error:
            raise VideoReadError(f"{self.paths[frame]} cannot be read as an image: {error}") from error


class DecodedVideo:
    """The frames of a `torchcodec.decoders.VideoDecoder`, as evenly spaced in time."""

    backend = "torchcodec"

    def __init__(self, decoder: Any):
        self.decoder, self.metadata = decoder, decoder.metadata
        # The datasets library notes the path.
        self.name = getattr(self.metadata, "path", None) or f"The {type(decoder).__name__}"
        self.height, self.width = self.metadata.height, self.metadata.width

    @staticmethod
    def is_one(video: Any) -> bool:
        return hasattr(video, "get_frames_at") and hasattr(video, "metadata")

    def __len__(self) -> int:
        return self.metadata.num_frames

    def seconds(self, frame: int) -> float:
        return frame * self.metadata.duration_seconds / len(self)

    def read(self, wanted: np.ndarray) -> np.ndarray:
        try:
            frames = self.decoder.get_frames_at(indices=wanted.tolist()).data.cpu().numpy()
        except RuntimeError as error:
            raise VideoReadError(f"{self.name} cannot be decoded: {error}") from error
        return frames if frames.shape[-1] == 3 else frames.transpose(0, 2, 3, 1)


@contextmanager
def _open_reader(video: VideoSource) -> Iterator[VideoFileReader | FrameFolder | DecodedVideo]:
    if DecodedVideo.is_one(video):
        yield DecodedVideo(video)
        return
    kind, name = kind_of(video), describe(video)
    if kind == "frames":
        raise TypeError(f"{name} has to be a video, such as a path, a URL or bytes, to read frames of it by number.")
    if kind == "folder":
        yield FrameFolder(Path(video))  # type: ignore[arg-type]
        return
    opened: Any = nullcontext(os.fspath(video) if isinstance(video, os.PathLike) else video)
    if is_url(video):
        opened = open_address(str(video))
    elif isinstance(video, bytes):
        opened = io.BytesIO(video)
    with opened as source:
        if isinstance(source, str) and not os.path.isfile(source):
            raise VideoReadError(f"{source} does not exist.")
        with open_stream(source, name) as container_and_stream:
            yield VideoFileReader(source, name, container_and_stream)


def _find_segment(
    reader: VideoFileReader | FrameFolder | DecodedVideo, start: float | None, end: float | None
) -> tuple[int, int]:
    """The numbers of the first frame at or after `start`, and of the first at or after `end`."""
    for name, seconds in {"start": start, "end": end}.items():
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, Real) or math.isnan(seconds)):
            raise ValueError(f"{name}={seconds!r} is not a time; a number of seconds is expected, or None.")
    if start is None and end is None:
        return 0, len(reader)
    if math.isnan(reader.seconds(0)):
        raise ValueError(f"{reader.name} is a folder of frames, which have no times: start and end cannot be applied.")
    frames = range(len(reader))
    first = 0 if start is None else bisect_left(frames, start, key=reader.seconds)
    stop = len(reader) if end is None else bisect_left(frames, end, key=reader.seconds)
    if (start or 0) < 0 or first >= stop:
        raise VideoReadError(
            f"start={start}, end={end} holds no frame of {reader.name}; give seconds with 0 <= start < end, "
            f"the video lasts {reader.seconds(len(reader)):.3f} s."
        )
    return first, stop


def _make_metadata(reader: VideoFileReader | FrameFolder | DecodedVideo, first: int, stop: int) -> VideoMetadata:
    duration = reader.seconds(stop) - reader.seconds(first)
    timed = duration > 0
    return VideoMetadata(
        total_num_frames=stop - first,
        fps=(stop - first) / duration if timed else None,
        width=reader.width,
        height=reader.height,
        duration=duration if timed else None,
        video_backend=reader.backend,
    )


def _read_frames(reader: VideoFileReader | FrameFolder | DecodedVideo, indices: np.ndarray) -> np.ndarray:
    """Frames at indices of any shape and order, each decoded once: (*indices.shape, height, width, 3) uint8."""
    wanted, inverse = np.unique(indices, return_inverse=True)
    frames = reader.read(wanted)
    if not np.array_equal(wanted, indices.ravel()):
        frames = frames[inverse.ravel()]
    return frames.reshape(*indices.shape, *frames.shape[1:])


def _check_indices(indices: np.ndarray, total_num_frames: int, name: str) -> None:
    if indices.size == 0 or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(f"sample_indices_fn must return at least one integer; for {name} it returned {indices}.")
    outside = indices[(indices < 0) | (indices >= total_num_frames)]
    if outside.size:
        raise ValueError(
            f"sample_indices_fn returned index {outside[0]}, but {name} has the frames 0 to {total_num_frames - 1}."
        )
