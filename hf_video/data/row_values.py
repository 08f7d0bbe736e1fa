"""Checks the values in the cells of a row: texts, such as the names of classes, and times."""

import math
from typing import Any

# How programs write a value that is missing.
_MISSING_TEXTS = ("nan", "NaN", "None", "null", "NULL", "<NA>")


def cell_text(where: str, column: str, value: Any) -> str:
    """The text of a cell, without the spaces around it. A number becomes a text.

    Args:
        where: the place of the row, for messages.
        column: the name of the cell.
        value: the value in the file.

    Raises:
        ValueError: the cell is empty, null, NaN or a text that stands for one of these; true or false; or no single
            value.
    """
    if isinstance(value, str):
        text = value.strip()
        if text in _MISSING_TEXTS:
            raise ValueError(
                f"{where}: {column} is {text!r}, as programs write a missing value. Leave the row out, or write it "
                "otherwise if it is meant."
            )
        if text:
            return text
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    raise ValueError(f"{where}: {column} is {value!r}; a text is expected. Leave the row out if there is none.")


def segment(where: str, start: Any, end: Any) -> tuple[float | None, float | None]:
    """Start and end in seconds, None for an empty cell.

    Raises:
        ValueError: one of them is not a time, or the end is not after the start.
    """
    first, stop = _seconds(where, "start", start), _seconds(where, "end", end)
    if stop is not None and stop <= (first or 0.0):
        raise ValueError(
            f"{where}: end is {stop} s, but the segment starts at {first or 0.0} s; a later end is expected."
        )
    return first, stop


def _seconds(where: str, column: str, value: Any) -> float | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{where}: {column} is {value!r}; seconds from 0 on are expected, or an empty cell.")
    return seconds
