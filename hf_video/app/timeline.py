"""When a video shows which class: segments as they close, and a picture at the end."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_video.drawing.timeline_folder import TimelineFolder
from hf_video.inference.segments import Segment, make_finder, score_windows
from hf_video.inference.window_batching import choose_windows

from .loaded_models import LoadedModel
from .visitors import Ticket

_WINDOWS_AT_ONCE = 4


@dataclass
class Timeline:
    """
    A timeline so far.

    Attributes:
        end: seconds of the video that were looked at.
        segments: in the order in which they closed; at the end in the order in which they begin.
        picture: PNG, at the end.
        ending: what ended it before the video did.
    """

    end: float = 0.0
    segments: list[Segment] = field(default_factory=list)
    picture: bytes | None = None
    ending: Exception | None = None


def find_segments(
    model: LoadedModel, video: Path, folder: Path, ticket: Ticket, **thresholds: Any
) -> Iterator[Timeline]:
    """
    The timeline of a video, given whenever it has grown: one object, which changes. A damaged video gives the part
    before the damage.

    Args:
        model: a classifier.
        video: the file.
        folder: an empty folder, which is removed at the end.
        ticket: ends the work between two windows.
        thresholds: of [`make_finder`], such as `onset`.

    Raises:
        ValueError: the model is a regression model, or a threshold is out of its bounds.
        VideoReadError: nothing of the video can be read.
        Cancelled: the work was cancelled.
    """
    found = Timeline()
    try:
        finder = make_finder(model.network, **thresholds)
        output = TimelineFolder(folder, video.name, finder, model.processor)
        try:
            for window in ticket.until_cancelled(_scored(model, video)):
                found.end = window.end
                output.add_window(window)
                _add(found, output, finder.add(window.start, window.end, window.scores))
                yield found
        except OSError as error:
            if not found.end:
                raise
            found.ending = error
        _add(found, output, finder.finish())
        found.segments = output.finish({}, None if found.ending is None else "the video is damaged")
        found.picture = (folder / "timeline.png").read_bytes()
        yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _scored(model: LoadedModel, video: Path) -> Iterator[Any]:
    """The scored windows. The model is free for others between two batches."""
    windows = score_windows(
        model.network, model.processor, str(video), batch_size=_WINDOWS_AT_ONCE, **choose_windows(model.processor)
    )
    nothing = object()
    try:
        while True:
            with model.lock:
                window = next(windows, nothing)
            if window is nothing:
                return
            yield window
    finally:
        windows.close()  # type: ignore[attr-defined]


def _add(found: Timeline, output: TimelineFolder, segments: list[Segment]) -> None:
    for segment in segments:
        output.add_segment(segment)
    found.segments += segments
