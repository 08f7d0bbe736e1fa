"""Instants in time from class scores: local maxima that no higher one is near."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

_ROUNDING = 1e-6


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
        self._half, self._window = width / 2 + _ROUNDING, (width if window is None else window) + _ROUNDING
        # Moments that may be needed, and which of them is the first that is not answered.
        self._moments, self._next = deque[tuple[float, np.ndarray]](), 0

    def add(self, seconds: float, scores: np.ndarray) -> list[tuple[int, float, float]]:
        """Class, seconds and score of each instant that is certain with the next moment, of scores (num_classes,)."""
        if not self.class_ids:
            return []
        self._moments.append((seconds, np.asarray(scores, np.float64)[self.class_ids]))
        return self._find(seconds)

    def finish(self) -> list[tuple[int, float, float]]:
        """The instants that are left. Another video may then begin."""
        found = self._find(math.inf)
        self._moments.clear()
        self._next = 0
        return found

    def _find(self, now: float) -> list[tuple[int, float, float]]:
        found, reach = list[tuple[int, float, float]](), self._half + self._window
        while self._next < len(self._moments) and self._moments[self._next][0] + reach < now:
            times, scores = map(np.array, zip(*self._moments, strict=True))
            seconds = times[self._next]
            rivals = np.flatnonzero(np.abs(times - seconds) <= self._window)
            is_near = np.abs(times[rivals, None] - times) <= self._half
            # What is equal stays so, whatever the order of a sum.
            means = (is_near @ scores / is_near.sum(axis=1, keepdims=True)).round(9)
            place = self._next - rivals[0]
            near, weights = times[is_near[place]], scores[is_near[place]]
            is_best = (means[:place] < means[place]).all(axis=0) & (means[place + 1 :] <= means[place]).all(axis=0)
            for at in np.flatnonzero(is_best & (weights.max(axis=0) >= self.onset)):
                of_class = weights[:, at]
                middle = np.average(near, weights=of_class) if of_class.any() else seconds
                found.append((self.class_ids[at], float(middle), float(of_class.max())))
            self._next += 1
            while self._moments[0][0] < seconds - reach:
                self._moments.popleft()
                self._next -= 1
        return found


def find_points(
    times: np.ndarray, scores: np.ndarray, class_ids: Sequence[int], width: float
) -> list[tuple[int, float, float]]:
    """Class, seconds and score of all instants in scores (n, num_classes) of moments (n,), however low, see
    [`PointFinder`]."""
    finder = PointFinder(class_ids, width)
    found = [each for time, row in zip(times, scores, strict=True) for each in finder.add(time, row)]
    return found + finder.finish()
