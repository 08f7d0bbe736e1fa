"""Texts of any script in pictures that matplotlib draws: which fonts have their characters."""

import logging
import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

logger = logging.getLogger(__name__)

# It comes with matplotlib: Latin, Greek, Cyrillic and more, but no Chinese, Japanese or Korean.
_FIRST_FAMILY = "DejaVu Sans"
# For each, matplotlib opens one more file.
_MOST_FAMILIES = 8
# Control characters, ends of lines, and marks that turn the direction of a text.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class DrawableTexts(NamedTuple):
    """
    Attributes:
        families: names of fonts, in the order in which matplotlib looks for a character.
        missing: characters that no font on this machine has.
    """

    families: list[str]
    missing: set[str]

    def shown(self, text: str, instead: str) -> str:
        """The text in one line, or `instead` if no font has all of its characters."""
        line = one_line(text)
        return instead if self.missing & set(line) or not line else line


def find_fonts(texts: Iterable[str]) -> DrawableTexts:
    """
    The fonts of this machine that draw some texts. A warning names the characters that none of them has.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib import font_manager

    missing = {character for text in texts for character in one_line(text)}
    families: list[str] = []
    # The font of last resort has a box for every character.
    entries = [entry for entry in font_manager.fontManager.ttflist if "Last Resort" not in entry.name]
    for entry in sorted(entries, key=lambda entry: (entry.name != _FIRST_FAMILY, entry.name)):
        if families and (not missing or entry.name in families or len(families) == _MOST_FAMILIES):
            continue
        try:
            known = font_manager.get_font(entry.fname).get_charmap()
        except (OSError, RuntimeError):  # a broken file, or a font without outlines
            continue
        found = {character for character in missing if ord(character) in known}
        if found or not families:
            families.append(entry.name)
            missing -= found
    if missing:
        _warn("".join(sorted(missing)[:10]))
    return DrawableTexts(families, missing)


def one_line(text: str) -> str:
    """The text without control characters, and with single spaces for all white space. Bytes of a file name that are
    no UTF-8 become escapes."""
    return " ".join(_CONTROLS.sub(" ", text).encode("utf-8", "backslashreplace").decode("utf-8").split())


def shorten(text: str, length: int) -> str:
    """The text, cut to `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


@cache
def _warn(characters: str) -> None:
    logger.warning(
        "No font on this machine has the characters %r: pictures show the numbers of such classes. A font for "
        "them helps, such as fonts-noto-cjk for Chinese, Japanese and Korean.",
        characters,
    )
