"""Segments, the player that jumps to them, progress, and work that is cancelled."""

from pathlib import Path

import pytest

from .colour_models import write_colours

pytestmark = pytest.mark.extras


def wait_for_segments(page, *labels):
    """The segments of a whole video, which have to have these classes."""
    page.wait_until(lambda: "Choose one" in page.message())
    segments = page.segments()
    assert [segment.label for segment in segments] == list(labels)
    return segments


def cost_of_ten_seconds(page, server):
    """Processor seconds of the server for ten seconds of the long video, or a few more, of its 240."""
    first, before = page.wait_until(page.seconds_done), server.processor_seconds()
    page.wait_until(lambda: page.seconds_done() >= first + 10)
    return server.processor_seconds() - before


def wait_until_idle(server, cost):
    """The server rests long before the rest of the work would be done."""
    before = server.processor_seconds()
    while not server.is_idle():
        assert server.processor_seconds() - before < 5 * cost


def test_a_segment_that_is_chosen_moves_the_player(visit, videos):
    page = visit()
    page.drop(videos["both"])
    page.press("find-segments")
    red, blue = wait_for_segments(page, "red", "blue")
    blue.row.click()
    page.wait_until(lambda: blue.start - 0.1 <= page.player_time() < blue.end)
    for key in ("ArrowUp", "Enter"):
        page.page.keyboard.press(key)
    page.wait_until(lambda: red.start <= page.player_time() < blue.start)
    page.wait_until(lambda: page.shows_picture("timeline-picture"))


def test_files_and_the_annotated_video_are_downloaded(visit, videos):
    page = visit()
    page.choose(videos["both"])
    page.press("find-segments")
    wait_for_segments(page, "red", "blue")
    with page.page.expect_download() as download:
        page["timeline-files"].locator("a[download='segments.csv']").click()
    assert Path(download.value.path()).read_text().startswith("label,start,end,score,class_id")
    page.press("annotate")
    page.wait_until(lambda: page.video_width("annotated"))
    with page.page.expect_download() as download:
        page["annotated"].get_by_label("Download").click()
    assert download.value.suggested_filename == "both_annotated.mp4"


def test_a_video_that_the_browser_cannot_play_is_shown_by_its_first_frame_and_worked_on(visit, tmp_path):
    page = visit()
    page.choose(write_colours(tmp_path / "both.avi", "red", "blue"))
    page.wait_until(lambda: "browser cannot play both.avi" in page.about())
    page.wait_until(lambda: page.shows_picture("first-frame"))
    page.press("find-segments")
    wait_for_segments(page, "red", "blue")[1].row.click()
    page.clear()
    page.wait_until(lambda: not page.about() and not page["first-frame"].is_visible())


def test_long_work_shows_progress_and_stops_when_cancelled(visit, videos, server):
    page = visit()
    page.choose_model("slow")
    page.choose(videos["long"])
    page.press("find-segments")
    cost = cost_of_ten_seconds(page, server)
    page["cancel"].click()
    page.wait_until(lambda: page.message() == "Cancelled.")
    wait_until_idle(server, cost)
    assert page.message() == "Cancelled."

    page.choose_model("colours")
    page.clear()
    page.choose(videos["blue"])
    page.press("classify")
    assert page.wait_until(page.classes)[0] == "blue"


def test_work_of_one_user_does_not_end_when_another_cancels(visit, videos):
    working, cancelling = visit(), visit()
    for page in (working, cancelling):
        page.choose(videos["long"])
        page.press("find-segments")
        page.wait_until(page.seconds_done)
    cancelling["cancel"].click()
    cancelling.wait_until(lambda: cancelling.message() == "Cancelled.")
    wait_for_segments(working, *["red", "blue"] * 4)


def test_work_ends_when_the_page_is_closed(visit, videos, server):
    page = visit()
    page.choose_model("slow")
    page.choose(videos["long"])
    page.press("find-segments")
    cost = cost_of_ten_seconds(page, server)
    page.close()
    wait_until_idle(server, cost)
