"""`hf-video timeline`: when in a video is which class."""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hf_video.inference.clock import clock

from .command_line import add_flags
from .model_loading import load_trained_model
from .stopping import StopRequest, collected, stop_requests

DESCRIPTION = """\
Find when a video shows which class. The model looks at windows that slide over the video; a segment of a class begins
with a score of at least --onset, and ends with one below --offset. Segments are printed as soon as they are complete.
Time per window and memory do not grow with the video, which may be a stream without an end.

Ctrl-C, SIGTERM and SIGHUP end open segments at the last window and write all files. A damaged video gives the segments
before the damage, and exit code 2.
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


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "timeline",
        help="find when a video shows which class",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--background",
        action="append",
        default=[],
        metavar="CLASS",
        help="a class that gets no segment, such as `other`; may be given several times",
    )
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .settings import TIMELINE

    add_flags(parser, TIMELINE, positional="video")


def run(args: argparse.Namespace) -> int:
    """Prints segments as they close. Writes the files at the end, also after an interrupt or damage."""
    _check_files(args)
    model, processor = load_trained_model(args.model, device=args.device, dtype=args.dtype)

    from hf_video.inference.timeline import make_finder, score_windows

    options = {name: getattr(args, name) for name in THRESHOLDS}
    finder, windows = make_finder(model, **options), window_options(args, processor)
    size = args.batch_size or (1 if is_live(args.video) else 8)
    scored = score_windows(model, processor, args.video, batch_size=size, **windows)
    follow(scored, finder, processor, args, {"model": args.model, **options, **windows})
    return 0


def follow(
    windows: Iterable[Any], finder: Any, processor: Any, args: argparse.Namespace, details: dict[str, Any]
) -> None:
    """Prints and keeps the segments in scored windows until these end or fail, or a signal comes.

    Raises:
        Exception: what failed first, after all that can be written.
        KeyboardInterrupt: a signal came, after everything is written.
    """
    from hf_video.inference.timeline_folder import TimelineFolder

    folder = TimelineFolder(args.output, _name_of(args.video), finder, processor) if args.output else None
    count, highest, errors = 0, np.zeros(len(finder.class_names)), list[Exception]()

    def give(segments: Iterable[Any]) -> int:
        for number, segment in enumerate(segments, start=count + 1):
            _print_segment(segment, args.json)
            if folder is not None:
                folder.add_segment(segment)
        return count + len(segments)

    with stop_requests("stopping") as stopped:
        with collected(errors):
            for window in stopped.until_stopped(windows):
                count = give(finder.add(window.start, window.end, window.scores))
                highest = np.maximum(highest, window.scores)
                if folder is not None:
                    folder.add_window(window)
        with collected(errors):
            give(finder.finish())
