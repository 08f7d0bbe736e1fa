"""When classes begin and end in a live video, and how late that is known."""

from collections.abc import Callable
from typing import NamedTuple

from .segments import Segment, SegmentFinder


class ClassChange(NamedTuple):
    """
    The begin or the end of a segment.

    Attributes:
        time: seconds after the first frame.
        label: name of the class.
        begins: whether the class begins, else it ends.
        delay: seconds from the change until it is known; None for an end at which the video ended, was stopped or had
            a gap.
        segment: the segment, as far as it is known.
    """

    time: float
    label: str
    begins: bool
    delay: float | None
    segment: Segment


class ChangeFinder:
    """
    Finds the changes in a live video as soon as they are certain.

    Args:
        finder: what finds the segments.
        seconds: gives the time of the video at this moment.
    """

    def __init__(self, finder: SegmentFinder, seconds: Callable[[], float]) -> None:
        self._finder, self._seconds = finder, seconds
        self._begun = set[tuple[int, float]]()

    def add(self, closed: list[Segment], is_cut: bool = False) -> list[ClassChange]:
        """The changes in their order, after a window.

        Args:
            closed: the segments that the window completed.
            is_cut: whether they ended as the video did, or had a gap.
        """
        ends = set(closed)
        found = list[tuple[float, bool, Segment]]()
        for segment in [*closed, *self._finder.open_segments]:
            key = segment.class_id, segment.start
            if key not in self._begun:
                found.append((segment.start, True, segment))
                self._begun.add(key)
            if segment in ends:
                found.append((segment.end, False, segment))
                self._begun.discard(key)
        # At one moment a class ends before another begins.
        return [self._change(*change, is_cut) for change in sorted(found, key=lambda change: change[:2])]

    def _change(self, time: float, begins: bool, segment: Segment, is_cut: bool) -> ClassChange:
        delay = self._seconds() - time if begins or not is_cut else None
        return ClassChange(time, segment.label, begins, delay, segment)
