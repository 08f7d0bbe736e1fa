"""Writes videos, and copies of a video with what was found in it: the classes of the moment, or persons in boxes."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from hf_video.inference.detection import KeyFrame, Person
from hf_video.inference.segments import Segment
from hf_video.reading.frame_streaming import stream_frames
from hf_video.reading.sources import VideoReadError
from hf_video.texts import class_color, clock, font_file, one_line, shorten

# Ticks per second: MPEG-4 allows no more than 65535.
_TICKS = 60_000
# Rows that a player shows without blur, and that letters need.
_LEAST_HEIGHT = 240
_MOST_CLASSES = 4
_LONGEST_NAME = 40
# Share of the video's light behind a text. White letters then have a contrast of more than 15 : 1 (that of WCAG 2),
# whatever the video shows.
_SHINE_THROUGH = 0.15
# Seconds before and after a key frame at which its persons are shown: a box says nothing of other times.
_LONGEST_SHOWN = 0.5


class VideoEncoder:
    """Adds images to a video file, in the order of their times. Its size is that of the first image. The codec is
    H.264 if this build of FFmpeg can encode it, else MPEG-4. The index of an MP4 comes first, so that a browser plays
    it while it loads."""

    def __init__(self, path: str | os.PathLike):
        self._container = av.open(os.fspath(path), "w", format="mp4", options={"movflags": "faststart"})
        self._stream: Any = None
        self._ticks = -1

    def __enter__(self) -> "VideoEncoder":
        return self

    def __exit__(self, *error: object) -> None:
        self._container.close()

    def add(self, image: np.ndarray, seconds: float) -> None:
        """Adds an image (height, width, 3) uint8, which is shown from `seconds` on."""
        # Encoders demand even sizes.
        image = np.pad(image, ((0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)), mode="edge")
        if self._stream is None:
            has_h264 = "libx264" in av.codecs_available
            # The rate is a hint for the encoder: the frames bring their own times.
            self._stream = stream = self._container.add_stream("libx264" if has_h264 else "mpeg4", rate=30)
            stream.height, stream.width = image.shape[:2]
            stream.pix_fmt = "yuv420p"
            stream.time_base = stream.codec_context.time_base = Fraction(1, _TICKS)
            # Without frames out of order ("bf"), whose stored durations would give the video a wrong end.
            stream.options = {"crf": "20", "preset": "veryfast", "bf": "0"} if has_h264 else {"qscale": "3"}
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


def annotate_video(
    source: str | os.PathLike, target: str | os.PathLike, segments: Sequence[Segment], end: float
) -> None:
    """
    Writes a video file again, with the time, the classes of the moment and their scores in the upper left corner, and
    all segments as a bar with a playhead at the lower edge. Frames keep their times, and are upright; frames of less
    than 240 rows are enlarged. There is no sound.

    Args:
        source: the video file.
        target: the file to write.
        segments: the segments, in the order in which they begin.
        end: seconds at which to stop.

    Raises:
        ImportError: matplotlib, which finds fonts, is not installed.
        VideoReadError: the video is damaged. The frames before the damage are in `target`, which can be played.
        OSError: `target` cannot be written.
    """
    deque(annotate_frames(source, target, segments, end), maxlen=0)


def annotate_frames(
    source: str | os.PathLike, target: str | os.PathLike, segments: Sequence[Segment], end: float
) -> Iterator[float]:
    """Does what [`annotate_video`] does, and gives the seconds of each frame after it was written."""
    waiting, active = deque(segments), list[Segment]()
    shown: Any = None
    lines: Any = None
    bar: Any = None
    damage: VideoReadError | None = None
    with VideoEncoder(target) as encoder:
        try:
            for frame in stream_frames(source):
                if frame.seconds > end:
                    break
                image = Image.fromarray(enlarge(frame.image))
                while waiting and waiting[0].start <= frame.seconds:
                    active.append(waiting.popleft())
                active = [segment for segment in active if frame.seconds < segment.shown_until]
                time = clock(frame.seconds)
                if shown != (time, active):
                    shown, lines = (time, active), _draw_lines(time, active, image.size)
                bar = bar or _draw_bar(segments, end, image.size)
                image.paste(lines, mask=lines)
                image.paste(bar, (0, image.height - bar.height))
                head = _column(frame.seconds, end, image.width)
                white = (max(head - 1, 0), image.height - 2 * bar.height, head + 1, image.height)
                ImageDraw.Draw(image).rectangle(white, fill="white")
                encoder.add(np.asarray(image), frame.seconds)
                yield frame.seconds
        except VideoReadError as error:
            damage = error
        encoder.finish()
    if damage is not None:
        raise damage


def _draw_lines(time: str, active: Sequence[Segment], image_size: tuple[int, int]) -> Image.Image:
    """The time and the classes with the highest scores, a line each, on a dark ground for the upper left corner."""
    lines: list[tuple[str, str | None]] = [(time, None)]
    for segment in sorted(active, key=lambda segment: -segment.score)[:_MOST_CLASSES]:
        name = shorten(one_line(segment.label) or f"class {segment.class_id}", _LONGEST_NAME)
        lines.append((f"{name}  {segment.score:.0%}", class_color(segment.class_id)))
    if len(active) > _MOST_CLASSES:
        lines.append((f"and {len(active) - _MOST_CLASSES} more", None))
    width, height = image_size
    size = float(np.clip(height / 18, 12, 60))
    widest = max(ImageFont.truetype(font_file(), size).getlength(line) for line, _ in lines) / size
    size = min(size, width / (widest + 1.3), height / (1.5 * (len(lines) + 0.5)))
    box = round((widest + 1.3) * size), round((1.45 * len(lines) + 0.5) * size)
    ground = Image.new("RGBA", box, (0, 0, 0, round(255 * (1 - _SHINE_THROUGH))))
    draw, font = ImageDraw.Draw(ground), ImageFont.truetype(font_file(), size)
    for number, (line, color) in enumerate(lines):
        top = (0.35 + 1.45 * number) * size
        # Letters in the colour of the class would be too dark to read.
        if color is not None:
            draw.rectangle((0, top, 0.4 * size, top + 1.2 * size), fill=color)
        draw.text((0.8 * size, top), line, font=font, fill="white")
    return ground


def _draw_bar(segments: Sequence[Segment], end: float, image_size: tuple[int, int]) -> Image.Image:
    """The segments of all classes over the whole time."""
    width, height = image_size
    bar = Image.new("RGB", (width, max(height // 40, 2)), (32, 32, 32))
    for segment in segments:
        first, last = (_column(time, end, width) for time in (segment.start, segment.end))
        ImageDraw.Draw(bar).rectangle((first, 0, last, height), fill=class_color(segment.class_id))
    return bar


def _column(seconds: float, end: float, width: int) -> int:
    return min(int(seconds / end * width), width - 1) if end else 0


def annotate_detections(
    source: Any, target: str | os.PathLike, key_frames: Sequence[KeyFrame], *, source_fps: float | None = None
) -> None:
    """
    Writes an MP4 of a video with the persons that were found in it. What was found at a key frame is shown for half a
    second before and after it, or up to half way to the next one. Frames keep their times; frames of less than 240
    rows are enlarged. There is no sound.

    Args:
        source: the video, what `stream_frames` takes.
        target: the file to write.
        key_frames: what `detect_actions` gives, in the order of their times.
        source_fps: the rate of a folder of frames.

    Raises:
        ImportError: matplotlib, which finds fonts, is not installed.
        VideoReadError: the video is damaged.
        OSError: `target` cannot be written.
    """
    from torchvision.utils import draw_bounding_boxes

    seconds = np.array([frame.second for frame in key_frames])
    steps = np.diff(seconds, prepend=-np.inf, append=np.inf) / 2
    starts = seconds - steps[:-1].clip(max=_LONGEST_SHOWN)
    ends = seconds + steps[1:].clip(max=_LONGEST_SHOWN)
    end: float | None = None
    font = font_file()
    with VideoEncoder(target) as encoder:
        for frame in stream_frames(source, source_fps=source_fps):
            image = enlarge(frame.image)
            (shown,) = np.nonzero((starts <= frame.seconds) & (frame.seconds < ends))
            persons = key_frames[shown[0]].persons if len(shown) else []
            if persons:
                size = int(np.clip(len(image) / 24, 10, 40))
                drawn = draw_bounding_boxes(
                    torch.from_numpy(image).movedim(-1, 0),
                    torch.tensor([person.box for person in persons]) * len(image) / len(frame.image),
                    labels=[_label(person) for person in persons],
                    colors=[class_color(person.track) for person in persons],
                    width=size // 3,
                    font=font,
                    font_size=size,
                    label_colors="white",
                    fill_labels=True,
                )
                image = drawn.movedim(0, -1).numpy()
            encoder.add(image, frame.seconds)
            end = frame.seconds + frame.duration if frame.duration else None
        encoder.finish(end)


def _label(person: Person) -> str:
    """The track and score of a person, and its actions, a line each."""
    names = [(shorten(one_line(name), _LONGEST_NAME), score) for name, score in person.actions.items()]
    lines = [f"{name} {score:.0%}" for name, score in names[:_MOST_CLASSES]]
    more = [f"and {len(names) - _MOST_CLASSES} more"] if len(names) > _MOST_CLASSES else []
    return "\n".join([f"#{person.track} {person.score:.0%}", *lines, *more])
