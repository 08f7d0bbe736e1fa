"""Makes labels of frames from segments of videos: which class, or which classes, a moment shows."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from datasets import ClassLabel, Dataset, Features, List, Value

from .checks import read_durations
from .holding_out import TIME, VIDEO, hold_out
from .mixing import UNKNOWN
from .rows import DURATION, UNKNOWN_SPANS, VideoRows, label_ids, label_names, times_of

# Seconds around an instant that have its class if nobody says otherwise.
POINT_WIDTH = 0.5
# Labels of moments at a border do not depend on rounding.
_ROUNDING = 1e-6
_NOTHING = np.empty((0, 2))


class AnnotatedVideo(NamedTuple):
    """A video: the first of its rows; its labelled segments in seconds, of which ends may be infinite, and the class
    ids of each; begin and end of each part that is used; and seconds and class id of each instant, which is among the
    segments, too, with some seconds around it."""

    row: Mapping[str, Any]
    starts: np.ndarray
    ends: np.ndarray
    labels: list[list[int]]
    parts: Sequence[tuple[float, float]]
    instants: Sequence[tuple[float, int]] = ()

    def labels_at(
        self, seconds: np.ndarray, num_classes: int, background: int | None = None, several: bool = False
    ) -> np.ndarray:
        """The labels of moments, (n,) seconds after the first frame: (n,) int64 class ids; with `several` zeros and
        ones, (n, num_classes) float32. -100 is unknown, as a moment outside of all segments is without `background`.
        """
        is_inside = (seconds[:, None] >= self.starts - _ROUNDING) & (seconds[:, None] < self.ends - _ROUNDING)
        shown = np.zeros((len(seconds), num_classes), bool)
        for column, ids in enumerate(self.labels):
            for label in ids:
                shown[:, label] |= is_inside[:, column]
        is_outside = ~is_inside.any(axis=1)
        if background is not None:
            shown[is_outside, background] = True
        begins, ends = np.array(self.parts).T
        is_used = (seconds[:, None] >= begins - _ROUNDING) & (seconds[:, None] <= ends + _ROUNDING)
        is_unknown = ~is_used.any(axis=1) | (is_outside if background is None else False)
        if several:
            return np.where(is_unknown[:, None], np.float32(UNKNOWN), shown.astype(np.float32))
        return np.where(is_unknown, UNKNOWN, shown.argmax(axis=1))

    def known_instants(self) -> list[tuple[float, int]]:
        """The instants in the parts that are used."""
        return [each for each in self.instants if any(begin <= each[0] < end for begin, end in self.parts)]


def annotated_videos(dataset: Dataset, point_width: float = POINT_WIDTH) -> list[AnnotatedVideo]:
    """The videos of rows, in the order of their first rows; rows that end where they start are instants, which get
    `point_width` seconds."""
    durations = read_durations(dataset, share=True)
    if without := [video for video, duration in durations.items() if not duration]:
        raise ValueError(f"{without[0]} has no times, so its frames cannot be labelled: give a video file.")
    found = []
    by_video = _by_video(dataset, point_width)
    for (rows, starts, ends, labels, instants), duration in zip(by_video, durations.values(), strict=True):
        row = dataset[rows[0]]
        spans = sorted(map(tuple, row.get(UNKNOWN_SPANS) or ()))
        borders = [0.0, *(time for span in spans for time in span), duration]
        parts = [(begin, end) for begin, end in zip(borders[::2], borders[1::2], strict=True) if end > begin]
        points = [(time, label) for time, of_row in zip(instants, labels, strict=True) for label in of_row]
        found.append(AnnotatedVideo(row, starts, ends, labels, parts, [each for each in points if each[0] >= 0]))
    return found


def _by_video(
    dataset: Dataset, point_width: float
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray, list[list[int]], np.ndarray]]:
    """The rows of each video; their starts, ends and class ids; and the times of those that are instants, else NaN."""
    starts, ends = times_of(dataset)
    is_point, instants = starts == ends, np.where(starts == ends, starts, np.nan)
    starts = np.where(is_point, np.maximum(starts - point_width / 2, 0.0), starts)
    ends = np.where(is_point, ends + point_width / 2, ends)
    videos, ids = VideoRows(dataset), label_ids(dataset)
    for rows in map(videos.rows, range(len(videos))):
        yield rows, starts[rows], ends[rows], [ids[row] for row in rows], instants[rows]


def point_classes(dataset: Dataset) -> list[str]:
    """The classes of points: those of which all rows are instants."""
    starts, ends = times_of(dataset)
    kinds: dict[int, set[bool]] = defaultdict(set)
    for is_point, ids in zip((starts == ends).tolist(), label_ids(dataset), strict=True):
        for label in ids:
            kinds[label].add(is_point)
    return [name for label, name in enumerate(label_names(dataset)) if kinds[label] == {True}]


def have_several_labels(dataset: Dataset, point_width: float = POINT_WIDTH) -> bool:
    """Whether a moment of the videos of rows has more than one class."""
    for _, *columns, _ in _by_video(dataset, point_width):
        segments = sorted(zip(*columns, strict=True), key=lambda segment: segment[0])
        begins = [begin for begin, _, _ in segments]
        for place, (_, end, ids) in enumerate(segments):
            meanwhile = segments[place + 1 : bisect_left(begins, end - _ROUNDING)]
            if len(set(ids).union(*(others for _, _, others in meanwhile))) > 1:
                return True
    return False


def split_videos(
    splits: Mapping[str, Dataset],
    fraction: float,
    seed: int,
    split_by: str | None = None,
    background: str | None = None,
    point_width: float = POINT_WIDTH,
) -> tuple[dict[str, list[AnnotatedVideo]], str]:
    """The videos of each split, with "validation" among them, and a sentence that says what was held out for it; empty
    if nothing was. By default that are whole videos, and the last seconds of each class of a single one."""
    rows, sentence = dict(splits), ""
    is_cut = split_by == TIME or (split_by is None and len(set(rows["train"]["video"])) == 1)
    if "validation" not in rows and not is_cut:
        rows["train"], rows["validation"] = hold_out(rows["train"], fraction, seed, split_by or VIDEO)
        sentence = rows["validation"].info.description
    videos = {name: annotated_videos(each, point_width) for name, each in rows.items()}
    if "validation" not in videos:
        segments = _segments(videos["train"], frame_classes(rows["train"], background), background)
        kept, held_out = hold_out(segments, fraction, seed, TIME)
        times = [_times_by_video(each) for each in (segments, kept, held_out)]
        pairs = [_cut(video, *(each.get(video.row["video"], _NOTHING) for each in times)) for video in videos["train"]]
        for name, parts in zip(("train", "validation"), zip(*pairs, strict=True), strict=True):
            cut = zip(videos["train"], parts, strict=True)
            videos[name] = [video._replace(parts=of_video) for video, of_video in cut if of_video]
        sentence = held_out.info.description
    return videos, sentence


def _segments(videos: Sequence[AnnotatedVideo], names: list[str], background: str | None) -> Dataset:
    """The segments of videos as rows for `hold_out`, and those between them if these are background."""
    columns: dict[str, list[Any]] = {"video": [], "start": [], "end": [], "labels": [], DURATION: []}
    for video in videos:
        duration = video.parts[-1][1]
        found = [*zip(video.starts, np.minimum(video.ends, duration), video.labels, strict=True)]
        if background is not None:
            borders = [0.0, *np.ravel(video.parts)]  # between parts nobody looked
            unused = [*zip(borders[::2], borders[1::2], strict=False)]
            starts, ends = np.array(sorted([*unused, *(row[:2] for row in found)])).T
            ends = np.maximum.accumulate([0.0, *ends])
            gaps = zip(ends, [*starts, duration], strict=True)
            found += [(end, start, [names.index(background)]) for end, start in gaps if start - end > _ROUNDING]
        for row in found:
            for name, value in zip(columns, (video.row["video"], *row, duration), strict=True):
                columns[name].append(value)
    times = dict.fromkeys(("start", "end", DURATION), Value("float64"))
    labels = List(ClassLabel(names=names))
    return Dataset.from_dict(columns, Features({"video": Value("string"), **times, "labels": labels}))


def _times_by_video(segments: Dataset) -> dict[str, np.ndarray]:
    videos, times = VideoRows(segments), np.stack(times_of(segments), axis=1)
    return {video: times[videos.rows(number)] for number, video in enumerate(videos.videos.to_pylist())}


def _cut(
    video: AnnotatedVideo, every: np.ndarray, kept: np.ndarray, held_out: np.ndarray
) -> list[list[tuple[float, float]]]:
    """The parts of a video to train on, with moments without a label, and those that are held out."""
    used = np.array(video.parts)
    borders = np.unique(np.concatenate([every, kept, held_out, used]))
    middles = (borders[1:] + borders[:-1])[:, None] / 2
    is_used, is_labelled, is_kept, is_held = (
        ((middles > each[:, 0]) & (middles < each[:, 1])).any(axis=1) for each in (used, every, kept, held_out)
    )
    found = []
    for chosen in (is_used & ~is_held & (is_kept | ~is_labelled), is_used & is_held):
        changes = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(int)))
        found.append([(float(borders[begin]), float(borders[end])) for begin, end in changes.reshape(-1, 2)])
    return found


def frame_classes(dataset: Dataset, background: str | None) -> list[str]:
    """The names of the classes of frames by id: those of the data, and `background`."""
    names = list(label_names(dataset))
    return names if background is None or background in names else [*names, background]
