"""Names of files and of classes come from strangers, and no path of the server is in a sentence of the page."""

import pytest

from hf_video.app import page_texts
from hf_video.app.page_texts import without_paths
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


UPLOAD = "/tmp/hf-video-abc/uploads/359cd9c4076a/my clip.mp4"


@pytest.mark.parametrize(
    "sentence, shown",
    [
        (
            f"{UPLOAD} cannot be opened as a video: End of file.",
            "my clip.mp4 cannot be opened as a video: End of file.",
        ),
        ("/models/secret is a regression model.", "pourer is a regression model."),
        ("/models/secret/config.json must hold one object.", "pourer/config.json must hold one object."),
        ("/home/ann/run.7/model.safetensors: No such file.", "model.safetensors: No such file."),
        ("[Errno 2] No such file: '/var/x/y.mp4'", "[Errno 2] No such file: 'y.mp4'"),
        ("The file (/var/x/y.mp4) is cut off.", "The file (y.mp4) is cut off."),
        ("~/videos/y.mp4, ~/z/", "y.mp4, a folder"),
        (r"C:\Users\Ann\y.mp4 is damaged.", "y.mp4 is damaged."),
        ("file:///etc/passwd is refused", "passwd is refused"),
        ("cannot open file:/srv/v/y.mp4.", "cannot open y.mp4."),
    ],
)
def test_paths_become_names(sentence, shown):
    assert without_paths(sentence, {UPLOAD: "my clip.mp4", "/models/secret": "pourer"}) == shown


@pytest.mark.parametrize(
    "sentence",
    [
        "https://server.example/a/b/c.mp4 cannot be downloaded: the server answers 404 Not Found.",
        "http://127.0.0.1:8000/v.mp4 is not a valid address; expected http://HOST/PATH or https://HOST/PATH.",
        "The rate is 30/1, the size 4/3 of 1920 x 1080.",
        "A clip has (batch, frames, channels) and/or views.",
    ],
)
def test_other_sentences_stay(sentence):
    assert without_paths(sentence, {}) == sentence
