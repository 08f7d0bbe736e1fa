"""Heat maps as a video that plays, and questions."""

import numpy as np
import pytest

pytestmark = pytest.mark.extras


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
    answer = page.wait_until(page.answer)
    assert answer
