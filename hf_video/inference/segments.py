"""Segments in time from the class scores of windows: hysteresis thresholds, filling of gaps, least durations."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from hf_video.loading.class_names import background_of, class_names_of, points_of
from hf_video.processing import VideoClipProcessor
from hf_video.settings import closest

from .inference_settings import ONSET, SHORTEST_GAP, SHORTEST_SEGMENT
from .points import PointFinder
from .scores import is_frame_classifier, problem_type_of, require_classes, score_frames, score_windows

# Seconds. Times of windows are sums of fractions: 0.1 + 0.2 is not 0.3.
_ROUNDING = 1e-6


class Segment(NamedTuple):
    """A time in which a video shows a class, found or annotated: the name of the class; seconds after the first frame;
    a confidence, 1 for an annotation, of a [`SegmentFinder`] the mean score of the class over the windows of the
    segment, those of filled gaps included, each once; and the number of the class, -1 if it has none. An instant ends
    where it starts."""

    label: str
    start: float
    end: float
    score: float = 1.0
    class_id: int = -1

    @property
    def is_point(self) -> bool:
        """Whether it is an instant."""
        return self.start == self.end

    @property
    def shown_until(self) -> float:
        """The second up to which a picture shows it: an instant for a second."""
        return self.end + self.is_point


@dataclass(slots=True)
class _Run:
    """A segment that may still grow. The gap is what came after its end."""

    start: float
    end: float
    total: float = 0.0
    count: int = 0
    gap_total: float = 0.0
    gap_count: int = 0

    def add(self, end: float, score: float) -> None:
        """The next window belongs to the segment, and so does the gap before it."""
        self.end = end
        self.total += self.gap_total + score
        self.count += self.gap_count + 1
        self.gap_total, self.gap_count = 0.0, 0


class SegmentFinder:
    """
    Finds segments in the class scores of the windows of a video, one window after another. Time and memory for a
    window do not grow with the video, so files and live streams are treated alike.

    Borders. Between the middles of two windows, scores are taken to change linearly. A class begins or ends where its
    score passes the threshold; where one class follows another, if classes exclude each other, both change where their
    scores are equal. The first window also speaks for all of its first half, the last one for all of its second half.
    A score that is the share of a window that shows an event gives borders at the truth.

    Thresholds. A class is found from the first window with a score of at least `onset`, until a window with a score
    below `offset`. Then gaps shorter than `min_duration_off` are filled, then segments shorter than `min_duration_on`
    are dropped; the names and the order are those of `pyannote.audio`'s `Binarize`.

    Args:
        class_names: name of each class, in the order of the scores.
        onset: score that begins a segment, above 0 and at most 1.
        offset: a score below it ends the segment; by default `onset`.
        min_duration_on: shortest segment in seconds.
        min_duration_off: shortest gap between two segments of a class in seconds.
        exclusive: whether a moment has one class at most, as with softmax. A segment then also ends where another
            class has a higher score, of at least `onset`. A gap that holds a segment of another class is not filled.
        background: names of classes that get no segment. They still end segments of others if `exclusive`.
        points: names of classes that get instants in place of segments, see [`PointFinder`]; two of a class are at
            least `min_duration_off` apart.
        point_width: seconds around an instant that have its class.

    Raises:
        ValueError: for thresholds out of their bounds, or an unknown class in `background`.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        *,
        onset: float = ONSET,
        offset: float | None = None,
        min_duration_on: float = SHORTEST_SEGMENT,
        min_duration_off: float = SHORTEST_GAP,
        exclusive: bool = False,
        background: Collection[str] = (),
        points: Collection[str] = (),
        point_width: float = 0.0,
    ):
        offset = onset if offset is None else offset
        if not (0 <= offset <= onset <= 1 and onset):
            raise ValueError(f"offset={offset} and onset={onset}: 0 <= offset <= onset <= 1 and onset > 0.")
        for name in {*background} - {*class_names}:
            raise ValueError(f"The model has no class {name!r} as background. {closest(name, class_names)}".strip())
        self.class_names = list(class_names)
        self.onset, self.offset = onset, offset
        self.min_duration_on, self.min_duration_off = min_duration_on, min_duration_off
        self.exclusive = exclusive
        self.background = list(background)
        self.is_background = np.array([name in background for name in class_names], dtype=bool)
        self._has_segments = np.array([name not in {*background, *points} for name in class_names], dtype=bool)
        of_points = [id for id, name in enumerate(class_names) if name in points and name not in background]
        self._points = PointFinder(of_points, point_width, max(point_width, min_duration_off), onset)
        # By number of class, in the order in which they began.
        self._runs: dict[int, _Run] = {}
        # What the last window shows, background included if `exclusive`; its middle, end and scores.
        self._shown: set[int] = set()
        self._last: tuple[float, float, np.ndarray] | None = None

    def add(self, start: float, end: float, scores: Any, begins_anew: bool = False) -> list[Segment]:
        """The segments that are complete with the next window. Each is given once, as soon as nothing can change it.

        Args:
            start, end: seconds of the window, whose middle comes after that of the window before.
            scores: (num_classes,) from 0 to 1.
            begins_anew: whether the video had a gap before the window. Segments then end with the window before.

        Raises:
            ValueError: the scores are not finite. The object is then as before.
        """
        scores = np.asarray(scores, dtype=np.float64)
        if not np.isfinite(scores).all():
            raise ValueError(f"The scores of the window at {start:.3f} s are not finite.")
        middle = (start + end) / 2
        closed = self.finish() if begins_anew else []
        shown = self._shown_by(scores)
        borders = self._borders(shown, start, middle, scores)
        for index, run in self._runs.items():
            if index not in shown:
                run.end = borders.get(index, run.end)
                run.gap_total += float(scores[index])
                run.gap_count += 1
        for index in shown:
            if not self._has_segments[index]:
                continue
            if index in borders and not (index in self._runs and self._fills_gap(index, borders[index])):
                closed += self._close({index} & self._runs.keys())
                self._runs[index] = _Run(borders[index], middle)
            self._runs[index].add(middle, float(scores[index]))
        self._shown, self._last = shown, (middle, end, scores)
        # A class can come back at the middle at the earliest.
        hidden = {index: run for index, run in self._runs.items() if index not in shown}
        past = [each for each, run in hidden.items() if not _is_shorter(run.end, middle, self.min_duration_off)]
        return closed + self._close(past) + self._instants(self._points.add(middle, scores))

    @property
    def open_segments(self) -> list[Segment]:
        """The segments that have begun and go on, as far as they are known. One that is shorter than
        `min_duration_on` is not certain yet, and not among them."""
        return self._segments([(index, run) for index, run in self._runs.items() if index in self._shown])

    def finish(self) -> list[Segment]:
        """The segments that are left. Those still open end with the last window. Another video may then begin."""
        if self._last is None:
            return []
        for index in self._shown & self._runs.keys():
            self._runs[index].end = self._last[1]
        closed = self._close(list(self._runs))
        self._shown, self._last = set(), None
        return closed + self._instants(self._points.finish())

    def _instants(self, found: Iterable[tuple[int, float, float]]) -> list[Segment]:
        return [Segment(self.class_names[index], time, time, score, index) for index, time, score in found]

    def _shown_by(self, scores: np.ndarray) -> set[int]:
        """The classes that the next window shows: one at most if they exclude each other."""
        going_on = {index for index in self._shown & self._runs.keys() if scores[index] >= self.offset}
        if not self.exclusive:
            return going_on | set(np.flatnonzero((scores >= self.onset) & ~self.is_background).tolist())
        best = int(scores.argmax())
        is_held = scores[best] < self.onset or any(scores[index] == scores[best] for index in going_on)
        return going_on if is_held else {best}

    def _borders(self, shown: set[int], start: float, middle: float, scores: np.ndarray) -> dict[int, float]:
        """Seconds at which the classes begin and end that one of the last and the next window shows."""
        if self._last is None:
            return dict.fromkeys(shown, start)
        last_middle, _, last_scores = self._last
        begun, ended = shown - self._shown, self._shown - shown
        above = {index: (last_scores[index] - self.onset, scores[index] - self.onset) for index in begun}
        above |= {index: (last_scores[index] - self.offset, scores[index] - self.offset) for index in ended}
        if self.exclusive and begun and ended:
            (new,), (old,) = begun, ended
            # Else the new class was above the old one before, and the onset was what it waited for.
            if last_scores[new] <= last_scores[old]:
                above[new] = (last_scores[new] - last_scores[old], scores[new] - scores[old])
            above[old] = above[new]
        return {
            index: last_middle + (middle - last_middle) * float(before / (before - after) if before else 0)
            for index, (before, after) in above.items()
        }

    def _fills_gap(self, index: int, now: float) -> bool:
        """Whether the gap of a class that comes back is filled. What is too short inside of it is dropped then."""
        ended = self._runs[index].end
        if not _is_shorter(ended, now, self.min_duration_off):
            return False
        if self.exclusive:
            others = {other: run for other, run in self._runs.items() if other != index}
            inside = {other for other, run in others.items() if run.start > ended - _ROUNDING}
            if any(self._is_segment(self._runs[other]) for other in inside):
                return False
            for other in inside:
                del self._runs[other]
        return True

    def _close(self, indices: Iterable[int]) -> list[Segment]:
        return self._segments([(index, self._runs.pop(index)) for index in indices])

    def _segments(self, runs: Iterable[tuple[int, _Run]]) -> list[Segment]:
        found = [(index, run) for index, run in runs if self._is_segment(run)]
        return [Segment(self.class_names[id], run.start, run.end, run.total / run.count, id) for id, run in found]

    def _is_segment(self, run: _Run) -> bool:
        """Whether it is long enough. A score that only reaches the threshold gives no time at all."""
        return run.start < run.end and not _is_shorter(run.start, run.end, self.min_duration_on)


def _is_shorter(start: float, end: float, duration: float) -> bool:
    return end - start < duration - _ROUNDING


def segments_of(windows: Iterable[tuple[Any, ...]], finder: SegmentFinder) -> Iterator[Segment]:
    """The segments in windows, each as soon as it is complete: of [`ScoredWindow`]s, or tuples with the arguments of
    [`SegmentFinder.add`]. What `windows` raises comes after the segments that were still open, which then end."""
    try:
        for window in windows:
            yield from finder.add(*window[:4])
    except Exception:
        yield from finder.finish()
        raise
    yield from finder.finish()


def find_segments(
    model: PreTrainedModel,
    processor: VideoClipProcessor,
    video: Any,
    *,
    onset: float = ONSET,
    offset: float | None = None,
    min_duration_on: float = SHORTEST_SEGMENT,
    min_duration_off: float = SHORTEST_GAP,
    background: Collection[str] | None = None,
    **windows: Any,
) -> Iterator[Segment]:
    """The segments of a video, each as soon as it is complete: when it shows which class. Time and memory for a window
    do not grow with the video, which may be an endless stream.

    Args:
        model, processor: a classifier of videos or of frames in evaluation mode, and its processor.
        video: see [`window_batches`].
        onset, offset, min_duration_on, min_duration_off: see [`SegmentFinder`].
        background: names of classes that get no segment; by default the model's `background_label`.
        windows: options of [`window_batches`], such as `num_frames`, `stride`, `fps` and `batch_size`; for a
            classifier of frames those of [`score_frames`].

    Raises:
        ValueError: the model is a regression model, an option is out of its bounds, or scores are not finite.
        VideoReadError: the video cannot be read, or is damaged. The segments before the damage have been given; one
            that is open then ends there.
    """
    options = {"min_duration_on": min_duration_on, "min_duration_off": min_duration_off}
    finder = make_finder(model, background, onset=onset, offset=offset, **options)
    score = score_frames if is_frame_classifier(model) else score_windows
    return segments_of(score(model, processor, video, **windows), finder)


def make_finder(model: PreTrainedModel, background: Collection[str] | None = None, **options: Any) -> SegmentFinder:
    """What finds segments in the scores of a model, with options of [`SegmentFinder`] and the background of
    [`find_segments`]. Segments exclude each other unless the model is multi-label. It is a `ValueError` if the model
    is a regression model, or an option is out of its bounds."""
    require_classes(model.config.name_or_path or type(model).__name__, model.config)
    background = background_of(model.config) if background is None else background
    exclusive = problem_type_of(model.config) == "single_label_classification"
    options |= {"points": points_of(model.config), "point_width": getattr(model.config, "point_width", None) or 0.0}
    return SegmentFinder(class_names_of(model.config), exclusive=exclusive, background=background, **options)
