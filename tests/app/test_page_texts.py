"""Names of files and of classes come from strangers."""

from hf_video.app import page_texts
from hf_video.inference import Segment

ATTACK = "<img src=x onerror=alert(1)>\"'"


def test_no_text_becomes_html():
    for html in (
        page_texts.message(ATTACK, is_problem=True),
        page_texts.segment_list([Segment(0, ATTACK, 0.0, 1.0, 0.5)]),
        page_texts.picture(b"", ATTACK),
    ):
        assert "<img src=x" not in html and "&lt;img src=x onerror=alert(1)&gt;&quot;" in html


def test_a_segment_is_a_button_that_knows_its_start():
    html = page_texts.segment_list([Segment(3, "pour", 61.25, 63.5, 0.876), Segment(0, "cut", 70.0, 71.0, 0.5)])
    assert html.count("<button") == 2 and 'data-start="61.250"' in html
    for shown in ("0:01:01.2 – 0:01:03.5", "pour", "88%"):
        assert shown in html
    assert page_texts.segment_list([]) == ""
