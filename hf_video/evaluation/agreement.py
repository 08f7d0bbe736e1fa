"""Measures how much two agree about what videos show: two persons, or a model and a person.

- Cohen's kappa (https://doi.org/10.1177/001316446002000104) is of moments, one for each frame, and of bins of 1 s. A
  class is in a bin if it is at half of its moments or more. Kappa of a class asks whether the class is there; that of
  all asks for the set of classes, of which "none" is one.
- A segment of one is found by the other if their temporal IoU is at least 0.5, each at most once; F1 is of these.
- A bout is a segment. Latency is the time from the begin of what both looked at to the first bout, the mean over the
  videos with the class.
- Time at which one of the two did not look counts for neither.
- Intervals are of 95 %, from 1000 draws of as many videos, with replacement.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hf_video.inference.segments import Segment

from .matching import find_annotations

TIOU, _NUM_DRAWS = 0.5, 1000
_KAPPAS = ("kappa_frames", "kappa_bins")


class Compared(NamedTuple):
    """A video: seconds of the moments that are compared, (n,) float64, in their order; begins and ends of the time at
    which both looked, in their order; and the segments of each."""

    moments: np.ndarray
    known: Sequence[tuple[float, float]]
    first: Sequence[Segment]
    second: Sequence[Segment]


@np.errstate(invalid="ignore", divide="ignore")
def cohen_kappa(counts: np.ndarray) -> np.ndarray:
    """Cohen's kappa of counts (..., 3, num_labels): how often both chose a label, the first did, and the second did.
    It is NaN where both chose one label alone."""
    agreed, first, second = np.moveaxis(counts.astype(np.float64), -2, 0)
    total = first.sum(axis=-1)
    expected = (first * second).sum(axis=-1) / total**2
    return (agreed.sum(axis=-1) / total - expected) / (1 - expected)


@np.errstate(invalid="ignore", divide="ignore")
def measure_agreement(videos: Sequence[Compared], class_names: Sequence[str]) -> dict[str, Any]:
    """The agreement of two about videos, as JSON can hold it.

    Args:
        videos: what each says of each video.
        class_names: the classes to measure; segments of others are left out.

    Returns:
        `num_videos`; `num_seconds` at which both looked; `all`, and `classes` by name. They have `kappa_frames`,
        `kappa_bins` and `f1`, None where there is nothing to divide by; `bouts`, `seconds` and, but for all,
        `latency`, each of the first and of the second; and low and high of these in `intervals`, which is empty for a
        single video.

    Raises:
        ValueError: there is no class, or no moment that both looked at.
    """
    shown, bins = zip(*(_shown(video, class_names) for video in videos), strict=True) if videos else ((), ())
    if not class_names or not sum(map(len, shown)):
        raise ValueError("There is no class, or no moment that both looked at, so agreement cannot be measured.")
    shape = len(videos), len(class_names)
    found, seconds, latency = np.zeros((*shape, 3)), np.zeros((*shape, 2)), np.zeros((*shape, 2, 2))
    for number, video in enumerate(videos):
        pair = [_bouts(each, video.known, class_names) for each in (video.first, video.second)]
        labels = [rows[:, 0].astype(int) for rows in pair]
        hits = find_annotations(pair[0][:, 1:3], labels[0], pair[1][:, 1:3], labels[1], [TIOU])[0] >= 0
        for column, each in enumerate((labels[0][hits], *labels)):
            found[number, :, column] = np.bincount(each, minlength=len(class_names))
        for side, (rows, each) in enumerate(zip(pair, labels, strict=True)):
            np.add.at(seconds[number, :, side], each, rows[:, 3])
            begun, places = np.unique(each, return_index=True)
            latency[number, begun, side, 0], latency[number, begun, side, 1] = rows[places, 1] - video.known[0][0], 1
    bouts = found[..., 1:].astype(int)
    figures: dict[str, tuple[Callable[[np.ndarray], np.ndarray], np.ndarray, np.ndarray | None]] = {
        **{name: (cohen_kappa, *_counts(rows)) for name, rows in zip(_KAPPAS, (shown, bins), strict=True)},
        "f1": (lambda sums: 2 * sums[..., 0] / (sums[..., 1] + sums[..., 2]), found, found.sum(axis=1)),
        "bouts": (np.asarray, bouts, bouts.sum(axis=1)),
        "seconds": (np.asarray, seconds, seconds.sum(axis=1)),
        "latency": (lambda sums: sums[..., 0] / sums[..., 1], latency, None),
    }
    draws = np.random.default_rng(0).multinomial(len(videos), [1 / len(videos)] * len(videos), _NUM_DRAWS)
    of_all, *of_classes = owners = [dict[str, Any](intervals={}) for _ in ("all", *class_names)]
    for name, (figure, by_class, of_sets) in figures.items():
        for place, owner in enumerate(owners):
            sums = of_sets if place == 0 else by_class[:, place - 1]
            if sums is not None:
                owner[name] = _plain(figure(sums.sum(axis=0)))
                if len(videos) > 1:
                    with warnings.catch_warnings(action="ignore"):  # a figure that no draw has
                        band = np.nanpercentile(figure(np.tensordot(draws, sums, 1)), [2.5, 97.5], axis=0)
                    owner["intervals"][name] = _plain(band.T)
    num_seconds = sum(end - begin for video in videos for begin, end in video.known)
    classes = dict(zip(class_names, of_classes, strict=True))
    return {"num_videos": len(videos), "num_seconds": float(num_seconds), "all": of_all, "classes": classes}


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


def _counts(shown: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The counts for `cohen_kappa` of each class in each video, (num_videos, num_classes, 3, 2), and of sets of
    classes, (num_videos, 3, num_sets)."""
    joined, video = np.concatenate(shown), np.repeat(np.arange(len(shown)), [*map(len, shown)])

    def count(labels: np.ndarray, num_labels: int) -> np.ndarray:
        counts = np.zeros((len(shown), 3, num_labels))
        is_same = labels[:, 0] == labels[:, 1]
        for row, (of_row, where) in enumerate(((0, is_same), (0, slice(None)), (1, slice(None)))):
            np.add.at(counts, (video[where], row, labels[where, of_row]), 1)
        return counts

    packed = np.packbits(joined, axis=2).reshape(2 * len(joined), -1)
    sets, labels = np.unique(packed, axis=0, return_inverse=True)
    by_class = [count(joined[:, :, number].astype(int), 2) for number in range(joined.shape[2])]
    return np.stack(by_class, axis=1), count(labels.reshape(-1, 2), len(sets))


def _bouts(
    segments: Sequence[Segment], known: Sequence[tuple[float, float]], class_names: Sequence[str]
) -> np.ndarray:
    """Class id, start, end and seconds of each segment, as far as both looked, (num_bouts, 4), by start."""
    rows = []
    for each in segments:
        parts = [(max(each.start, begin), min(each.end, end)) for begin, end in known]
        parts = [(begin, end) for begin, end in parts if end > begin]
        if parts and each.label in class_names:
            length = sum(end - begin for begin, end in parts)
            rows.append((class_names.index(each.label), parts[0][0], parts[-1][1], length))
    return np.array(sorted(rows, key=lambda row: row[1:]), np.float64).reshape(-1, 4)


def _plain(values: np.ndarray) -> Any:
    """Numbers as JSON has them, None for NaN."""
    return np.where(np.isnan(values), None, np.asarray(values).astype(object)).tolist()


def tell_agreement(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what [`measure_agreement`] gives."""
    drawn = "in brackets intervals of 95 % over videos" if result["num_videos"] > 1 else "no intervals of one video"
    table = [["class", "kappa, frames", "kappa, 1 s", f"F1@{TIOU * 100:.0f}", "bouts", "seconds", "first after, s"]]
    for name, each in {"all": result["all"], **result["classes"]}.items():
        cells = [_text(each[key], each["intervals"].get(key)) for key in (*_KAPPAS, "f1")]
        pairs = [" / ".join(map(_text, each.get(key, ()))) for key in ("bouts", "seconds", "latency")]
        table.append([" ".join(name.split()), *cells, *pairs])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
    return [f"{result['num_videos']} videos, {result['num_seconds']:.1f} s that both looked at; {drawn}", "", *rows]


def _text(value: float | None, low_high: Sequence[float | None] | None = None) -> str:
    shown = "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    return shown if low_high is None else f"{shown} [{', '.join(map(_text, low_high))}]"
