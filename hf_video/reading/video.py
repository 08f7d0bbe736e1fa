"""Frames of a video by number: of a file, a URL, bytes or a folder of frames.

They are exactly those that decoding the whole file gives. `seeking` explains how they are found, and what happens to
broken files.
"""

import io
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image
from transformers.image_utils import load_image
from transformers.video_utils import VideoMetadata

from .decoding import open_stream, tell_largest_frame
from .remote import open_address
from .seeking import VideoFile
from .sources import FRAME_EXTENSIONS, Source, VideoReadError

# Or a `torchcodec.decoders.VideoDecoder`, whose package need not be there.
VideoSource = str | os.PathLike | bytes | BinaryIO | Any

# Seconds. The coarsest time bases in use, of Matroska and FLV, round times to milliseconds.
TIME_ROUNDING = 6e-4


class VideoReader:
    """
    A video whose frames are read by number. Close it, or use it in a `with` block.

    Args:
        video (`str`, `os.PathLike`, `bytes` or binary file object):
            Path of a video file, its URL, the bytes of a file, an open file, or path of a folder of JPEG / PNG frames,
            which are taken in natural order (frame 2 before frame 10). A URL is one of `http(s)`, or of another
            protocol that fsspec knows, such as `s3` or `hf`. Of an MP4 or MOV file behind it, only the bytes that the
            wanted frames need are fetched; every other file is read to its end. Or a `VideoDecoder` of torchcodec,
            which decodes the frames itself; it counts frames as evenly spaced.

    Attributes:
        name (`str`): name of the video for messages.
        times (`np.ndarray`): (num_frames,) float64, seconds of each frame after the first one; NaN for a folder.
        end (`float`): seconds when the last frame ends; NaN for a folder.
        key_frames (`np.ndarray`): (num_key_frames,) int64, rising: the numbers of the frames that decoding can begin
            with; 0 alone where it always begins with the first.
        metadata (`VideoMetadata`): see [`read_video`]; without `frames_indices`.

    The packets of a file are passed over once to number its frames; the result is kept in memory while the file does
    not change. Only files whose packets do not show the frames, such as AVI, are decoded in full for that.

    Raises:
        `VideoReadError`: if the video cannot be read.
        `TypeError`: if `video` is none of the above.

    Example:

    ```python
    >>> from hf_video.reading import VideoReader

    >>> with VideoReader("archery.mp4") as reader:
    ...     frames = reader.read(range(0, len(reader), 10))
    ```
    """

    def __init__(self, video: VideoSource):
        with ExitStack() as stack:
            self._frames = _open_frames(Source.of(video), stack)
            self._opened = stack.pop_all()
        self.name, self.key_frames = self._frames.name, self._frames.key_frames
        self.times, self.end = self._frames.times, self._frames.end
        self.metadata = self.metadata_of(range(len(self)))

    def __len__(self) -> int:
        return len(self.times)

    def __enter__(self) -> "VideoReader":
        return self

    def __exit__(self, *error: Any) -> None:
        # An error of the network is the reason for one of the decoder.
        self._opened.__exit__(*error)

    def close(self) -> None:
        """Close what the reader opened. A file that was given open stays so."""
        self._opened.close()

    def resize(self, size: tuple[int, int]) -> None:
        """
        Has frames decoded straight to a size (height, width), while their colours are converted: of large frames this
        takes a tenth of the time of a resize of what `read` gives, from which values differ by some levels of 255.
        Folders of frames and decoders of torchcodec keep their size.
        """
        if isinstance(self._frames, VideoFile):
            self._frames.resize(size)

    def read(self, indices: Any, segment: range | None = None) -> np.ndarray:
        """
        Frames, each of which is decoded once: (*indices.shape, height, width, 3) uint8 RGB, upright.

        Args:
            indices: integers of any shape, in any order, also repeated.
            segment: the frames next to each other that are counted, by default all.

        Raises:
            `VideoReadError`: if a wanted frame is damaged.
            `ValueError`: for an index outside the video or segment, or none.
        """
        indices, counted = np.asarray(indices), range(len(self)) if segment is None else segment
        wrong = indices
        if indices.size and np.issubdtype(indices.dtype, np.integer):
            wrong = indices[(indices < 0) | (indices >= len(counted))]
        if wrong.size or not indices.size:
            some, last = wrong.ravel()[:5].tolist(), len(counted) - 1
            raise ValueError(f"Indices of frames of {self.name} from 0 to {last} are expected, not {some}.")
        wanted, inverse = np.unique(indices + counted.start, return_inverse=True)
        read = self._frames.read(wanted.tolist())
        frames = np.empty((len(wanted), self._frames.height, self._frames.width, 3), dtype=np.uint8)
        for row, frame in enumerate(read):
            if frame.shape != frames.shape[1:]:
                size, first = frame.shape[:2], frames.shape[1:3]
                paths = getattr(self._frames, "paths", None)
                name = paths[wanted[row]] if paths else f"{self.name}: frame {wanted[row]}"
                raise VideoReadError(f"{name} is {size} (height, width), but the first frame is {first}.")
            frames[row] = frame
        if not np.array_equal(inverse.ravel(), np.arange(len(frames))):
            frames = frames[inverse.ravel()]
        return frames.reshape(*indices.shape, *frames.shape[1:])

    def shown_at(self, seconds: Sequence[float] | np.ndarray, source_fps: float | None = None) -> np.ndarray:
        """
        The numbers of the frames that the video shows at some times after its first frame, in any order. Before the
        first frame it is shown, and after the last one that. Timestamps that differ by less than a millisecond count
        as equal. A folder of frames has no times, and needs `source_fps`, its frames per second; others ignore it.
        """
        times = self.times
        if math.isnan(self.end):
            if source_fps is None:
                raise ValueError(f"{self.name} is a folder of frames, which have no times: give source_fps.")
            times = np.arange(len(self)) / source_fps
        return (np.searchsorted(times, np.asarray(seconds) + TIME_ROUNDING, side="right") - 1).clip(0)

    def segment(self, start: float | None, end: float | None) -> range:
        """The numbers of the frames at or after `start` and before `end`, in seconds after the first frame. Raises
        `VideoReadError` if there are none, and `ValueError` for a folder of frames."""
        if start is None and end is None:
            return range(len(self))
        if math.isnan(self.end):
            raise ValueError(f"{self.name} is a folder of frames, which have no times for start and end.")
        first = 0 if start is None else int(np.searchsorted(self.times, start))
        stop = len(self) if end is None else int(np.searchsorted(self.times, end))
        if (start or 0) < 0 or first >= stop:
            raise VideoReadError(
                f"start={start}, end={end} holds no frame of {self.name}; give seconds with 0 <= start < end, "
                f"the video lasts {self.end:.3f} s."
            )
        return range(first, stop)

    def metadata_of(self, segment: range) -> VideoMetadata:
        """The metadata of some frames next to each other, as of a video of its own."""
        first, stop = segment.start, segment.stop
        seconds = float((self.end if stop == len(self) else self.times[stop]) - self.times[first])
        duration = seconds if seconds > 0 else None
        metadata = VideoMetadata(
            total_num_frames=stop - first,
            fps=None if duration is None else (stop - first) / duration,
            width=self._frames.width,
            height=self._frames.height,
            duration=duration,
            video_backend=self._frames.backend,
        )
        if duration is not None:
            # No field, so that metadata can be compared and stored: processors sample at a steady rate by it.
            metadata.times = self.times[first:stop] - self.times[first]
        return metadata


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
        video:
            As for [`VideoReader`].
        sample_indices_fn (`Callable`, *optional*):
            Called with `metadata=`, returns the indices of the frames to read: integers of any shape, in any order,
            also repeated. By default all frames are read.
        start, end (`float`, *optional*):
            The segment to read, in seconds after the first frame; a frame at `end` is left out. Indices and metadata
            count from its start.

    Returns:
        `tuple[np.ndarray, VideoMetadata]`: the frames, uint8 RGB of shape (*indices.shape, height, width, 3), upright;
        and metadata with the true number of frames, average frames per second, duration in seconds, size, backend
        and `frames_indices`, the flat list of the indices that were read. A folder has neither rate nor duration.

    Raises:
        `VideoReadError`: if the video cannot be read, a wanted frame is damaged, or the segment holds no frame.
        `ValueError`, `TypeError`: for an index outside the video, and as [`VideoReader`] and its `segment`.
    """
    with VideoReader(video) as reader:
        segment = reader.segment(start, end)
        metadata = reader.metadata_of(segment)
        indices = np.arange(len(segment))
        if sample_indices_fn is not None:
            indices = np.asarray(sample_indices_fn(metadata=metadata))
        frames = reader.read(indices, segment)
    metadata.frames_indices = indices.ravel().tolist()
    return frames, metadata


def probe_video(video: VideoSource) -> VideoMetadata:
    """The metadata of a [`VideoReader`]; raises what that does."""
    with VideoReader(video) as reader:
        return reader.metadata


class FrameFolder:
    """A folder of JPEG / PNG frames; they have no times."""

    backend = "pil"

    def __init__(self, folder: Path):
        self.name = str(folder)
        frames = (p for p in folder.iterdir() if p.suffix.lower() in FRAME_EXTENSIONS and not p.name.startswith("."))
        self.paths = sorted(frames, key=lambda p: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", p.name)])
        if not self.paths:
            raise VideoReadError(f"{folder} holds no frames: no file ends in {', '.join(FRAME_EXTENSIONS)}.")
        self.height, self.width = self._load(0).shape[:2]
        self.times, self.end = np.full(len(self.paths), math.nan), math.nan
        self.key_frames = np.arange(len(self.paths))

    def read(self, numbers: list[int]) -> Iterator[np.ndarray]:
        return map(self._load, numbers)

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

    def __init__(self, decoder: Any, name: str):
        self.decoder, self.name = decoder, name
        metadata = decoder.metadata
        self.height, self.width, self.end = metadata.height, metadata.width, metadata.duration_seconds
        self.key_frames = np.arange(metadata.num_frames)
        self.times = self.key_frames * metadata.duration_seconds / metadata.num_frames

    def read(self, numbers: list[int]) -> np.ndarray:
        try:
            frames = self.decoder.get_frames_at(indices=numbers).data.cpu().numpy()
        except RuntimeError as error:
            raise VideoReadError(f"{self.name} cannot be decoded: {error}") from error
        frames = frames if frames.shape[-1] == 3 else frames.transpose(0, 2, 3, 1)
        # A decoder may turn or resize frames.
        self.height, self.width = frames.shape[1:3]
        return frames


def _open_frames(source: Source, stack: ExitStack) -> VideoFile | FrameFolder | DecodedVideo:
    if source.kind == "decoder":
        return DecodedVideo(source.place, source.name)
    if source.kind == "folder":
        return FrameFolder(Path(source.place))
    opened: Any = find_file(source)
    if opened is None:
        opened = stack.enter_context(open_address(source))
    return VideoFile(opened, source.name, stack.enter_context(open_stream(opened, source.name)))


def find_file(source: Source) -> str | BinaryIO | None:
    """The path, or a file object, of a source that is a file here; `None` for an address."""
    if source.kind == "bytes":
        return io.BytesIO(source.place)
    if source.kind == "frames":
        raise TypeError(f"{source.name} has to be a video, such as a path, to read frames of it by number.")
    if source.kind == "stream" and not source.scheme:
        raise VideoReadError(f"{source.name} is a camera, whose frames cannot be read by number.")
    if source.kind == "path" and not os.path.isfile(source.place):
        raise VideoReadError(f"{source.name} {'is no file' if os.path.exists(source.place) else 'does not exist'}.")
    return source.place if source.kind in ("path", "file") else None
