"""Makes labels of frames from segments of videos: which class, or which classes, a moment shows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset

from .checks import read_durations
from .holding_out import TIME, VIDEO, hold_out
from .rows import label_ids, label_names

UNKNOWN = -100
# Labels of moments at a border do not depend on rounding.
_ROUNDING = 1e-6


class AnnotatedVideo(NamedTuple):
    """A video, its labelled segments, and the part of it that is used.

    Attributes:
        row: the first of its rows, for `open_video`.
        starts, ends: (num_segments,) float64 seconds; infinite for a segment that has no end.
        labels: the class ids of each segment.
        begin, end: seconds between which the video is used.
    """

    row: Mapping[str, Any]
    starts: np.ndarray
    ends: np.ndarray
    labels: list[list[int]]
    begin: float
    end: float

    def labels_at(
        self, seconds: np.ndarray, num_classes: int, background: int | None = None, several: bool = False
    ) -> np.ndarray:
        """The labels of moments.

        Args:
            seconds: (n,) after the first frame.
            num_classes: number of classes.
            background: the class of a moment outside of all segments; by default it is unknown.
            several: whether a moment may have several classes.

        Returns:
            (n,) int64 class ids, or, with `several`, zeros and ones (n, num_classes) float32. -100 is unknown.
        """
        is_inside = (seconds[:, None] >= self.starts - _ROUNDING) & (seconds[:, None] < self.ends - _ROUNDING)
        shown = np.zeros((len(seconds), num_classes), bool)
        for column, ids in enumerate(self.labels):
            for label in ids:
                shown[:, label] |= is_inside[:, column]
        is_outside = ~is_inside.any(axis=1)
        if background is not None:
            shown[is_outside, background] = True
        is_unknown = (seconds < self.begin - _ROUNDING) | (seconds > self.end + _ROUNDING)
        is_unknown |= is_outside if background is None else False
        if several:
            return np.where(is_unknown[:, None], np.float32(UNKNOWN), shown.astype(np.float32))
        return np.where(is_unknown, UNKNOWN, shown.argmax(axis=1))


def annotated_videos(dataset: Dataset) -> list[AnnotatedVideo]:
    """The videos of rows of `load_video_dataset`, in the order of their first rows.

    Raises:
        ValueError: a video has no times, as a folder of frames.
        VideoReadError: a video cannot be read.
    """
    rows_of = defaultdict[str, list[int]](list)
    for number, video in enumerate(dataset["video"][:]):
        rows_of[video].append(number)
    durations = read_durations(dataset.select([numbers[0] for numbers in rows_of.values()]), share=True)
    starts, ends, ids = dataset["start"][:], dataset["end"][:], label_ids(dataset)
    videos = []
    for video, rows in rows_of.items():
        row = dataset[rows[0]]
        duration = durations[video]
        if not duration:
            raise ValueError(f"{video} has no times, so its frames cannot be labelled: give a video file.")
        videos.append(
            AnnotatedVideo(
                row,
                np.array([starts[each] or 0.0 for each in rows]),
                np.array([np.inf if ends[each] is None else ends[each] for each in rows]),
                [ids[each] for each in rows],
                0.0,
                duration,
            )
        )
    return videos


def have_several_labels(videos: Sequence[AnnotatedVideo]) -> bool:
    """Whether a moment of the videos has more than one class."""
    for video in videos:
        order = np.argsort(video.starts, kind="stable").tolist()
        for place, number in enumerate(order):
            classes = set(video.labels[number])
            for other in order[place + 1 :]:
                if video.starts[other] >= video.ends[number] - _ROUNDING:
                    break
                classes |= set(video.labels[other])
            if len(classes) > 1:
                return True
    return False


def hold_out_ends(videos: Sequence[AnnotatedVideo], fraction: float) -> tuple[list[AnnotatedVideo], ...]:
    """The videos without the last share of each, and these last shares."""
    cuts = [video.begin + (1 - fraction) * (video.end - video.begin) for video in videos]
    pairs = list(zip(videos, cuts, strict=True))
    return [video._replace(end=cut) for video, cut in pairs], [video._replace(begin=cut) for video, cut in pairs]


def split_videos(
    splits: Mapping[str, Dataset], fraction: float, seed: int, split_by: str | None = None
) -> tuple[dict[str, list[AnnotatedVideo]], str]:
    """The videos of each split, with "validation" among them, and a sentence that says what was held out for it; empty
    if nothing was.

    Args:
        splits: from `load_video_dataset`. Without "validation", a part of "train" is held out.
        fraction, seed, split_by: see [`hold_out`]. By default whole videos are held out, and the end of a single one.
            By time, that is the last share of each video, whatever its classes.

    Raises:
        ValueError, VideoReadError: see [`hold_out`] and [`annotated_videos`].
    """
    rows, sentence = dict(splits), ""
    cuts = split_by == TIME or (split_by is None and len(set(rows["train"]["video"])) == 1)
    if "validation" not in rows and not cuts:
        rows["train"], rows["validation"] = hold_out(rows["train"], fraction, seed, split_by or VIDEO)
        sentence = rows["validation"].info.description
    videos = {name: annotated_videos(each) for name, each in rows.items()}
    if "validation" not in videos:
        videos["train"], videos["validation"] = hold_out_ends(videos["train"], fraction)
        sentence = f"The last {fraction:.0%} of each video are held out for validation."
    return videos, sentence


def frame_classes(dataset: Dataset, background: str | None) -> list[str]:
    """The names of the classes of frames by their ids: those of the data, and `background` behind them if it is not
    among them."""
    names = list(label_names(dataset))
    return names if background is None or background in names else [*names, background]
