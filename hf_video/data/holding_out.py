"""Holds a part of labelled videos out for validation: whole videos, those with some values of a column, or the last
seconds of each class."""

import itertools
import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from datasets import Dataset

from hf_video.texts import count

from .checks import MAX_OPENED, find_copies, read_durations
from .folders import listed
from .rows import VideoRows, arrow_column, class_counts, label_ids, label_names, times_of, with_times

TIME, VIDEO = "time", "video"
# Between what is trained on and what is held out of one recording: at most so many seconds, and of a short recording
# so large a share of its labelled seconds.
_MAX_GAP, _GAP_SHARE = 2.0, 0.02
_WAY_OUT = "Add videos, split otherwise, or give a validation/ folder or validation.csv of your own."
# No part of a segment that is cut is shorter, in seconds; a whole segment may be.
_SHORTEST = 1.0


def further_columns(split_by: str | None) -> tuple[str, ...]:
    """The columns that `load_video_dataset` has to keep for `hold_out`."""
    return () if split_by in (None, TIME, VIDEO) else (split_by,)


def check_column(dataset: Dataset, split_by: str | None) -> None:
    """Refuses (`ValueError`) the name of a column to split by that has not a value in each row."""
    for name in further_columns(split_by):
        if name not in dataset.column_names or arrow_column(dataset, name).null_count:
            raise ValueError(
                f"The videos have no column {name!r} to split by, or not in each row. Give the name of a "
                "column that has a value in each row, or split by time or video."
            )


def hold_out(dataset: Dataset, fraction: float, seed: int, split_by: str | None = None) -> tuple[Dataset, Dataset]:
    """Split a data set of `load_video_dataset` in two, stratified by class.

    By "video", all rows of a file and of its exact copies stay together; by the name of a column, all rows with one of
    its values. Rare classes are drawn first (https://link.springer.com/chapter/10.1007/978-3-642-23808-6_10). Every
    class keeps at least one video, or value, for training. A class with two or more gives at least one, unless videos
    with several classes prevent it.

    By "time", the last seconds of each class in each file are held out. A gap of at most 2 s between the two parts of
    a class is in neither. Whole segments are held out if neither part gets less than half of the seconds that it
    should have. Otherwise a segment is cut, if at least a second is to be held out. The seed does not matter.

    Args:
        dataset: The rows to split, with the columns `video`, `label` or `labels`, `start` and `end`. Rows of
            `load_captions`, without classes, are split by "video".
        fraction: The share of every class that is held out, between 0 and 1.
        seed: The same seed chooses the same videos.
        split_by: "video", "time", or the name of a column; by default "video", and "time" where no video can be held
            out, as where all rows are segments of one recording.

    Returns:
        The rows to train on and the rows held out, both in their original order. Split by time, they have the start
        and end of what is left of them. `info.description` of the latter says in one line what was held out.

    Raises:
        ValueError: If a column is missing or has no value in a row, nothing can be held out, or nothing of a class is
            left for training.
        VideoReadError: If a video that is to be split by time cannot be read.
    """
    parts = None if split_by == TIME else _hold_out_groups(dataset, fraction, seed, split_by)
    train, held_out, what = parts or _hold_out_last_seconds(dataset, fraction)
    known = class_counts(dataset) > 0

    def without(rows: Dataset) -> str:
        absent = np.flatnonzero(known & (class_counts(rows) == 0)).tolist()
        return listed(repr(label_names(dataset)[label]) for label in absent)

    if not parts and (lost := without(train)):
        raise ValueError(
            f"Nothing of {lost} is left for training if the last seconds of each class are held out: other classes "
            f"have the same seconds. {_WAY_OUT}"
        )
    missing = without(held_out)
    why = "None of them has {}" if parts else "There is too little of {} to hold any out"
    more = f" {why.format(missing)}, so it is not measured." if missing else ""
    if parts and len(known) and split_by in (None, VIDEO) and len(set(held_out["video"])) == 1:
        more += " One video tells little: --split-by time holds out the last part of each video."
    held_out.info.description = f"Held out: {what}.{more}"
    return train, held_out


def _hold_out_groups(
    dataset: Dataset, fraction: float, seed: int, split_by: str | None
) -> tuple[Dataset, Dataset, str] | None:
    """The two parts by videos or the values of a column, and what is held out; None if that may be seconds."""
    name = "video" if split_by in (None, VIDEO) else split_by
    check_column(dataset, split_by)
    # The values are sorted, so that a draw does not depend on the order of rows.
    column = arrow_column(dataset, name).cast(pa.string()).to_numpy(zero_copy_only=False)
    if name == "video":
        copies = find_copies({"": dataset}, at_most=MAX_OPENED)
        column = np.array([copies.get(video, video) for video in column], dtype=object)
    values, groups = np.unique(column, return_inverse=True)
    is_held_out = _choose_groups(groups, label_ids(dataset), fraction, seed)
    if is_held_out.any():
        train, held_out = (dataset.select(np.flatnonzero(rows)) for rows in (~is_held_out, is_held_out))
        chosen = dict.fromkeys(values[groups[is_held_out]])
        kind = count(len(values), "video" if name == "video" else "value")
        if name != "video":
            kind += f" of {name} ({listed(chosen)})"
        elif len(chosen) <= 3:
            kind += f" ({', '.join(map(os.path.basename, chosen))})"
        return train, held_out, f"{len(chosen)} of {kind}"
    if split_by is not None or not label_names(dataset):
        kind = "video" if name == "video" else f"value of {name}"
        raise ValueError(
            f"No class has more than one {kind} ({len(values)} in all), so none can be held out. {_WAY_OUT}"
        )
    return None


def _choose_groups(group_of_row: np.ndarray, ids: Sequence[Sequence[int]], fraction: float, seed: int) -> np.ndarray:
    """Whether each row is in a group that is held out, (num_rows,) bool; False for all if no group can be."""
    generator = np.random.default_rng(seed)
    num_groups = group_of_row.max() + 1
    # The last column is for groups without a class, which are held out as if they had one of their own.
    has_class = np.zeros((num_groups, max(map(max, filter(None, ids)), default=0) + 2), dtype=bool)
    for group, of_row in zip(group_of_row, ids, strict=True):
        has_class[group, of_row] = True
    has_class[:, -1] = ~has_class.any(axis=1)
    num_of_class = has_class.sum(axis=0)
    num_kept = num_of_class.copy()
    held_out, is_settled = np.zeros((2, num_groups), dtype=bool)
    for label in np.argsort(num_of_class, kind="stable"):
        of_class = has_class[:, label]
        wanted = max(1, round(fraction * num_of_class[label])) - (held_out & of_class).sum()
        for group in generator.permutation(np.flatnonzero(of_class & ~is_settled)):
            if wanted > 0 and (num_kept[has_class[group]] > 1).all():
                held_out[group] = True
                num_kept -= has_class[group]
                wanted -= 1
        is_settled |= of_class
    return held_out[group_of_row]


def _hold_out_last_seconds(dataset: Dataset, fraction: float) -> tuple[Dataset, Dataset, str]:
    """The two parts by time, and what is held out. Each recording is split by itself."""
    videos, durations = VideoRows(dataset), read_durations(dataset)
    starts, ends = times_of(dataset)
    # A list may have ends that its videos do not reach.
    ends = np.maximum(np.minimum(ends, [durations[video] for video in dataset["video"]]), starts)
    classes = [frozenset(of_row) for of_row in label_ids(dataset)]
    train, held_out = np.full((2, len(dataset), 2), np.nan)
    gaps = set[float]()
    for rows in map(videos.rows, range(len(videos))):
        of_rows = [classes[row] for row in rows]
        train[rows], held_out[rows], gap = _split_recording(starts[rows], ends[rows], of_rows, fraction)
        if not np.isnan(held_out[rows]).all():
            gaps.add(gap)
    if not gaps:
        raise ValueError(f"No class has several videos ({len(videos)} in all) or long segments. {_WAY_OUT}")
    where = f"{len(videos)} videos" if len(videos) > 1 else os.path.basename(videos.videos[0].as_py())
    seconds = f"{min(gaps):g} to {max(gaps):g} s" if len(gaps) > 1 else f"{min(gaps):g} s"
    what = f"the last {100 * fraction:g} % of the seconds of each class of {where}"
    train_rows, held_out_rows = (_cut_rows(dataset, starts, ends, parts) for parts in (train, held_out))
    return train_rows, held_out_rows, f"{what}, with a gap of {seconds}"


def _split_recording(
    starts: np.ndarray, ends: np.ndarray, classes: Sequence[frozenset[int]], fraction: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Start and end, (num_segments, 2), of what of each segment is trained on, and of what is held out, NaN where that
    is nothing; and the gap in seconds. Segments of the same classes are split together."""
    gap = min(_MAX_GAP, round(_GAP_SHARE * (ends - starts).sum(), 2))
    train, held_out = np.full((2, len(starts), 2), np.nan)
    rows_of = {kind: [row for row, of_row in enumerate(classes) if of_row == kind] for kind in dict.fromkeys(classes)}
    for rows in map(np.array, rows_of.values()):
        cut = _last_cut(starts[rows], ends[rows], fraction)
        if _is_enough(starts[rows], np.minimum(ends[rows], cut - gap), np.minimum(ends[rows], cut)).any():
            rows = rows[ends[rows] > cut]
            held_out[rows] = np.stack([np.maximum(starts[rows], cut), ends[rows]], axis=1)
    is_held = ~np.isnan(held_out[:, 0])
    before = np.where(is_held, held_out[:, 0], ends)
    for kind, of_kind in rows_of.items():
        # Seconds of other classes may come up to those that are held out, and never overlap them.
        gaps = np.array([gap if kind & of_row else 0.0 for of_row in itertools.compress(classes, is_held)])
        taken = held_out[is_held] + np.stack([-gaps, gaps], axis=1)
        for row in of_kind:
            start, end = piece = _longest_piece(starts[row], before[row], *taken.T)
            if _is_enough(start, end, before[row]) or not (is_held[row] or ends[row] > starts[row]):
                train[row] = piece
    return train, held_out, gap


def _is_enough(start: np.ndarray, end: np.ndarray, whole_end: np.ndarray) -> np.ndarray:
    """Whether so much is left of a segment that it is trained on: a second, or half of it."""
    return (end > start) & (end - start >= np.minimum(_SHORTEST, (whole_end - start) / 2))


def _last_cut(starts: np.ndarray, ends: np.ndarray, fraction: float) -> float:
    """The second from which on segments are held out, NaN for none: between two if that comes near the fraction."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    total = (ends - starts).sum()
    wanted = fraction * total

    def seconds_after(time: float) -> float:
        return np.maximum(ends - np.maximum(starts, time), 0.0).sum()

    between = starts[1:][starts[1:] >= np.maximum.accumulate(ends)[:-1]]
    if len(between):
        held = np.array([seconds_after(time) for time in between])
        nearest = np.argmin(np.abs(held - wanted))
        is_near = wanted / 2 <= held[nearest] <= (total + wanted) / 2
        if is_near or wanted < _SHORTEST:
            return float(between[nearest])
    if wanted < _SHORTEST:
        return np.nan
    times = np.unique(np.concatenate([starts, ends]))
    return round(float(np.interp(-wanted, [-seconds_after(time) for time in times], times)), 3)


def _longest_piece(start: float, end: float, taken_from: np.ndarray, taken_to: np.ndarray) -> np.ndarray:
    """Start and end of the longest piece of a segment outside of what is taken; negative if none is."""
    order = np.argsort(taken_from)
    firsts = np.maximum([start, *np.maximum.accumulate(taken_to[order])], start)
    lasts = np.minimum([*taken_from[order], end], end)
    longest = np.argmax(lasts - firsts)
    return np.array([firsts[longest], lasts[longest]])


def _cut_rows(dataset: Dataset, starts: np.ndarray, ends: np.ndarray, parts: np.ndarray) -> Dataset:
    """The rows of which a part is given, with its start and end where they differ from those of the segment."""
    rows = np.flatnonzero(~np.isnan(parts[:, 0]))
    pairs = zip(parts[rows].T, (starts[rows], ends[rows]), strict=True)
    return with_times(dataset, rows, *(np.where(part == whole, np.nan, part) for part, whole in pairs))
