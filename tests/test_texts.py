"""Names, times and fonts in pictures, lines and files."""

import pytest
from matplotlib import font_manager

from hf_video.texts import clock, font_families, one_line, shorten


@pytest.mark.parametrize(
    ("seconds", "digits", "text"),
    [(0, 0, "0:00:00"), (59.99, 0, "0:00:59"), (59.999, 2, "0:01:00.00"), (3725.25, 2, "1:02:05.25")],
)
def test_a_clock_carries_over(seconds, digits, text):
    assert clock(seconds, digits) == text


def test_a_font_for_chinese_follows_those_of_matplotlib(monkeypatch):
    assert font_families()[0] == "sans-serif"
    monkeypatch.setattr(font_manager, "get_font_names", lambda: ["Noto Sans CJK JP", "Tibetan Machine Uni"])
    assert font_families() == ["sans-serif", "Noto Sans CJK JP"]


def test_a_text_is_one_line_of_letters():
    assert one_line("door\n2\u202e \udcff") == "door 2 \\udcff" and shorten("door 2", 4) == "doo…"
