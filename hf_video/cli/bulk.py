"""What `hf-video extract` and `predict` print with `--engine`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_video.jobs.bulk import BulkResult

# Errors that are printed.
_SHOWN = 10


def print_rows(result: BulkResult) -> int:
    """Prints what a folder of rows holds, and returns the exit code."""
    print(f"{result.place}\n{result.num_rows} rows, {result.num_new} of them new")
    if result.errors:
        print(f"{len(result.errors)} of {result.num_rows} videos failed:", file=sys.stderr)
        for path, reason in result.errors[:_SHOWN]:
            print(f"  {path}\n    {reason}", file=sys.stderr)
        if len(result.errors) > _SHOWN:
            print("  ...\nThe column error has all reasons; --retry-errors tries these videos again.", file=sys.stderr)
    return 1 if result.errors else 0
