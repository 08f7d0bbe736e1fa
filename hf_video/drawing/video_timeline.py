"""Finds when a video shows which class: `hf-video timeline` for programs."""

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hf_video.inference.class_changes import ChangeFinder
from hf_video.inference.frame_scoring import is_frame_classifier, score_frames
from hf_video.inference.inference_settings import TimelineSettings
from hf_video.inference.prediction import ScoredWindow, score_windows
from hf_video.inference.segments import Segment, SegmentFinder, make_finder
from hf_video.inference.window_batching import windows_of
from hf_video.io import replace_file
from hf_video.loading.models import load_trained_model
from hf_video.output_folders import KEEP, collected, require_fresh
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReadError
from hf_video.reading.frame_streaming import comes_live
from hf_video.reading.live_queue import LiveQueue
from hf_video.reading.sources import name_of

from .timeline_folder import TimelineFolder
from .video import annotate_video

# Seconds without a frame of a live stream after which a model that sees frames once begins anew.
LONGEST_GAP = 2.0
# Frames of a live stream that may wait for the model.
MOST_WAITING = 8
# What has no meaning where no window slides, and what it means to leave it out.
_OF_WINDOWS = {"window": None, "stride": None, "last_window": "pad"}
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
        live: of a live video over which no window slides, how many token frames came (`num_frames`) and were dropped
            (`num_dropped`), as the model was slower.
    """

    num_segments: int
    highest: np.ndarray
    finder: SegmentFinder
    end: float
    folder: Path | None
    is_whole: bool
    live: dict[str, int] | None = None


class TimelineReader:
    """A model and a video, ready for [`TimelineReader.read`].

    Args:
        settings: the video, the model, and what differs from the defaults.

    Raises:
        ValueError, OSError, ImportError: a setting cannot be used, or there is no such model or address.
    """

    def __init__(self, settings: TimelineSettings) -> None:
        check_files(settings)
        self.settings, self.is_live = settings, comes_live(settings.video)
        options = {"device": settings.device, "dtype": settings.dtype}
        self.model, self.processor = load_trained_model(settings.model, part="any classifier", **options)
        self.thresholds = {name: getattr(settings, name) for name in THRESHOLDS}
        self.finder = make_finder(self.model, **self.thresholds)
        self.thresholds["background"] = self.finder.background
        self.slides = not is_frame_classifier(self.model)
        self.windows = windows_of(settings, self.processor) if self.slides else self._frame_options()
        if settings.longest_gap is not None and self.slides:
            raise ValueError(
                f"--longest-gap {settings.longest_gap:g} is for classifiers of frames; {settings.model} is one of "
                "clips: leave it out."
            )

    @property
    def unseen(self) -> int:
        """Samples of each stride that are in no window."""
        return max(self.windows["stride"] - self.windows["num_frames"], 0) if self.slides else 0

    @property
    def tells_changes(self) -> bool:
        """Whether the begins and ends of classes are told as they come, in place of segments."""
        return self.is_live and not self.slides

    def _frame_options(self) -> dict[str, Any]:
        """The options of [`score_frames`]."""
        settings = self.settings
        reason = f"is for classifiers of clips; {settings.model} is one of frames, which gives scores of every frame"
        for name, default in _OF_WINDOWS.items():
            if (value := getattr(settings, name)) != default:
                raise ValueError(f"--{name.replace('_', '-')} {value} {reason}: leave it out.")
        sizes = windows_of(settings, self.processor)
        options = {name: sizes[name] for name in ("fps", "frame_sampling_rate", "source_fps")}
        gap = settings.longest_gap or (LONGEST_GAP if self.is_live else None)
        return options | {"longest_gap": gap}

    def read(
        self,
        tell: Callable[[Any], object] = lambda found: None,
        until_stopped: Callable[[Iterator[ScoredWindow]], Iterable[ScoredWindow]] = iter,
    ) -> Timeline:
        """Scores windows or frames of the video, and writes the files. Memory does not grow with the video.

        Args:
            tell: is called with each segment as soon as it is complete, or with each [`ClassChange`] if the object
                `tells_changes`.
            until_stopped: gives the windows up to the moment when a user stops them.

        Raises:
            Exception: what failed first, after all that can be written.
        """
        queue: LiveQueue | None = LiveQueue(MOST_WAITING) if self.tells_changes else None
        options = {"batch_size": self.settings.batch_size or (1 if self.is_live else 8), **self.windows}
        if self.slides:
            scored = score_windows(self.model, self.processor, self.settings.video, **options)
        else:
            scored = score_frames(self.model, self.processor, self.settings.video, queue=queue, **options)
        details = {"model": self.settings.model, **self.thresholds, **self.windows}
        return follow(scored, self.finder, self.processor, self.settings, details, tell, until_stopped, queue)


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
    tell: Callable[[Any], object] = lambda found: None,
    until_stopped: Callable[[Iterator[ScoredWindow]], Iterable[ScoredWindow]] = iter,
    queue: LiveQueue | None = None,
) -> Timeline:
    """Tells of the segments in scored windows, and keeps them, until the windows end or fail, or are stopped. With the
    queue of a live video it tells of their changes instead.

    Raises:
        Exception: what failed first, after all that can be written.
    """
    folder = None
    if settings.output is not None:
        folder = TimelineFolder(settings.output, name_of(settings.video), finder, processor)
    count, highest, errors = 0, np.zeros(len(finder.class_names)), list[Exception]()
    end, is_whole = 0.0, False
    changes = None if queue is None else ChangeFinder(finder, lambda: queue.seconds)

    def watched() -> Iterator[ScoredWindow]:
        nonlocal is_whole
        yield from windows
        is_whole = True

    def give(segments: list[Segment], is_cut: bool = False) -> None:
        """What cannot be told, as the reader went away, is still kept, and so is what comes after it."""
        nonlocal count
        count += len(segments)
        for found in segments if changes is None else changes.add(segments, is_cut):
            with collected(errors):
                tell(found)
        for segment in segments:
            if folder is not None:
                with collected(errors):
                    folder.add_segment(segment)

    with collected(errors):
        for window in until_stopped(watched()):
            give(finder.add(window.start, window.end, window.scores, window.begins_anew), window.begins_anew)
            np.maximum(highest, window.scores, out=highest)
            end = window.end
            if folder is not None:
                folder.add_window(window)
            if errors:
                break
    with collected(errors):
        give(finder.finish(), is_cut=True)
    live = None
    if queue is not None:
        live = {"num_frames": queue.num_items, "num_dropped": queue.num_dropped}
        details = details | {"live": live}
    if folder is not None:
        _finish(folder, settings, details, errors, is_whole)
    if errors:
        raise errors[0]
    return Timeline(count, highest, finder, end, None if folder is None else folder.folder, is_whole, live)


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
    if (errors or not is_whole) and (not folder.end or (can_be_read_again and not folder.is_complete)):
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
