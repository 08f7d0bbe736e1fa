"""What several commands print: results, and the videos of many that failed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hf_video.io import replace_text
from hf_video.output_folders import check_output_file
from hf_video.texts import count

if TYPE_CHECKING:
    from hf_video.bulk import RowsResult
    from hf_video.inference.inference_settings import JsonResultSettings

# Errors of rows that are printed.
_SHOWN = 10


def say(text: str) -> None:
    """Prints on stderr, which may be closed, or the terminal gone."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def say_files(folder: str) -> None:
    """Prints on stderr what a folder holds."""
    say(f"{folder} holds {', '.join(sorted(os.listdir(folder)))}.")


def print_failed(failed: Sequence[tuple[str, object]], total: int, shown: int | None = None) -> int:
    """Prints which videos failed and why, at most `shown` of them, and returns the exit code."""
    if failed:
        say(f"{len(failed)} of {count(total, 'video')} failed:")
    for video, reason in failed[:shown]:
        say(f"  {tell_failed(video, reason)}")
    return 1 if failed else 0


def tell_failed(video: str, reason: object) -> str:
    """Which video failed and why; most reasons begin with its name."""
    return str(reason) if str(reason).startswith(video) else f"{video}: {reason}"


def broken_lines(result: Mapping[str, Any]) -> list[str]:
    """The lines on the videos that a result leaves out."""
    broken = result.get("broken_videos") or ()
    return [f"{count(len(broken), 'video')} could not be read:", *(f"  {video}" for video in broken)] if broken else []


def print_result(settings: JsonResultSettings, result: Mapping[str, Any], show: Callable[..., list[str]]) -> None:
    """Prints a result, of which `show` gives the lines, and writes it into the file that the settings name."""
    try:
        if (output := check_output_file("output", settings.output)) is not None:
            replace_text(output, json.dumps(result, indent=2) + "\n")
    finally:  # after a full disk the figures are still printed
        for warning in result.get("warnings", ()):
            say(f"warning: {warning}")
        if settings.json:
            print(json.dumps(result))
        else:
            print(*show(result), *broken_lines(result), sep="\n")


def print_rows(result: RowsResult) -> int:
    """Prints what a folder of rows holds, and returns the exit code."""
    rows, videos = count(result.num_rows, "row"), count(result.num_videos, "video")
    print(f"{result.place}\n{rows} of {videos} in all, {result.num_new} of them new")
    code = print_failed(result.errors, result.num_videos, _SHOWN)
    if len(result.errors) > _SHOWN:
        say("  ...\nThe column error has all reasons; --retry-errors tries these videos again.")
    return code
