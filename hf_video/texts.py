"""Texts in pictures, lines and files: names of any script, fonts for them, counts and times as people write them, and
colours of classes."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from colorsys import hsv_to_rgb
from itertools import zip_longest
from typing import Any

from hf_video.io import replace_text

# Control characters, ends of lines, and marks that turn the direction of a text.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# What matplotlib draws with beside its own fonts, which have no Chinese, Japanese or Korean: of Linux, macOS, Windows.
_FAMILIES = ("Noto Sans CJK JP", "WenQuanYi Zen Hei", "Arial Unicode MS", "Microsoft YaHei", "Malgun Gothic")

# Turns by the golden ratio keep the hues of any few classes apart; the brightness tells those of nearly one hue.
_FIRST_HUE, _TURN = 0.04, 0.618034
_BRIGHTNESS = (0.35, 0.6, 0.48)
# Of red, green and blue, as in ITU-R BT.709.
_SHARES_OF_BRIGHTNESS = (0.2126, 0.7152, 0.0722)


def class_color(class_id: int) -> str:
    """The colour of a class in every picture, list and video, such as #1f77b4. It follows from the number of the class
    alone, and stands out from white and from black."""
    vivid = hsv_to_rgb((_FIRST_HUE + class_id * _TURN) % 1, 0.9, 1.0)
    wanted = _BRIGHTNESS[class_id % 3]
    brightness = sum(part * share for part, share in zip(vivid, _SHARES_OF_BRIGHTNESS, strict=True))
    if brightness > wanted:
        color = [part * wanted / brightness for part in vivid]
    else:
        color = [1 - (1 - part) * (1 - wanted) / (1 - brightness) for part in vivid]
    return "#" + bytes(round(255 * part) for part in color).hex()


def font_families() -> list[str]:
    """The `family` of matplotlib's texts: its own list (`font.sans-serif` of its settings), then the fonts of this
    machine for Chinese, Japanese and Korean. It takes each character from the first font that has it.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return ["sans-serif", *(family for family in _FAMILIES if family in installed)]


def font_file() -> str:
    """A file with the letters of most scripts: the first font of this machine that has Chinese, Japanese and Korean
    ones, or that of matplotlib. It is an `ImportError` if matplotlib is not installed."""
    from matplotlib import font_manager

    return font_manager.findfont((font_families()[1:] or ["DejaVu Sans"])[0])


def one_line(text: str) -> str:
    """The text without control characters, and with single spaces for all white space. Bytes of a file name that are
    no UTF-8 become escapes."""
    return " ".join(_CONTROLS.sub(" ", text).encode("utf-8", "backslashreplace").decode("utf-8").split())


def replace_json(path: str | os.PathLike, content: Any) -> None:
    """Writes a JSON file that people can read. A file name may have bytes that are not UTF-8: Python's escapes for
    them are those of JSON."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    replace_text(path, text.encode("utf-8", "backslashreplace").decode("utf-8"))


def table_lines(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column begins in one place, the others end in one. Rows may have fewer cells than
    others, and names in the first column line breaks."""
    cells = [[" ".join(row[0].split()), *row[1:]] for row in rows]
    widths = [max(map(len, column)) for column in zip_longest(*cells, fillvalue="")]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells]


def shorten(text: str, length: int) -> str:
    """The text, cut to `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def count(number: int, noun: str, plural: str = "") -> str:
    """A number of things, such as "1 video" or "1,200 videos"; `plural` if it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def clock(seconds: float, digits: int = 0) -> str:
    """Hours, minutes and seconds, such as 0:02:07 or 1:00:03.25.

    Args:
        seconds: 0 or more.
        digits: digits after the point of the seconds; without them, the seconds are cut, as on a clock.
    """
    ticks = round(seconds * 10**digits) if digits else int(seconds)
    whole, rest = divmod(ticks, 10**digits)
    minutes, seconds = divmod(whole, 60)
    fraction = f".{rest:0{digits}d}" if digits else ""
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}{fraction}"
