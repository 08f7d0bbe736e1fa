"""Find when a video shows which class. The model looks at windows that slide over the video; a segment of a class
begins with a score of at least --onset, and ends with one below --offset. Segments are printed as soon as they are
complete. Time per window and memory do not grow with the video, which may be a stream; with --output memory holds the
scores of all windows, so a stream without an end is cut into parts of a day.

A classifier of frames gives scores of every frame, and nothing slides: a causal VideoMamba sees each frame once. Of a
live stream, each begin and end of a class is then printed as soon as it is certain, with --json also the delay. If the
model is slower than the stream, the oldest of the frames that wait are dropped, and counted.

Ctrl-C, SIGTERM and SIGHUP end open segments at the last window and write all files. A damaged video gives the segments
before the damage, and exit code 2. If no window was read, or a file cannot be written for want of room, nothing of it
stays that would be in the way of the next try; the segments of a stream, which does not come again, always stay.

files in the folder of --output:
  segments.json   the segments as ActivityNet's predictions, as `hf-video evaluate --task segments` takes them
  segments.csv    the segments as a table, which grows while the command runs
  segments.vtt    the segments as subtitles for a player
  scores.parquet  the scores of all classes for each window, written at the end
  timeline.png    a picture; needs matplotlib
  annotated.mp4   with --annotate: the video with the classes drawn on it, without sound; needs matplotlib

example: hf-video timeline match.mp4 --model my_model --background other --min-duration-on 2 --output match_timeline
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_video.drawing.texts import clock, one_line
from hf_video.inference.inference_settings import JsonLinesSettings, TimelineSettings

from .command import command
from .printing import say, say_files
from .signals import stop_requests

if TYPE_CHECKING:
    import numpy as np

    from hf_video.drawing.video_timeline import Timeline
    from hf_video.inference.class_changes import ClassChange
    from hf_video.inference.segments import Segment, SegmentFinder


@dataclass(kw_only=True)
class TimelineCommandSettings(TimelineSettings, JsonLinesSettings):
    """Settings of `hf-video timeline`."""


@command(help="find when a video shows which class")
def run(settings: TimelineCommandSettings) -> int:
    """Prints segments as they close. Writes the files at the end, also after an interrupt or damage."""
    from hf_video.drawing.video_timeline import TimelineReader

    reader = TimelineReader(settings)
    if reader.unseen:
        stride = reader.windows["stride"]
        say(
            f"warning: {reader.unseen} of every {stride} samples are in no window; a border among them is estimated "
            "from the windows around it. Choose a --stride of at most --window to look at all of them."
        )
    follow(reader.read, settings)
    return 0


def follow(read: Callable[..., Timeline], settings: TimelineCommandSettings) -> None:
    """Prints the segments that `read`, which is [`TimelineReader.read`], tells of, until the video ends or a signal
    comes."""
    with stop_requests("stopping, and writing what was found") as stopped:
        try:
            found = read(lambda found: print_found(found, settings.json), stopped.until_stopped)
        finally:
            if settings.output is not None and os.path.isdir(settings.output):
                say_files(settings.output)
    if found.live is not None:
        frames = f"{found.live['num_dropped']} of {found.live['num_frames']} frames"
        say(f"{frames} were dropped, as the model was slower than the video.")
    if stopped:
        is_kept = found.folder is not None and found.end
        raise stopped.interrupt(f"The segments up to {clock(found.end)} are kept." if is_kept else "")
    if not found.num_segments:
        say(_why_none(found.highest, found.finder))


def print_found(found: Segment | ClassChange, as_json: bool) -> None:
    """Prints a segment, or the begin or end of a class, in a line."""
    from hf_video.drawing.timeline_folder import segment_entry
    from hf_video.inference.segments import Segment

    label = one_line(found.label)
    if isinstance(found, Segment):
        line = segment_entry(found)
        text = f"{clock(found.start, 2)}  {clock(found.end, 2)}  {found.score:6.1%}  {label}"
    else:
        delay, segment = None if found.delay is None else round(found.delay, 3), found.segment
        line = {"time": round(found.time, 3), "change": "begins" if found.begins else "ends", "delay": delay}
        line |= {"label": found.label} if found.begins else segment_entry(segment)
        lasted = f"{segment.end - segment.start:.2f} s, {segment.score:.1%}"
        text = f"{clock(found.time, 2)}  {label} " + ("begins" if found.begins else f"ends ({lasted})")
    print(json.dumps(line) if as_json else text, flush=True)


def _why_none(highest: np.ndarray, finder: SegmentFinder) -> str:
    """A sentence about a video without segments."""
    import numpy as np

    if not highest.any():
        return "The video has no window, and so no segment: it is shorter than one, and --last-window drops it."
    index = int(np.where(finder.is_background, 0, highest).argmax())
    return (
        f"No segment was found. The highest score was {highest[index]:.1%}, of {finder.class_names[index]}; a segment "
        f"begins with --onset {finder.onset:g} and lasts --min-duration-on {finder.min_duration_on:g} s or longer."
    )
