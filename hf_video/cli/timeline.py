"""Find when a video shows each class. The model scores windows that slide over the video. A segment of a class starts
with a score of at least --onset and ends with one below --offset. Segments are printed as soon as they are complete.
Time per window and memory do not grow with the video, which may be a stream. With --output the scores of all windows
stay in memory: give an endless stream a new folder each day.

A class that was trained on instants gets instants: the highest scores that no higher one is near, of at least --onset,
with one number for start and end. Two of a class are as far apart as the training's width, or as --min-duration-off.

A frame classifier scores every frame, without windows: a causal VideoMamba sees each frame once. For a live stream,
each start and end of a class is printed as soon as it is certain, with --json also the delay. If the model is slower
than the stream, the oldest waiting frames are dropped and counted.

Ctrl-C, SIGTERM and SIGHUP end open segments at the last window and write all files. A damaged video gives the segments
before the damage, and exit code 2. If no window could be read, nothing is written.

files in the folder of --output:
  segments.json   the segments as ActivityNet's predictions, as `hf-video evaluate --task segments` takes them
  segments.csv    the segments as a table, which grows while the command runs
  segments.vtt    the segments as subtitles for a player, unless --format is another
  scores.parquet  the scores of all classes for each window, written at the end
  timeline.png    a picture; needs matplotlib
  segments.boris, segments.eaf or segments.via.json  with --format: a new project of BORIS, ELAN or VIA 3
  the name of the file of --annotations: a copy of it, with the segments beside what you annotated
  annotated.mp4   with --annotate: the video with the classes drawn on it, without sound; needs matplotlib

example: hf-video timeline match.mp4 --model my_model --background other --min-duration-on 2 --output match_timeline
"""

from __future__ import annotations

import importlib.util
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hf_video.inference.inference_settings import JsonLinesSettings, TimelineSettings
from hf_video.settings import setting
from hf_video.texts import clock, count, one_line

from .command import command
from .printing import say, say_files
from .signals import stop_requests

if TYPE_CHECKING:
    from hf_video.inference.segments import Segment
    from hf_video.inference.timeline import ClassChange, Timeline


@dataclass(kw_only=True)
class TimelineCommandSettings(TimelineSettings, JsonLinesSettings):
    """Timeline"""

    annotate: bool = setting(False, "Also write the video with the classes drawn on it into the folder of --output.")


@command(help="find when a video shows which class")
def run(settings: TimelineCommandSettings) -> int:
    """Prints segments as they close. Writes the files at the end, also after an interrupt or damage."""
    _check_annotated(settings)

    from hf_video.inference.timeline import make_timeline

    with stop_requests("stopping, and writing what was found") as stopped:
        try:
            found = make_timeline(
                settings,
                tell=lambda found: print_found(found, settings.json),
                until_stopped=stopped.until_stopped,
                draw=lambda found: _draw(found, settings),
                is_kept=settings.output is not None,
            )
        finally:
            if settings.output is not None and os.path.isdir(settings.output):
                say_files(settings.output)
    if found.live is not None:
        frames = f"{found.live['num_dropped']} of {count(found.live['num_frames'], 'frame')}"
        say(f"Dropped {frames}{', as the model was slower than the video' * bool(found.live['num_dropped'])}.")
    if stopped:
        is_kept = found.folder is not None and found.end
        raise stopped.interrupt(f"The segments up to {clock(found.end)} are kept." if is_kept else "")
    if not found.num_segments:
        say(_why_none(found))
    return 0


def _check_annotated(settings: TimelineCommandSettings) -> None:
    """Refuses an annotated video that would fail after hours of reading."""
    if settings.annotate and settings.output is None:
        raise ValueError("--annotate writes a video into the folder of --output: add --output DIR.")
    if settings.annotate and not Path(settings.video).is_file():
        raise ValueError(
            f"--annotate reads the video a second time, but {settings.video} is not a file on this machine."
        )
    if settings.annotate and importlib.util.find_spec("matplotlib") is None:
        raise ImportError("--annotate draws with matplotlib: pip install 'hf-video-models[demo]'.")


def _draw(found: Timeline, settings: TimelineCommandSettings) -> None:
    """Adds the picture and the annotated video to the folder, of a damaged video up to the damage."""
    if found.folder is None or not found.end:
        return
    if importlib.util.find_spec("matplotlib") is None:
        say("There is no timeline.png: matplotlib is missing (pip install 'hf-video-models[demo]').")
        return

    from hf_video.drawing.timeline_picture import draw_timeline, save_figure
    from hf_video.drawing.video import annotate_video
    from hf_video.io import replace_file
    from hf_video.reading import VideoReadError

    replace_file(found.folder / "timeline.png", partial(save_figure, draw_timeline(found)))

    def write(unfinished: Path) -> None:
        with suppress(VideoReadError):  # the damage, which the timeline tells
            annotate_video(settings.video, unfinished, found.segments, found.end)

    if settings.annotate:
        replace_file(found.folder / "annotated.mp4", write)


def print_found(found: Segment | ClassChange, as_json: bool) -> None:
    """Prints a segment, or the begin or end of a class, in a line."""
    from hf_video.inference.segments import Segment
    from hf_video.inference.timeline import segment_entry

    if isinstance(found, Segment):
        line = segment_entry(found)
        end = f"{'':{len(clock(found.end, 2))}}" if found.is_point else clock(found.end, 2)
        text = f"{clock(found.start, 2)}  {end}  {found.score:6.1%}  {one_line(found.label)}"
    else:
        delay, segment = None if found.delay is None else round(found.delay, 3), found.segment
        change = "is" if segment.is_point else "begins" if found.begins else "ends"
        line = {"time": round(found.time, 3), "change": change, "delay": delay}
        line |= {"label": segment.label} if found.begins else segment_entry(segment)
        lasted = f"{segment.end - segment.start:.2f} s, {segment.score:.1%}"
        text = f"{clock(found.time, 2)}  {one_line(segment.label)} "
        text += f"({segment.score:.1%})" if segment.is_point else "begins" if found.begins else f"ends ({lasted})"
    print(json.dumps(line) if as_json else text, flush=True)


def _why_none(found: Timeline) -> str:
    """A sentence about a video without segments."""
    import numpy as np

    finder = found.finder
    if not found.highest.any():
        return "The video has no window, and so no segment: it is shorter than one, and --last-window drops it."
    index = int(np.where(finder.is_background, 0, found.highest).argmax())
    return (
        f"No segment was found. The highest score was {found.highest[index]:.1%}, of {finder.class_names[index]}; a "
        f"segment begins with --onset {finder.onset:g} and lasts --min-duration-on {finder.min_duration_on:g} s or "
        "longer."
    )
