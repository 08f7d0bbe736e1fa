"""A file or the camera comes in, and its class comes out."""

import random
from pathlib import Path

import pytest

from tests.testing.videos import cut_file

from .colour_models import write_colours

pytestmark = pytest.mark.extras


def first_class(visit):
    """The class that is on top, once there is one."""
    return visit.wait_until(lambda: visit.classes())[0]


def test_a_dropped_file_gets_its_class(visit, videos):
    for colour in ("red", "blue"):
        page = visit()
        page.drop(videos[colour])
        page.press("classify")
        assert first_class(page) == colour


def test_two_users_have_each_their_own_results(visit, videos):
    pages = {colour: visit() for colour in ("red", "blue")}
    for colour, page in pages.items():
        page.choose(videos[colour])
    for page in pages.values():
        page.press("classify")
    for colour, page in pages.items():
        assert first_class(page) == colour
    pages["blue"].press("find-segments")
    pages["blue"].wait_until(lambda: [segment.label for segment in pages["blue"].segments()] == ["blue"])
    assert first_class(pages["red"]) == "red"


def test_a_broken_file_is_one_sentence_and_the_page_goes_on(visit, videos, tmp_path):
    broken = Path(cut_file(write_colours(tmp_path / "holiday.mp4", "red"), 0.3))
    noise = tmp_path / "noise.mp4"
    noise.write_bytes(random.Random(0).randbytes(10_000))
    page = visit()
    for file in (broken, noise):
        page.choose(file)
        page.wait_until(lambda name=file.name: f"{name} cannot be opened as a video" in page.about())
        page.press("classify")
        sentence = page.wait_until(lambda name=file.name: name in page.message() and page.message())
        assert "\n" not in sentence and sentence.endswith(".") and "Traceback" not in sentence
        page.clear()
    page.choose(videos["blue"])
    page.press("classify")
    assert first_class(page) == "blue" and not page.about()


def test_the_camera_is_recorded_and_classified(visit):
    page = visit()
    page.record(frames=20)
    page.press("classify")
    assert first_class(page) in ("red", "blue")


def test_results_go_with_their_video(visit, videos):
    page = visit()
    page.choose(videos["red"])
    page.press("classify")
    assert first_class(page) == "red"
    page.clear()
    page.wait_until(lambda: not page.classes())


def test_before_there_is_a_result_nothing_takes_its_place(visit):
    page = visit()
    for tab, results in (
        ("classify", ["classes"]),
        ("find-segments", ["segments", "timeline-picture", "timeline-files", "annotated"]),
        ("explain", ["heat-map", "heat-map-frames"]),
    ):
        page.show(tab)
        assert not any(page[name].is_visible() for name in results)
