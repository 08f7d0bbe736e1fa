"""Measures how much two agree about what videos show: two persons, or a model and a person.

- Cohen's kappa (https://doi.org/10.1177/001316446002000104) is of moments, one for each frame, and of bins of 1 s. A
  class is in a bin if it is at half of its moments or more. Kappa of a class asks whether the class is there; that of
  all asks for the set of classes, of which "none" is one.
- A segment of one is found by the other if their temporal IoU is at least 0.5, each at most once; F1 is of these.
- A bout is a segment. Latency is the time from the begin of what both looked at to the first, the mean over videos.
- Time at which one of the two did not look counts for neither. Intervals are of 95 %, from 1000 draws of videos.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hf_video.inference.segments import Segment
from hf_video.texts import count, table_lines

from .matching import find_annotations

_TIOU, _NUM_DRAWS = 0.5, 1000


class Compared(NamedTuple):
    """A video: seconds of the moments that are compared, (n,) float64, in their order; begins and ends of the time at
    which both looked, in their order; and the segments of each."""

    moments: np.ndarray
    known: Sequence[tuple[float, float]]
    first: Sequence[Segment]
    second: Sequence[Segment]


def cohen_kappa(counts: np.ndarray) -> np.ndarray:
    """Cohen's kappa of counts (..., 3, num_labels): how often both chose a label, the first did, and the second did.
    It is NaN where both chose one label alone."""
    agreed, first, second = np.moveaxis(counts.astype(np.float64), -2, 0)
    total = first.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = (first * second).sum(axis=-1) / total**2
        return (agreed.sum(axis=-1) / total - expected) / (1 - expected)


@np.errstate(invalid="ignore", divide="ignore")
def measure_agreement(videos: Sequence[Compared], class_names: Sequence[str]) -> dict[str, Any]:
    """The agreement of two about videos, as JSON can hold it.

    Args:
        videos: what each says of each video.
        class_names: the classes to measure; segments of others are left out.

    Returns:
        `num_videos`; `num_seconds` at which both looked; `all`, and `classes` by name, with `kappa_frames`,
        `kappa_bins` and `f1`, None where there is nothing to divide by; `bouts`, `seconds` and `latency`, each of the
        first and of the second; and low and high of these in `intervals`, which is empty for a single video.

    Raises:
        ValueError: there is no class, or no moment that both looked at.
    """
    shown = [_shown(video, class_names) for video in videos]
    if not class_names or not sum(len(moments) for moments, _ in shown):
        raise ValueError("There is no class, or no moment that both looked at, so agreement cannot be measured.")
    # Of each video, and of each class and, behind them, all.
    of_segments = np.stack([_segment_sums(video, class_names) for video in videos])
    frames, bins = map(_counts, zip(*shown, strict=True))
    figures: dict[str, tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]] = {
        "kappa_frames": (cohen_kappa, frames),
        "kappa_bins": (cohen_kappa, bins),
        "f1": (lambda sums: 2 * sums[..., 0] / (sums[..., 1] + sums[..., 2]), of_segments),
        "bouts": (lambda sums: sums[..., 1:3].astype(int), of_segments),
        "seconds": (lambda sums: sums[..., 3:5], of_segments),
        "latency": (lambda sums: sums[..., 5:7] / sums[..., 7:9], of_segments),
    }
    num_videos, owners = len(videos), [dict[str, Any](intervals={}) for _ in range(len(class_names) + 1)]
    draws = np.random.default_rng(0).multinomial(num_videos, [1 / num_videos] * num_videos, _NUM_DRAWS)
    for name, (figure, sums) in figures.items():
        with warnings.catch_warnings(action="ignore"):  # of a figure that no draw has
            bands = np.nanpercentile(figure(np.tensordot(draws, sums, 1)), [2.5, 97.5], axis=0)
        columns = _plain(figure(sums.sum(axis=0))), _plain(np.moveaxis(bands, 0, -1))
        for owner, value, low_high in zip(owners, *columns, strict=True):
            owner[name] = value
            owner["intervals"] |= {name: low_high} if num_videos > 1 else {}
    num_seconds = float(sum(end - begin for video in videos for begin, end in video.known))
    classes = dict(zip(class_names, owners, strict=False))
    return {"num_videos": num_videos, "num_seconds": num_seconds, "all": owners[-1], "classes": classes}


def _shown(video: Compared, class_names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Which classes are at the moments that both looked at, and in bins: (n, 2, num_classes) bool."""
    is_known = np.zeros(len(video.moments), bool)
    for begin, end in video.known:
        is_known[slice(*np.searchsorted(video.moments, (begin, end)))] = True
    moments = video.moments[is_known]
    shown = np.zeros((len(moments), 2, len(class_names)), bool)
    for side, segments in enumerate((video.first, video.second)):
        for each in segments:
            if each.label in class_names:
                inside = slice(*np.searchsorted(moments, (each.start, each.end)))
                shown[inside, side, class_names.index(each.label)] = True
    _, starts, sizes = np.unique(np.floor(moments), return_index=True, return_counts=True)
    return shown, 2 * np.add.reduceat(shown.astype(int), starts) >= sizes[:, None, None] if len(moments) else shown


def _counts(shown: Sequence[np.ndarray]) -> np.ndarray:
    """The counts for `cohen_kappa` of each class in each video, and of sets of classes, (num_videos, num_classes + 1,
    3, num_labels)."""
    joined, video = np.concatenate(shown), np.repeat(np.arange(len(shown)), [*map(len, shown)])
    sets, places = np.unique(np.packbits(joined, axis=2).reshape(2 * len(joined), -1), axis=0, return_inverse=True)
    labels = np.concatenate([joined, places.reshape(-1, 2, 1)], axis=2)
    counts = np.zeros((len(shown), labels.shape[2], 3, max(len(sets), 2)))
    for column, (first, second) in enumerate(np.moveaxis(labels, (2, 1), (0, 1))):
        for row, (values, where) in enumerate(((first, first == second), (first, ...), (second, ...))):
            np.add.at(counts, (video[where], column, row, values[where]), 1)
    return counts


def _segment_sums(video: Compared, names: Sequence[str]) -> np.ndarray:
    """Of each class and of all, (num_classes + 1, 9): how many segments both have; and of each person the number of
    segments, their seconds, the time to the first one, and 1 if there is one."""
    sums, pair = np.zeros((len(names) + 1, 9)), list[np.ndarray]()
    begin = min(video.known, default=(0.0, 0.0))[0]
    for side, segments in enumerate((video.first, video.second)):
        rows = []
        for each in segments:
            cut = ((max(each.start, since), min(each.end, until)) for since, until in video.known)
            if (parts := [(since, until) for since, until in cut if until > since]) and each.label in names:
                times = parts[0][0], parts[-1][1], sum(until - since for since, until in parts)
                rows += [(*times, label) for label in (names.index(each.label), len(names))]
        pair.append(np.array(sorted(rows), np.float64).reshape(-1, 4))
        labels = pair[-1][:, 3].astype(int)
        begun, places = np.unique(labels, return_index=True)
        np.add.at(sums[:, 1 + side], labels, 1)
        np.add.at(sums[:, 3 + side], labels, pair[-1][:, 2])
        sums[begun, 5 + side], sums[begun, 7 + side] = pair[-1][places, 0] - begin, 1
    groups = [rows[:, 3].astype(int) for rows in pair]
    is_found = find_annotations(pair[0][:, :2], groups[0], pair[1][:, :2], groups[1], [_TIOU])[0] >= 0
    sums[:-1, 0] = np.bincount(groups[0][is_found], minlength=len(sums))[:-1]
    sums[-1, 0] = sums[:-1, 0].sum()
    return sums


def _plain(values: np.ndarray) -> Any:
    """Numbers as JSON has them, None for NaN."""
    return np.where(np.isnan(values), np.array(None), values.astype(object)).tolist()


def tell_agreement(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what [`measure_agreement`] gives."""
    drawn = (
        "in brackets: 95 % intervals over videos" if result["num_videos"] > 1 else "one video gives no 95 % intervals"
    )
    figures = ("kappa, frames", "kappa, 1 s", f"F1@{_TIOU * 100:.0f}", "bouts", "seconds", "first bout begins at, s")
    rows = [("class", *figures)]
    for name, each in {"all": result["all"], **result["classes"]}.items():
        cells = [_text(each[key], each["intervals"].get(key)) for key in ("kappa_frames", "kappa_bins", "f1")]
        rows.append((name, *cells, *(" / ".join(map(_text, each[key])) for key in ("bouts", "seconds", "latency"))))
    looked = f"{result['num_seconds']:.1f} s that both looked at; for all, time without a row is a class"
    said = f"{count(result['num_videos'], 'video')}, {looked}; {drawn}"
    sides = f"bouts, seconds and first bout: {result.get('data', 'model')} / {result.get('against', 'person')}"
    return [said, sides, "", *table_lines(rows)]


def _text(value: float | None, low_high: Sequence[float | None] | None = None) -> str:
    shown = "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    return shown if low_high is None else f"{shown} [{', '.join(map(_text, low_high))}]"
