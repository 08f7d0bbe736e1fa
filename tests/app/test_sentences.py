"""No path of the server is in a sentence of the page."""

import pytest

from hf_video.app.sentences import without_paths

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
        "http://127.0.0.1:8000/v.mp4 is no valid address; expected http://HOST/PATH or https://HOST/PATH.",
        "The rate is 30/1, the size 4/3 of 1920 x 1080.",
        "A clip has (batch, frames, channels) and/or views.",
    ],
)
def test_other_sentences_stay(sentence):
    assert without_paths(sentence, {}) == sentence
