"""Finds the people of a video at key frames, and what they do."""

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_video.data.key_frames import read_key_frame_clip
from hf_video.loading.class_names import class_names_of
from hf_video.processing import VideoDetectionProcessor
from hf_video.reading import VideoReader, VideoReadError, probe_video
from hf_video.reading.frame_streaming import stream_frames
from hf_video.reading.sources import describe
from hf_video.reading.video import TIME_ROUNDING

from .inference_settings import DetectSettings
from .windows import Piece

# A person keeps its track if its box overlaps that of the key frame before with at least this IoU.
MIN_TRACK_IOU = 0.3
# Key frames in a row at which a person may be missing and still keeps its track.
MAX_MISSED = 2


class Person(NamedTuple):
    """A person at a key frame: a number that it has at all key frames, as far as its boxes overlap from one to the
    next; the score of being a person, in [0, 1]; left, top, right and bottom of its box in pixels of the video; and
    the score in [0, 1] of each action, by its name, the best first."""

    track: int
    score: float
    box: tuple[float, ...]
    actions: dict[str, float]


class KeyFrame(NamedTuple):
    """What was found at a key frame, some seconds after the first frame: persons in the order of their tracks."""

    second: float
    persons: list[Person]


def detect_actions(
    model: PreTrainedModel,
    processor: VideoDetectionProcessor,
    video: Any,
    *,
    seconds: Sequence[float] | None = None,
    every: float = 1.0,
    person_threshold: float | None = None,
    action_threshold: float = 0.5,
    batch_size: int = 4,
) -> list[KeyFrame]:
    """Find the people of a video, their actions, and which of them are the same person.

    Args:
        model, processor: an action detector in evaluation mode, and what prepares the clips around key frames.
        video: what `read_video` takes.
        seconds: times of the key frames; by default all multiples of `every` seconds in the video.
        person_threshold, action_threshold: smallest scores of a person, by default the processor's, and of an action.
        batch_size: key frames in one forward pass.

    Raises:
        VideoReadError: the video cannot be read, or does not show one of the seconds.
        ImportError: scipy, which finds the tracks, is not installed.
    """
    pieces = key_frame_clips(processor, video, () if seconds is None else seconds, every)
    times, rows = list[float](), list[np.ndarray]()
    while batch := list(islice(pieces, batch_size)):
        times += [piece.start for piece in batch]
        rows += [*detect_clips(model, processor, torch.from_numpy(np.stack([each.pixel_values for each in batch])))]
    metadata, person = probe_video(video), processor.person_threshold if person_threshold is None else person_threshold
    thresholds = {"person_threshold": person, "action_threshold": action_threshold}
    return read_persons(
        times, rows, class_names_of(model.config), size=(metadata.height, metadata.width), **thresholds
    )


def key_frame_clips(
    processor: VideoDetectionProcessor, video: Any, seconds: Sequence[float] = (), every: float = 1.0
) -> Iterator[Piece]:
    """The clip (num_frames, num_channels, height, width) uint8 around each key frame, in the size that a model takes;
    it starts and ends at the key frame. Key frames that are close to each other are read in one pass over the video.
    Arguments and errors are those of [`detect_actions`]."""
    with VideoReader(video) as reader:
        rate = processor.fps if math.isnan(reader.end) else None
        end = reader.end if rate is None else len(reader) / rate
        times = sorted(set(seconds)) or [number * every for number in range(math.ceil((end - TIME_ROUNDING) / every))]
        numbers = reader.shown_at([processor.key_frame_times(second) for second in times], rate).reshape(
            len(times), -1
        )
        # Frames to decode if each clip is decoded from the key frame of the file before it.
        first = reader.key_frames[np.searchsorted(reader.key_frames, numbers[:, 0], side="right") - 1]
        is_dense = (numbers[:, -1] + 1 - first).sum() > numbers.max(initial=0)
    if isinstance(video, (str, os.PathLike)) and is_dense and times[-1] < end:
        yield from map(Piece, _streamed_clips(processor, video, rate, numbers), times, times)
        return
    for second in times:
        clip = torch.from_numpy(read_key_frame_clip(video, second, processor)).permute(0, 3, 1, 2)
        yield Piece(processor.resize(clip, processor.size).numpy(), second, second)


def _streamed_clips(
    processor: VideoDetectionProcessor, video: Any, rate: float | None, numbers: np.ndarray
) -> Iterator[np.ndarray]:
    """The clips of these frames, (num_clips, num_frames). A frame is decoded and resized once, and held as long as a
    clip needs it."""
    frames, held, wanted = stream_frames(video, source_fps=rate), dict[int, torch.Tensor](), set(numbers.flat)
    for clip in numbers:
        while clip[-1] not in held:
            if (frame := next(frames, None)) is None:
                raise VideoReadError(f"{describe(video)} ends before frame {clip[-1]}.")
            if frame.number in wanted:
                (held[frame.number],) = processor.resize(
                    torch.from_numpy(frame.image.copy()).permute(2, 0, 1)[None], processor.size
                )
        yield torch.stack([held[number] for number in clip.tolist()]).numpy()
        held = {number: frame for number, frame in held.items() if number >= clip[0]}


@torch.inference_mode()
def detect_clips(model: PreTrainedModel, processor: VideoDetectionProcessor, clips: torch.Tensor) -> np.ndarray:
    """All that a detector says about clips (batch_size, num_frames, num_channels, height, width) uint8, see
    [`key_frame_clips`]: (batch_size, num_queries, 5 + num_labels) float32, the score of being a person; left, top,
    right and bottom as shares of width and height; and the score of each action."""
    inputs = processor(list(clips), do_resize=False, device=model.device, return_tensors="pt")
    sizes = inputs["original_sizes"]
    outputs = model(inputs["pixel_values"].to(model.dtype), original_sizes=sizes)
    found = processor.post_process_action_detection(outputs, threshold=0.0, original_sizes=sizes, original=True)
    rows = [torch.cat([each["scores"][:, None], each["boxes"], each["action_scores"]], dim=-1) for each in found]
    return torch.stack(rows).float().cpu().numpy()


def read_persons(
    seconds: Sequence[float],
    rows: Sequence[np.ndarray],
    class_names: Sequence[str],
    *,
    size: tuple[float, float],
    person_threshold: float,
    action_threshold: float,
) -> list[KeyFrame]:
    """The persons and actions above thresholds, from what `detect_clips` gives for each key frame, at rising times.
    Boxes are for frames of `size`, height and width; (1, 1) keeps them as shares."""
    height, width = size
    found = []
    for of_frame in rows:
        persons = []
        for score, *box_and_actions in of_frame[of_frame[:, 0] >= person_threshold].tolist():
            best = sorted(zip(class_names, box_and_actions[4:], strict=True), key=lambda pair: -pair[1])
            actions = {name: score for name, score in best if score >= action_threshold}
            box = tuple(np.multiply(box_and_actions[:4], (width, height, width, height)).tolist())
            persons.append(Person(-1, score, box, actions))
        found.append(persons)
    return with_tracks(seconds, found)


def with_tracks(seconds: Sequence[float], found: Sequence[Sequence[Person]]) -> list[KeyFrame]:
    """Key frames at rising times, whose persons get their tracks here."""
    tracks_of = assign_tracks([np.reshape([each.box for each in persons], (-1, 4)) for persons in found], seconds)
    return [
        KeyFrame(second, sorted(each._replace(track=track) for track, each in zip(tracks, persons, strict=True)))
        for second, persons, tracks in zip(seconds, found, tracks_of, strict=True)
    ]


def assign_tracks(boxes: Sequence[np.ndarray], seconds: Sequence[float]) -> list[list[int]]:
    """Numbers for boxes, (n, 4) for each frame, at rising seconds, that are the same from one frame to the next; they
    count from 0, in the order in which tracks begin. Boxes are matched to the last ones of the tracks so that the sum
    of their IoU is largest, and each is at least `MIN_TRACK_IOU`. `MAX_MISSED` frames in a row without a box do not
    end a track, at the median distance of two frames, so it ends in a longer pause. It is an `ImportError` if scipy is
    not installed."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise ImportError("Tracks are found with scipy: pip install 'hf-video-models[detection]'.") from error
    from torchvision.ops import box_iou

    # Halfway to the next frame, so that rounding does not matter.
    longest = (MAX_MISSED + 1.5) * np.median(np.diff(seconds)) if len(seconds) > 1 else math.inf
    last: dict[int, tuple[float, np.ndarray]] = {}
    numbers: list[list[int]] = []
    num_tracks = 0
    for time, of_frame in zip(seconds, boxes, strict=True):
        open_tracks = [track for track, (seen, _) in last.items() if time - seen <= longest]
        found = [-1] * len(of_frame)
        if open_tracks and len(of_frame):
            known = np.stack([last[track][1] for track in open_tracks])
            overlaps = box_iou(torch.as_tensor(known), torch.as_tensor(of_frame)).numpy()
            for row, column in zip(*linear_sum_assignment(-overlaps), strict=True):
                if overlaps[row, column] >= MIN_TRACK_IOU:
                    found[column] = open_tracks[row]
        for place, box in enumerate(of_frame):
            if found[place] < 0:
                found[place], num_tracks = num_tracks, num_tracks + 1
            last[found[place]] = time, box
        numbers.append(found)
    return numbers


def thresholds_of(processor: VideoDetectionProcessor, settings: DetectSettings) -> dict[str, float]:
    """The smallest scores of a person, by default the processor's, and of an action."""
    person = processor.person_threshold if settings.person_threshold is None else settings.person_threshold
    return {"person_threshold": person, "action_threshold": settings.action_threshold}


def as_json(video: str, size: tuple[int, int], key_frames: Sequence[KeyFrame]) -> str:
    """A JSON object with the name, `width` and `height` of a video, and its key frames, a line each."""
    frames = [
        json.dumps({"second": frame.second, "persons": [_rounded(each)._asdict() for each in frame.persons]})
        for frame in key_frames
    ]
    head, lines = json.dumps({"video": video, "width": size[1], "height": size[0]}), ",\n  ".join(frames)
    return f'{head[:-1]}, "key_frames": [\n  {lines}\n]}}\n'


def as_csv(video: str, size: tuple[int, int], key_frames: Sequence[KeyFrame]) -> str:
    """A table with a row for each action of a person; one without an action has one row."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow("video second track score x1 y1 x2 y2 action action_score".split())
    for frame in key_frames:
        for each in map(_rounded, frame.persons):
            for action, score in each.actions.items() or [("", "")]:
                table.writerow([video, frame.second, each.track, each.score, *each.box, action, score])
    return text.getvalue()


WRITERS = {".json": as_json, ".csv": as_csv}


def _rounded(person: Person) -> Person:
    """The person with the decimals that say something: hundredths of a pixel, and scores as in AVA's files."""
    actions = {name: round(score, 5) for name, score in person.actions.items()}
    return Person(person.track, round(person.score, 5), tuple(round(value, 2) for value in person.box), actions)
