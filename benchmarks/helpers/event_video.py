"""
A video of known events: a digit moves left, right, up or down, stands still, or is not there.

Motions are straight. A digit that leaves the picture on one side comes back on the other, so any part of an event
shows its direction. Half of the events follow each other without a pause. The rest is background: a digit that stands
still, or an empty picture.

Frames come at a variable rate: it changes every few seconds, each distance varies around it, and there are gaps. A
frame shows where the digit is at its own time.
"""

import json
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from PIL import Image

from hf_video.demo import load_digit_scans
from hf_video.inference import Segment

# Rows and columns by which a digit moves.
DIRECTIONS = {"down": (1, 0), "left": (0, -1), "right": (0, 1), "up": (-1, 0)}
BACKGROUND = "background"
CLASSES = [*DIRECTIONS, BACKGROUND]
FRAME_RATES = (10, 15, 24, 30)

_EVENT_SECONDS, _PAUSE_SECONDS = (2.5, 9.0), (2.0, 8.0)
_PIXELS_A_SECOND = (16.0, 32.0)
_DIGIT_SIZE = 16
_CHANGES_OF_RATE, _RATE_JITTER = (3.0, 12.0), 0.3
_GAPS_EVERY, _GAPS, _LONG_GAPS = (8.0, 20.0), (0.3, 0.6), (1.5, 4.0)
_TICKS = 1000


class _Scene(NamedTuple):
    """A time in which a digit does one thing."""

    label: str
    start: float
    end: float
    digit: np.ndarray | None
    place: np.ndarray
    velocity: np.ndarray


def write_event_video(
    path: str | os.PathLike, *, seconds: float, seed: int, held_out: bool, image_size: int = 48
) -> list[Segment]:
    """
    Writes an H.264 file.

    Args:
        path: the file, in a folder that exists.
        seconds: length of the video.
        seed: chooses everything.
        held_out: whether the digits are scans of which none is in videos that are not held out.
        image_size: height and width in pixels.

    Returns:
        The events, without background.
    """
    generator = np.random.default_rng([seed, held_out])
    digits = load_digit_scans(seed=0)[held_out]
    scenes = _scenes(generator, digits, seconds, image_size)
    with av.open(os.fspath(path), "w") as container:
        stream = container.add_stream("libx264", rate=_TICKS, options={"preset": "veryfast", "crf": "18", "g": "250"})
        stream.height = stream.width = image_size
        stream.pix_fmt = "yuv420p"
        number = 0
        for ticks in _frame_ticks(generator, scenes):
            while ticks >= scenes[number].end * _TICKS:
                number += 1
            frame = av.VideoFrame.from_ndarray(_draw(scenes[number], ticks / _TICKS, image_size), format="gray")
            frame.pts, frame.time_base = ticks, Fraction(1, _TICKS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return [Segment(scene.label, scene.start, scene.end) for scene in scenes if scene.label != BACKGROUND]


def write_ground_truth(path: Path, videos: Mapping[str, tuple[float, Sequence[Segment]]]) -> None:
    """Writes lengths in seconds and events of videos in ActivityNet's layout."""
    database = {
        name: {
            "subset": "test",
            "duration": seconds,
            "annotations": [{"label": each.label, "segment": [each.start, each.end]} for each in events],
        }
        for name, (seconds, events) in videos.items()
    }
    path.write_text(json.dumps({"version": "1", "database": database}))


def class_shares(events: Sequence[Segment], start: float, end: float) -> list[float]:
    """The share of the time from `start` to `end` that each class of `CLASSES` takes."""
    shares = dict.fromkeys(CLASSES, 0.0)
    for event in events:
        shares[event.label] += max(0.0, min(event.end, end) - max(event.start, start)) / (end - start)
    shares[BACKGROUND] = 1 - sum(shares.values())
    return list(shares.values())


def _scenes(generator: np.random.Generator, digits: np.ndarray, seconds: float, image_size: int) -> list[_Scene]:
    scenes: list[_Scene] = []
    now, last, place, digit = 0.0, BACKGROUND, np.zeros(2), generator.choice(digits)
    while now < seconds:
        is_pause = not scenes or (last != BACKGROUND and generator.uniform() < 0.5)
        label = BACKGROUND if is_pause else str(generator.choice([name for name in DIRECTIONS if name != last]))
        end = now + generator.uniform(*(_PAUSE_SECONDS if is_pause else _EVENT_SECONDS))
        # No event is cut off by the end of the video.
        if seconds - end < _EVENT_SECONDS[1]:
            label, end = BACKGROUND, seconds
        is_empty = label == BACKGROUND and generator.uniform() < 0.5
        if is_empty:
            digit, place = generator.choice(digits), generator.uniform(0, image_size, size=2)
        speed = generator.uniform(*_PIXELS_A_SECOND)
        velocity = speed * np.array(DIRECTIONS.get(label, (0, 0)))
        scenes.append(_Scene(label, now, end, None if is_empty else digit, place, velocity))
        place = place + velocity * (end - now)
        now, last = end, label
    return scenes


def _frame_ticks(generator: np.random.Generator, scenes: Sequence[_Scene]) -> list[int]:
    """Times of frames in milliseconds, from 0 on."""
    seconds = scenes[-1].end
    pauses = [(scene.start, scene.end) for scene in scenes if scene.label == BACKGROUND]
    found, now, change, gap, rate = [], 0.0, 0.0, generator.uniform(*_GAPS_EVERY), 0
    while now < seconds:
        found.append(round(now * _TICKS))
        if now >= change:
            rate, change = int(generator.choice(FRAME_RATES)), now + generator.uniform(*_CHANGES_OF_RATE)
        distance = (1 + generator.uniform(-_RATE_JITTER, _RATE_JITTER)) / rate
        if now >= gap:
            long = now + generator.uniform(*_LONG_GAPS)
            # What happens in a long gap cannot be seen, so nothing does.
            is_quiet = any(start <= now and long < end for start, end in pauses)
            distance = long - now if is_quiet else generator.uniform(*_GAPS)
            gap = now + generator.uniform(*_GAPS_EVERY)
        now += distance
    return found


def _draw(scene: _Scene, time: float, image_size: int) -> np.ndarray:
    """The frame (image_size, image_size) at a time in seconds."""
    frame = np.zeros((image_size, image_size), np.uint8)
    if scene.digit is None:
        return frame
    size = (_DIGIT_SIZE, _DIGIT_SIZE)
    frame[:_DIGIT_SIZE, :_DIGIT_SIZE] = Image.fromarray(scene.digit).resize(size, Image.Resampling.BICUBIC)
    place = scene.place + scene.velocity * (time - scene.start)
    return np.roll(frame, np.rint(place).astype(int), axis=(0, 1))
