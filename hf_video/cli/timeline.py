"""`hf-video timeline`: when in a video is which class."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.drawing.texts import clock
from hf_video.inference.inference_settings import JsonLinesSettings, TimelineSettings
from hf_video.loading.models import load_trained_model
from hf_video.training.output_folder import name_of, require_fresh

from .command import Command
from .stopping import collected, stop_requests

if TYPE_CHECKING:
    import numpy as np

    from hf_video.processing import VideoClipProcessor

THRESHOLDS = ("onset", "offset", "min_duration_on", "min_duration_off", "background")
DESCRIPTION = """\
Find when a video shows which class. The model looks at windows that slide over the video; a segment of a class begins
with a score of at least --onset, and ends with one below --offset. Segments are printed as soon as they are complete.
Time per window and memory do not grow with the video, which may be a stream without an end.

Ctrl-C, SIGTERM and SIGHUP end open segments at the last window and write all files. A damaged video gives the segments
before the damage, and exit code 2. If no window was read, or a file cannot be written for want of room, nothing of it
stays that would be in the way of the next try; the segments of a stream, which does not come again, always stay.
"""
EPILOG = """\
files in the folder of --output:
  segments.json   the segments as ActivityNet's predictions, as `hf-video evaluate-segments` takes them
  segments.csv    the segments as a table, which grows while the command runs
  segments.vtt    the segments as subtitles for a player
  scores.parquet  the scores of all classes for each window
  timeline.png    a picture; needs matplotlib
  annotated.mp4   with --annotate: the video with the classes drawn on it, without sound; needs matplotlib

example: hf-video timeline match.mp4 --model my_model --background other --min-duration-on 2 --output match_timeline
"""


@dataclass(kw_only=True)
class TimelineCommandSettings(TimelineSettings, JsonLinesSettings):
    """Output"""


def run(settings: TimelineCommandSettings) -> int:
    """Prints segments as they close. Writes the files at the end, also after an interrupt or damage."""
    _check_files(settings)
    model, processor = load_trained_model(settings.model, device=settings.device, dtype=settings.dtype)

    from hf_video.inference.prediction import score_windows
    from hf_video.inference.segments import make_finder
    from hf_video.reading.sources import is_live

    thresholds = {name: getattr(settings, name) for name in THRESHOLDS}
    finder, windows = make_finder(model, **thresholds), window_options(settings, processor)
    if (unseen := windows["stride"] - windows["num_frames"]) > 0:
        _say(
            f"warning: {unseen} of every {windows['stride']} samples are in no window; segments go on half way to the "
            "next window. Choose a --stride of at most --window to look at all of them."
        )
    batch_size = settings.batch_size or (1 if is_live(settings.video) else 8)
    scored = score_windows(model, processor, settings.video, batch_size=batch_size, **windows)
    follow(scored, finder, processor, settings, {"model": settings.model, **thresholds, **windows})
    return 0


def follow(
    windows: Iterable[Any], finder: Any, processor: Any, settings: TimelineCommandSettings, details: dict[str, Any]
) -> None:
    """Prints and keeps the segments in scored windows until these end or fail, or a signal comes. What failed first is
    raised after all that can be written."""
    import numpy as np

    from hf_video.drawing.timeline_folder import TimelineFolder

    folder = (
        None
        if settings.output is None
        else TimelineFolder(settings.output, name_of(settings.video), finder, processor)
    )
    count, highest, errors = 0, np.zeros(len(finder.class_names)), list[Exception]()

    def give(segments: Iterable[Any]) -> None:
        """A segment that cannot be printed, as the reader went away, is still kept, and so are those after it."""
        nonlocal count
        for segment in segments:
            count += 1
            with collected(errors):
                _print_segment(segment, settings.json)
            if folder is not None:
                with collected(errors):
                    folder.add_segment(segment)

    with stop_requests("stopping, and writing what was found") as stopped:
        with collected(errors):
            for window in stopped.until_stopped(windows):
                give(finder.add(window.start, window.end, window.scores))
                np.maximum(highest, window.scores, out=highest)
                if folder is not None:
                    folder.add_window(window)
                if errors:
                    break
        with collected(errors):
            give(finder.finish())
        if folder is not None:
            ending = (
                (str(errors[0]) or type(errors[0]).__name__) if errors else "a signal stopped it" if stopped else None
            )
            with collected(errors):
                segments = folder.finish(details, ending)
                if settings.annotate and folder.end:
                    _annotate(settings.video, folder, segments)
            can_be_read_again = Path(settings.video).is_file()
            if errors and (not folder.end or (can_be_read_again and not folder.is_complete)):
                folder.remove()
            else:
                _say(f"{folder.folder} holds {', '.join(sorted(path.name for path in folder.folder.iterdir()))}.")
    if errors:
        raise errors[0]
    if stopped:
        raise stopped.interrupt("" if folder is None else f"The segments up to {clock(folder.end)} are kept.")
    if not count:
        _say(_why_none(highest, finder))


def _check_files(settings: TimelineCommandSettings) -> None:
    """Refuses options that would fail, or overwrite a file, after hours of reading."""
    if settings.annotate and settings.output is None:
        raise ValueError("--annotate writes a video into the folder of --output: say which with --output DIR.")
    if settings.annotate and not Path(settings.video).is_file():
        raise ValueError(f"--annotate reads the video a second time: {settings.video} is no file on this machine.")
    if settings.annotate and importlib.util.find_spec("matplotlib") is None:
        raise ImportError("--annotate draws with matplotlib: pip install 'hf-video-models[demo]'.")
    if settings.output is not None:
        ways_out = "Choose another folder: results are never overwritten."
        require_fresh(Path(settings.output), ways_out=ways_out, option="--output")


def _print_segment(segment: Any, as_json: bool) -> None:
    from hf_video.drawing.timeline_folder import segment_entry

    if as_json:
        print(json.dumps(segment_entry(segment)), flush=True)
    else:
        times = f"{clock(segment.start, 2)}  {clock(segment.end, 2)}"
        print(f"{times}  {segment.score:6.1%}  {' '.join(segment.label.split())}", flush=True)


def _annotate(video: str, folder: Any, segments: Sequence[Any]) -> None:
    """Writes the annotated video. Of a damaged one, the frames before the damage are kept."""
    from hf_video.drawing.videos import annotate_video
    from hf_video.io import replace_file
    from hf_video.reading import VideoReadError

    damage: list[Exception] = []

    def write(unfinished: Path) -> None:
        try:
            annotate_video(video, unfinished, segments, folder.end)
        except VideoReadError as error:
            damage.append(error)

    replace_file(folder.folder / "annotated.mp4", write)
    if damage:
        raise damage[0]


def _why_none(highest: np.ndarray, finder: Any) -> str:
    """A sentence about a video without segments."""
    import numpy as np

    if not highest.any():
        return "The video has no window, and so no segment: it is shorter than one, and --last-window drops it."
    index = int(np.where(finder.is_background, 0, highest).argmax())
    return (
        f"No segment was found. The highest score was {highest[index]:.1%}, of {finder.class_names[index]}; a segment "
        f"begins with --onset {finder.onset:g} and lasts --min-duration-on {finder.min_duration_on:g} s or longer."
    )


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def window_options(settings: TimelineCommandSettings, processor: VideoClipProcessor) -> dict[str, Any]:
    """The options of `window_batches` in the values of `WindowSettings`."""
    from hf_video.inference.window_batching import choose_windows

    if settings.fps is not None and settings.frame_sampling_rate is not None:
        raise ValueError(
            f"--fps {settings.fps:g} and --frame-sampling-rate {settings.frame_sampling_rate:g} both set the rate of "
            "samples: give one of them."
        )
    windows = choose_windows(
        processor,
        num_frames=settings.window,
        stride=settings.stride,
        fps=settings.fps,
        frame_sampling_rate=settings.frame_sampling_rate,
    )
    return windows | {"last": settings.last_window, "source_fps": settings.source_fps}


COMMAND = Command(
    name="timeline",
    settings=TimelineCommandSettings,
    run=run,
    help="find when a video shows which class",
    description=DESCRIPTION,
    epilog=EPILOG,
)
