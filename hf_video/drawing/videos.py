"""Videos of what a model saw: a copy with the classes of the moment on it, and the frames with their heat maps."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np

from hf_video.inference.explanation import overlay_heat_maps
from hf_video.inference.segments import Segment
from hf_video.reading.frame_streaming import stream_frames
from hf_video.reading.sources import VideoReadError
from hf_video.texts import class_color, clock, font_families, one_line, shorten

# Ticks per second: MPEG-4 allows no more than 65535.
_TICKS = 60_000
# Rows that a player shows without blur, and that letters need.
_LEAST_HEIGHT = 240
_MOST_CLASSES = 4
_LONGEST_NAME = 40
# Share of the video's light behind a text. White letters then have a contrast of more than 15 : 1 (that of WCAG 2),
# whatever the video shows.
_SHINE_THROUGH = 0.15


class VideoEncoder:
    """Adds images to a video file, in the order of their times. Its size is that of the first image. The codec is
    H.264 if this build of FFmpeg can encode it, else MPEG-4. The index of an MP4 comes first, so that a browser plays
    it while it loads."""

    def __init__(self, path: str | os.PathLike, container_format: str = "mp4"):
        options = {"movflags": "faststart"} if container_format == "mp4" else {}
        self._container = av.open(os.fspath(path), "w", format=container_format, options=options)
        self._stream: Any = None
        self._ticks = -1

    def __enter__(self) -> "VideoEncoder":
        return self

    def __exit__(self, *error: object) -> None:
        self._container.close()

    def add(self, image: np.ndarray, seconds: float) -> None:
        """Adds an image (height, width, 3) uint8, which is shown from `seconds` on."""
        height, width = image.shape[:2]
        # Encoders demand even sizes.
        image = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._stream is None:
            self._stream = _add_stream(self._container, *image.shape[:2])
        # Two images must not share a tick.
        self._ticks = max(round(seconds * _TICKS), self._ticks + 1)
        frame = av.VideoFrame.from_ndarray(image, "rgb24")
        frame.pts, frame.time_base = self._ticks, Fraction(1, _TICKS)
        self._container.mux(self._stream.encode(frame))

    def finish(self, end: float | None = None) -> None:
        """Writes what the encoder holds back. The last image is shown until `end`, in seconds; by default as long as
        the one before it."""
        if self._stream is None:
            return
        packets = self._stream.encode(None)
        if end is not None and packets:
            packets[-1].duration = max(round(end * _TICKS) - self._ticks, 1)
        self._container.mux(packets)


def enlarge(image: np.ndarray) -> np.ndarray:
    """The image (height, width, ...), each pixel of it repeated if it has less than 240 rows."""
    factor = -(-_LEAST_HEIGHT // image.shape[0])
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def _add_stream(container: Any, height: int, width: int) -> Any:
    has_h264 = "libx264" in av.codecs_available
    # The rate is a hint for the encoder: the frames bring their own times.
    stream = container.add_stream("libx264" if has_h264 else "mpeg4", rate=30)
    stream.height, stream.width = height, width
    stream.pix_fmt = "yuv420p"
    stream.time_base = stream.codec_context.time_base = Fraction(1, _TICKS)
    # Without frames out of order ("bf"), whose stored durations would give the video a wrong end.
    stream.options = {"crf": "20", "preset": "veryfast", "bf": "0"} if has_h264 else {"qscale": "3"}
    return stream


def annotate_video(
    source: str | os.PathLike,
    target: str | os.PathLike,
    segments: Sequence[Segment],
    end: float,
    container_format: str = "mp4",
) -> None:
    """
    Writes a video file again, with the time, the classes of the moment and their scores in the upper left corner, and
    all segments as a bar with a playhead at the lower edge. Frames keep their times, and are upright; frames of less
    than 240 rows are enlarged. There is no sound. The codec is H.264 if this build of FFmpeg can encode it, else
    MPEG-4.

    Args:
        source: the video file.
        target: the file to write.
        segments: the segments, in the order in which they begin.
        end: seconds at which to stop.
        container_format: FFmpeg's name of the container.

    Raises:
        ImportError: matplotlib, which draws the texts, is not installed.
        VideoReadError: the video is damaged. The frames before the damage are in `target`, which can be played.
        OSError: `target` cannot be written.
    """
    deque(annotate_frames(source, target, segments, end, container_format), maxlen=0)


def annotate_frames(
    source: str | os.PathLike,
    target: str | os.PathLike,
    segments: Sequence[Segment],
    end: float,
    container_format: str = "mp4",
) -> Iterator[float]:
    """Does what [`annotate_video`] does, and gives the seconds of each frame after it was written."""
    artist = _Artist(segments, end)
    damage: VideoReadError | None = None
    with VideoEncoder(target, container_format) as encoder:
        try:
            for frame in stream_frames(source):
                if frame.seconds > end:
                    break
                encoder.add(artist.draw(enlarge(frame.image), frame.seconds), frame.seconds)
                yield frame.seconds
        except VideoReadError as error:
            damage = error
        encoder.finish()
    if damage is not None:
        raise damage


class _Artist:
    """Draws on the frames of a video, in their order."""

    def __init__(self, segments: Sequence[Segment], length: float):
        self._segments, self._length = segments, length
        self._families = font_families()
        self._waiting, self._active = deque(segments), list[Segment]()
        self._drawn: tuple[Any, np.ndarray] | None = None
        self._bar: np.ndarray | None = None

    def draw(self, image: np.ndarray, seconds: float) -> np.ndarray:
        """The image (height, width, 3) uint8 with the answer of its time."""
        while self._waiting and self._waiting[0].start <= seconds:
            self._active.append(self._waiting.popleft())
        self._active = [segment for segment in self._active if seconds < segment.end]
        shown = sorted(self._active, key=lambda segment: -segment.score)
        key = (clock(seconds), shown, image.shape)
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = key, self._draw_lines(key[0], shown, *image.shape[:2])
        image = image.copy()
        letters = self._drawn[1]
        colors, opacity = letters[..., :3], letters[..., 3:]
        box = image[: len(letters), : letters.shape[1]]
        box[:] = _SHINE_THROUGH * (1 - opacity) * box + 255 * opacity * colors
        self._draw_bar(image, seconds)
        return image

    def _draw_lines(self, time: str, shown: Sequence[Segment], height: int, width: int) -> np.ndarray:
        """Letters for the upper left corner: (height, width, 4), colours and opacity from 0 to 1."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        lines, colors = [time], ["none"]
        for segment in shown[:_MOST_CLASSES]:
            name = shorten(one_line(segment.label) or f"class {segment.class_id}", _LONGEST_NAME)
            lines.append(f"{name}  {segment.score:.0%}")
            colors.append(class_color(segment.class_id))
        if len(shown) > _MOST_CLASSES:
            lines.append(f"and {len(shown) - _MOST_CLASSES} more")
            colors.append("none")
        # A pixel is a point.
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        canvas = FigureCanvasAgg(figure)
        figure.patch.set_alpha(0)
        size = float(np.clip(height / 18, 12, 60))
        style: dict[str, Any] = {"family": self._families, "parse_math": False, "va": "top", "fontsize": size}
        texts = [figure.text(0, 1, line, color="white", **style) for line in lines]
        widest = max(text.get_window_extent(canvas.get_renderer()).width for text in texts)
        size *= min(1.0, width / (widest + 1.3 * size), height / (1.5 * size * (len(lines) + 0.5)))
        for number, (text, color) in enumerate(zip(texts, colors, strict=True)):
            top = 1 - (0.35 + 1.45 * number) * size / height
            text.set(x=0.8 * size / width, y=top, fontsize=size)
            # Letters in the colour of the class would be too dark to read.
            figure.add_artist(Rectangle((0, top), 0.4 * size / width, -1.2 * size / height, color=color))
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba(), dtype=np.float32) / 255
        box_height = min(round((1.45 * len(lines) + 0.5) * size), height)
        box_width = min(round(max(text.get_window_extent().width for text in texts) + 1.3 * size), width)
        return pixels[:box_height, :box_width]

    def _draw_bar(self, image: np.ndarray, seconds: float) -> None:
        """The segments of all classes over the whole time, and where the frame lies."""
        height, width = image.shape[:2]
        rows = max(height // 40, 2)
        if self._bar is None or self._bar.shape != (rows, width, 3):
            self._bar = np.full((rows, width, 3), 32, dtype=np.uint8)
            for segment in self._segments:
                first, last = (self._column(time, width) for time in (segment.start, segment.end))
                self._bar[:, first : last + 1] = list(bytes.fromhex(class_color(segment.class_id)[1:]))
        image[-rows:] = self._bar
        head = self._column(seconds, width)
        image[-2 * rows :, max(head - 1, 0) : head + 2] = 255

    def _column(self, seconds: float, width: int) -> int:
        return min(int(seconds / self._length * width), width - 1) if self._length else 0


def write_heat_map_video(
    path: str | os.PathLike, images: np.ndarray, heat_maps: np.ndarray, times: Sequence[float], end: float
) -> None:
    """
    Writes an MP4 of frames with heat maps on them, for players and browsers. It begins with the first frame. Each
    frame is shown until the time of the next one. Frames of less than 240 rows are enlarged.

    Args:
        path: the file to write.
        images: (T, H, W, 3) uint8.
        heat_maps: (T, H, W) in [0, 1], see [`overlay_heat_maps`].
        times: (T,) seconds in rising order.
        end: seconds until which the last frame is shown.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
        ValueError: shapes do not agree, or a value is outside of [0, 1].
    """
    drawn = overlay_heat_maps(images, heat_maps)
    with VideoEncoder(path) as encoder:
        for image, seconds in zip(drawn, times, strict=True):
            encoder.add(enlarge(image), seconds - times[0])
        encoder.finish(end - times[0])
