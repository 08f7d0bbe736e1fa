"""Instants in time from class scores: local maxima that no higher one is near."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_ROUNDING = 1e-6
_Moment = tuple[float, Any]


class _Neighbours:
    """Gives each moment with those less than `reach` seconds before and after it, as soon as they are known."""

    def __init__(self, reach: float) -> None:
        self.reach, self.moments, self._next = reach + _ROUNDING, deque[_Moment](), 0

    def ready(self, now: float) -> Iterator[tuple[list[_Moment], _Moment, list[_Moment]]]:
        while self._next < len(self.moments) and self.moments[self._next][0] + self.reach < now:
            moments, seconds = [*self.moments], self.moments[self._next][0]
            near = [abs(time - seconds) <= self.reach for time, _ in moments]
            before, after = (
                [each for each, is_near in zip(moments[part], near[part], strict=True) if is_near]
                for part in (slice(self._next), slice(self._next + 1, None))
            )
            yield before, moments[self._next], after
            self._next += 1
            while self.moments[0][0] < seconds - self.reach:
                self.moments.popleft()
                self._next -= 1


class PointFinder:
    """
    Finds the instants of some classes in scores of moments of a video, one after another. Memory does not grow with
    the video.

    A model learns a class in a width of time around each instant, so that the mean of the scores in this width is
    highest in its middle. A moment is an instant if no other within `window` seconds on either side has a higher mean,
    or the same one earlier: a local maximum with non-maximum suppression. The score of an instant is the highest in
    the width around it, which must be at least `onset`; its time is the mean of those there, weighted by scores.

    Args:
        class_ids: the numbers of the classes.
        width: seconds around an instant that have its class.
        window: seconds from an instant in which its class has no other; by default `width`, as what two closer ones
            learned overlaps.
        onset: the least score.
    """

    def __init__(
        self, class_ids: Sequence[int], width: float, window: float | None = None, onset: float = 0.0
    ) -> None:
        self.class_ids, self.onset = [*class_ids], onset
        self._reaches = width / 2, width if window is None else window
        self._scores, self._means = map(_Neighbours, self._reaches)

    def add(self, seconds: float, scores: np.ndarray) -> list[tuple[int, float, float]]:
        """Class, seconds and score of each instant that is certain with the next moment, of scores (num_classes,)."""
        if not self.class_ids:
            return []
        self._scores.moments.append((seconds, np.asarray(scores, np.float64)[self.class_ids]))
        return self._find(seconds)

    def finish(self) -> list[tuple[int, float, float]]:
        """The instants that are left. Another video may then begin."""
        found = self._find(math.inf)
        self._scores, self._means = map(_Neighbours, self._reaches)
        return found

    def _find(self, now: float) -> list[tuple[int, float, float]]:
        found = []
        for before, moment, after in self._scores.ready(now):
            times, scores = map(np.array, zip(*before, moment, *after, strict=True))
            totals = scores.sum(axis=0)
            middles = np.divide(times @ scores, totals, out=np.full(len(totals), moment[0]), where=totals > 0)
            self._means.moments.append((moment[0], (totals / len(times), middles, scores.max(axis=0))))
            found += self._maxima(moment[0])
        return found + (self._maxima(now) if now == math.inf else [])

    def _maxima(self, now: float) -> list[tuple[int, float, float]]:
        found = []
        for before, (_, (means, middles, highest)), after in self._means.ready(now):
            is_best = highest >= self.onset
            for _, (others, *_) in before:
                is_best &= means > others
            for _, (others, *_) in after:
                is_best &= means >= others
            for at in np.flatnonzero(is_best):
                found.append((self.class_ids[at], float(middles[at]), float(highest[at])))
        return found


def find_points(
    times: np.ndarray, scores: np.ndarray, class_ids: Sequence[int], width: float
) -> list[tuple[int, float, float]]:
    """Class, seconds and score of all instants in scores (n, num_classes) of moments (n,), however low, see
    [`PointFinder`]."""
    finder = PointFinder(class_ids, width)
    found = [each for time, row in zip(times, scores, strict=True) for each in finder.add(time, row)]
    return found + finder.finish()
