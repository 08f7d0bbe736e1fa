"""Finds when a video shows which class: `hf-video timeline` for programs."""

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hf_video.inference.inference_settings import TimelineSettings
from hf_video.inference.prediction import ScoredWindow, score_windows
from hf_video.inference.segments import Segment, SegmentFinder, make_finder
from hf_video.inference.window_batching import windows_of
from hf_video.io import replace_file
from hf_video.loading.models import load_trained_model
from hf_video.output_folders import KEEP, collected, require_fresh
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReadError
from hf_video.reading.sources import is_live, name_of

from .timeline_folder import TimelineFolder
from .videos import annotate_video

THRESHOLDS = ("onset", "offset", "min_duration_on", "min_duration_off", "background")


class Timeline(NamedTuple):
    """What was seen of a video.

    Attributes:
        num_segments: number of segments.
        highest: the highest score of each class, (num_classes,) float.
        finder: what found the segments.
        end: seconds of the video that the windows reached.
        folder: the folder of the files; None if there is none.
        is_whole: whether the windows went on to the end of the video.
    """

    num_segments: int
    highest: np.ndarray
    finder: SegmentFinder
    end: float
    folder: Path | None
    is_whole: bool


class TimelineReader:
    """A model and a video, ready for [`TimelineReader.read`].

    Args:
        settings: the video, the model, and what differs from the defaults.

    Raises:
        ValueError, OSError, ImportError: a setting cannot be used, or there is no such model.
    """

    def __init__(self, settings: TimelineSettings) -> None:
        check_files(settings)
        self.settings = settings
        self.model, self.processor = load_trained_model(settings.model, device=settings.device, dtype=settings.dtype)
        self.thresholds = {name: getattr(settings, name) for name in THRESHOLDS}
        self.finder = make_finder(self.model, **self.thresholds)
        self.windows = windows_of(settings, self.processor)

    @property
    def unseen(self) -> int:
        """Samples of each stride that are in no window."""
        return max(self.windows["stride"] - self.windows["num_frames"], 0)

    def read(
        self,
        tell: Callable[[Segment], object] = lambda segment: None,
        until_stopped: Callable[[Iterator[ScoredWindow]], Iterable[ScoredWindow]] = iter,
    ) -> Timeline:
        """Slides windows over the video, and writes the files. Memory does not grow with the video.

        Args:
            tell: is called with each segment as soon as it is complete.
            until_stopped: gives the windows up to the moment when a user stops them.

        Raises:
            Exception: what failed first, after all that can be written.
        """
        batch_size = self.settings.batch_size or (1 if is_live(self.settings.video) else 8)
        scored = score_windows(self.model, self.processor, self.settings.video, batch_size=batch_size, **self.windows)
        details = {"model": self.settings.model, **self.thresholds, **self.windows}
        return follow(scored, self.finder, self.processor, self.settings, details, tell, until_stopped)


def timeline(settings: TimelineSettings) -> list[Segment]:
    """Finds when a video shows which class, as `hf-video timeline`.

    Args:
        settings: the video, the model, and what differs from the defaults.

    Returns:
        The segments in the order in which they end.

    Raises:
        ValueError, OSError, ImportError: a setting cannot be used, there is no such model, or the video is damaged.
            The segments before the damage are in the folder then.
    """
    segments: list[Segment] = []
    TimelineReader(settings).read(segments.append)
    return segments


def check_files(settings: TimelineSettings) -> None:
    """Refuses settings that would fail, or overwrite a file, after hours of reading.

    Raises:
        ValueError: the annotated video has no folder or cannot be read again, or the folder is not empty.
        ImportError: matplotlib is missing.
    """
    if settings.annotate and settings.output is None:
        raise ValueError("--annotate writes a video into the folder of --output: say which with --output DIR.")
    if settings.annotate and not Path(settings.video).is_file():
        raise ValueError(
            f"--annotate reads the video a second time, but {settings.video} is not a file on this machine."
        )
    if settings.annotate and importlib.util.find_spec("matplotlib") is None:
        raise ImportError("--annotate draws with matplotlib: pip install 'hf-video-models[demo]'.")
    if settings.output is not None:
        require_fresh(Path(settings.output), KEEP, option="--output")


def follow(
    windows: Iterable[ScoredWindow],
    finder: SegmentFinder,
    processor: VideoClipProcessor,
    settings: TimelineSettings,
    details: dict[str, Any],
    tell: Callable[[Segment], object] = lambda segment: None,
    until_stopped: Callable[[Iterator[ScoredWindow]], Iterable[ScoredWindow]] = iter,
) -> Timeline:
    """Tells of the segments in scored windows, and keeps them, until the windows end or fail, or are stopped.

    Raises:
        Exception: what failed first, after all that can be written.
    """
    folder = None
    if settings.output is not None:
        folder = TimelineFolder(settings.output, name_of(settings.video), finder, processor)
    count, highest, errors = 0, np.zeros(len(finder.class_names)), list[Exception]()
    end, is_whole = 0.0, False

    def watched() -> Iterator[ScoredWindow]:
        nonlocal is_whole
        yield from windows
        is_whole = True

    def give(segments: Iterable[Segment]) -> None:
        """A segment that cannot be told, as the reader went away, is still kept, and so are those after it."""
        nonlocal count
        for segment in segments:
            count += 1
            with collected(errors):
                tell(segment)
            if folder is not None:
                with collected(errors):
                    folder.add_segment(segment)

    with collected(errors):
        for window in until_stopped(watched()):
            give(finder.add(window.start, window.end, window.scores))
            np.maximum(highest, window.scores, out=highest)
            end = window.end
            if folder is not None:
                folder.add_window(window)
            if errors:
                break
    with collected(errors):
        give(finder.finish())
    if folder is not None:
        _finish(folder, settings, details, errors, is_whole)
    if errors:
        raise errors[0]
    return Timeline(count, highest, finder, end, None if folder is None else folder.folder, is_whole)


def _finish(
    folder: TimelineFolder,
    settings: TimelineSettings,
    details: dict[str, Any],
    errors: list[Exception],
    is_whole: bool,
) -> None:
    """Writes what is left of the folder. Nothing of it stays if it holds nothing that a next try would not give."""
    ending = None if is_whole else "a signal stopped it"
    if errors:
        ending = str(errors[0]) or type(errors[0]).__name__
    with collected(errors):
        segments = folder.finish(details, ending)
        if settings.annotate and folder.end:
            _annotate(settings.video, folder, segments)
    can_be_read_again = Path(settings.video).is_file()
    if errors and (not folder.end or (can_be_read_again and not folder.is_complete)):
        folder.remove()


def _annotate(video: str, folder: TimelineFolder, segments: list[Segment]) -> None:
    """Writes the annotated video. Of a damaged one, the frames before the damage are kept."""
    damage: list[Exception] = []

    def write(unfinished: Path) -> None:
        try:
            annotate_video(video, unfinished, segments, folder.end)
        except VideoReadError as error:
            damage.append(error)

    replace_file(folder.folder / "annotated.mp4", write)
    if damage:
        raise damage[0]
