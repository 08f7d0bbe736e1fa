"""What a user does in a browser: a file or the camera comes in; classes, segments, heat maps and answers come out."""

import random
from pathlib import Path

import numpy as np
import pytest

from tests.testing.videos import cut_file

from .colour_models import write_colours

pytestmark = pytest.mark.extras


def first_class(visit):
    """The class that is on top, once there is one."""
    return visit.wait_until(lambda: visit.classes())[0]


def test_two_users_have_each_their_own_results(visit, videos):
    pages = {colour: visit() for colour in ("red", "blue")}
    for colour, page in pages.items():
        page.drop(videos[colour])
    for page in pages.values():
        page.press("classify")
    for colour, page in pages.items():
        assert first_class(page) == colour
    pages["blue"].press("find-segments")
    pages["blue"].wait_until(lambda: [segment.label for segment in pages["blue"].segments()] == ["blue"])
    assert first_class(pages["red"]) == "red"
    # Results go with their video.
    pages["red"].clear()
    pages["red"].wait_until(lambda: not pages["red"].classes())


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


def test_before_there_is_a_result_nothing_takes_its_place(visit):
    page = visit()
    for tab, results in (
        ("classify", ["classes"]),
        ("find-segments", ["segments", "timeline-picture", "timeline-files", "annotated"]),
        ("explain", ["heat-map", "heat-map-frames"]),
    ):
        page.show(tab)
        assert not any(page[name].is_visible() for name in results)


def test_heat_maps_are_a_video_over_the_frames(visit, videos):
    page = visit()
    page.drop(videos["red"])
    page.press("explain")
    page.wait_until(lambda: page.video_width("heat-map"))
    heat, plain = page.pixels("heat-map"), page.pixels("video")
    assert heat.shape == plain.shape
    # The ground is grey: what is coloured and not the red square is heat.
    assert np.abs(heat.astype(int) - plain).mean() > 2
    page.wait_until(lambda: page.shows_picture("heat-map-frames"))


def test_a_question_is_answered(visit, videos):
    page = visit()
    page.choose_model("talker")
    page.choose(videos["red"])
    page.ask("which digit came first")
    assert page.wait_until(page.answer)


def wait_for_segments(page, *labels):
    """The segments of a whole video, which have to have these classes."""
    page.wait_until(lambda: "Choose one" in page.message())
    segments = page.segments()
    assert [segment.label for segment in segments] == list(labels)
    return segments


def ends_work(server, page, video, end):
    """Lets a slow model begin with the long video. After `end` the server rests long before it would be done."""
    page.choose_model("slow")
    page.choose(video)
    page.press("find-segments")
    first, before = page.wait_until(page.seconds_done), server.processor_seconds()
    page.wait_until(lambda: page.seconds_done() >= first + 10)
    # For ten of the 240 seconds, or a few more.
    cost = server.processor_seconds() - before
    end()
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
    assert Path(download.value.path()).read_text().startswith("path,label,start,end,score,class_id")
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

    def cancel():
        page["cancel"].click()
        page.wait_until(lambda: page.message() == "Cancelled.")

    ends_work(server, page, videos["long"], cancel)
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
    ends_work(server, page, videos["long"], page.close)
