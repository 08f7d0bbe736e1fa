"""Frames of people who walk, and what is true about them: who is where, and which way somebody in a window goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import ndimage

from hf_video.reading.frame_streaming import stream_frames

CLASSES = ("walks left", "walks right", "nobody")
NUM_FRAMES, STRIDE, SPAN = 8, 2, 16
WINDOW = 96
# The last frames of a video, which no model learns from; half of them all in a short one.
TEST_FRAMES = 175
# Of 255: how much a pixel of somebody differs from the empty scene.
DIFFERENCE = 35
# Pixels: how far somebody goes in a clip, how much an outline may go back meanwhile, and how wide one person is.
DISTANCE, JITTER, WIDTH = 16, 4, 45


class Box(NamedTuple):
    """The outline of something that is not part of the empty scene, in pixels."""

    top: int
    bottom: int
    left: int
    right: int


class Scene(NamedTuple):
    """Frames (T, H, W, 3) uint8, the boxes in each of them, and what the scene is without anybody, (H, W, 3) uint8."""

    frames: np.ndarray
    boxes: list[list[Box]]
    empty: np.ndarray

    def part(self, start: int, stop: int) -> "Scene":
        return Scene(self.frames[start:stop], self.boxes[start:stop], self.empty)


class Place(NamedTuple):
    """A clip: its first frame, its window's upper left corner, and its class."""

    frame: int
    top: int
    left: int
    label: int | None


def read_scene(video: Path | None) -> Scene:
    """The scene of a video; without one, of moving squares."""
    frames = moving_squares() if video is None else np.stack([frame.image for frame in stream_frames(video)])
    empty = np.median(frames[::10], axis=0).astype(np.uint8)
    return Scene(frames, [find_boxes(frame, empty) for frame in frames], empty)


def moving_squares() -> np.ndarray:
    """Squares that cross a noisy ground from left to right, and others from right to left."""
    generator = np.random.default_rng(0)
    ground = generator.integers(90, 110, (288, 384, 3), dtype=np.uint8)
    frames = np.repeat(ground[None], 80, axis=0)
    for time, frame in enumerate(frames):
        for row, direction in ((60, 1), (180, -1)):
            left = direction * 3 * time % 384
            frame[row : row + 30, left : left + 14] = 230
    return frames


def find_boxes(frame: np.ndarray, empty: np.ndarray) -> list[Box]:
    """The outlines of what a frame (H, W, 3) shows and the empty scene does not."""
    mask = np.abs(frame.astype(np.int16) - empty).max(axis=-1) > DIFFERENCE
    mask = ndimage.binary_opening(ndimage.binary_closing(mask, np.ones((5, 3))), np.ones((3, 3)))
    labelled, _ = ndimage.label(mask, np.ones((3, 3)))
    areas = np.bincount(labelled.ravel())[1:]
    found = zip(ndimage.find_objects(labelled), areas, strict=True)
    return [Box(rows.start, rows.stop, columns.start, columns.stop) for (rows, columns), area in found if area > 60]


def label_of(scene: Scene, frame: int, top: int, left: int) -> int | None:
    """The class of a clip; `None` if it is not clear, or more than one person is in it."""
    middles = []
    for boxes in scene.boxes[frame : frame + SPAN : STRIDE]:
        inside = [box for box in boxes if _overlap(box, top, left)]
        if not inside:
            middles.append(None)
            continue
        first, last = min(box.left for box in inside) - left, max(box.right for box in inside) - left
        if last - first > WIDTH or first < 1 or last > WINDOW - 1:
            return None
        middles.append((first + last) / 2)
    if all(middle is None for middle in middles):
        return 2
    if None in middles:
        return None
    steps = np.diff(middles)
    if steps.sum() > DISTANCE and steps.min() > -JITTER:
        return 1
    return 0 if steps.sum() < -DISTANCE and steps.max() < JITTER else None


def _overlap(box: Box, top: int, left: int) -> bool:
    return box.top < top + WINDOW and box.bottom > top and box.left < left + WINDOW and box.right > left


def draw_places(scene: Scene, number: int, seed: int) -> list[Place]:
    """Clips whose class is clear: two thirds with somebody who walks, one third with nobody.

    Raises:
        ValueError: too few of them are found.
    """
    generator = np.random.default_rng(seed)
    wanted = {True: number * 2 // 3, False: number // 3}
    height, width = scene.empty.shape[:2]
    places: list[Place] = []
    for _ in range(1000 * number):
        if not any(wanted.values()):
            return places
        frame = int(generator.integers(len(scene.frames) - SPAN))
        corner = generator.integers((height - WINDOW, width - WINDOW))
        boxes = scene.boxes[frame]
        if boxes and wanted[True]:
            box = boxes[generator.integers(len(boxes))]
            corner = np.array([box.top, box.left]) - generator.integers(5, WINDOW - 25, 2)
            corner = corner.clip(0, (height - WINDOW, width - WINDOW))
        top, left = map(int, corner)
        label = label_of(scene, frame, top, left)
        if label is not None and wanted[label < 2]:
            wanted[label < 2] -= 1
            places.append(Place(frame, top, left, label))
    raise ValueError(f"{len(places)} of {number} clips were found: too few people of this video walk alone.")


def read_clips(scene: Scene, places: list[Place]) -> torch.Tensor:
    """(clips, NUM_FRAMES, 3, WINDOW, WINDOW) in [-1, 1]."""
    spans = [scene.frames[place.frame : place.frame + SPAN : STRIDE] for place in places]
    return torch.stack([_part(span, place.top, place.left) for span, place in zip(spans, places, strict=True)])


def _part(frames: np.ndarray, top: int, left: int) -> torch.Tensor:
    """A window of frames (..., H, W, 3), channels first, in [-1, 1]."""
    window = torch.from_numpy(frames[..., top : top + WINDOW, left : left + WINDOW, :])
    return window.movedim(-1, -3) / 127.5 - 1


def move_elsewhere(scene: Scene, places: list[Place]) -> torch.Tensor:
    """The people of clips before other parts of the empty scene, as `read_clips` gives clips."""
    height, width = scene.empty.shape[:2]
    clips = []
    for place, clip in zip(places, read_clips(scene, places), strict=True):
        top, left = int(torch.randint(height - WINDOW, ())), int(torch.randint(width - WINDOW, ()))
        here, there = (_part(scene.empty, *corner) for corner in ((place.top, place.left), (top, left)))
        is_person = (clip - here).abs().amax(dim=1, keepdim=True) > DIFFERENCE / 127.5
        clips.append(torch.where(is_person, clip, there))
    return torch.stack(clips)


def follow(scene: Scene) -> Iterator[Place]:
    """Windows around somebody who walks, every `STRIDE` frames the nearest one; when nobody does, the last of them."""
    height, width = scene.empty.shape[:2]
    last: Place | None = None
    for frame in range(0, len(scene.frames) - SPAN, STRIDE):
        around = []
        for box in scene.boxes[frame + SPAN // 2]:
            top = int(np.clip((box.top + box.bottom - WINDOW) // 2, 0, height - WINDOW))
            left = int(np.clip((box.left + box.right - WINDOW) // 2, 0, width - WINDOW))
            place = Place(frame, top, left, label_of(scene, frame, top, left))
            if place.label in (0, 1):
                around.append(place)
        if around:
            before = last or around[0]
            last = min(around, key=lambda place: abs(place.top - before.top) + abs(place.left - before.left))
        elif last is not None:
            last = last._replace(frame=frame, label=label_of(scene, frame, last.top, last.left))
        if last is not None and last.label is not None:
            yield last
