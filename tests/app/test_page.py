"""What the page of Gradio lets a browser do."""

import re
from pathlib import Path

import pytest
import torch
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

import hf_video.app
from hf_video.app.visitors import Visitors
from hf_video.app.work import LoadedModel
from hf_video.processing import VideoClipProcessor

from ..video_files import encode_video, make_frames

pytestmark = pytest.mark.extras


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes the page of a small model; `tell_error` gives the sentence for an error."""
    pytest.importorskip("gradio")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    from hf_video.app.page import Page

    config = VideoMAEConfig(
        image_size=32, patch_size=16, num_frames=2, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    config.name_or_path = "/models/secret"
    size = {"height": 32, "width": 32}
    torch.manual_seed(0)
    model = LoadedModel(
        "videomae", VideoMAEForVideoClassification(config).eval(), VideoClipProcessor(num_frames=2, crop_size=size)
    )

    def make_page_of(tell_error=lambda error: str(error), **options):
        options = {"max_upload": 1, "workers": 1, "only_local": True, "tell_error": tell_error} | options
        return Page([model], Visitors(tmp_path), **options).blocks

    return make_page_of


@pytest.fixture
def find():
    """Finds the work of a button of a page."""

    def find_work(page, element):
        button = next(block for block in page.blocks.values() if getattr(block, "elem_id", None) == element)
        begun = next(each for each in page.fns.values() if (button._id, "click") in each.targets)
        return next(each for each in page.fns.values() if each.trigger_after == begun._id).fn

    return find_work


REQUEST = type("Request", (), {"session_hash": "ann"})()


@pytest.fixture
def press(make, find):
    """Presses a button, and returns the messages of its work."""

    def run(element, *values, **options):
        return [next(iter(step.values())) for step in find(make(**options), element)(REQUEST, *values)]

    return run


def test_no_function_can_be_called_from_outside(make):
    functions = make().config["dependencies"]
    assert functions and all(
        each["api_visibility"] == "private" for each in functions if each["targets"][0][1] != "unload"
    )


def test_a_broken_file_is_one_sentence_with_the_name_of_the_user(press, tmp_path):
    file = tmp_path / "a hash" / "my clip.mp4"
    file.parent.mkdir()
    file.write_bytes(b"no video")
    for element, *more in (("classify",), ("find-segments", 0.5, 0, 0), ("explain", "", False, 0)):
        *_, last = press(element, str(file), "videomae", *more)
        assert 'class="problem"' in last and str(tmp_path) not in last
        assert "clip.mp4 cannot be opened as a video: Invalid data found when processing input." in last


def test_without_a_video_the_page_says_what_to_do(press):
    assert "There is no video yet: drop one" in press("classify", None, "videomae")[-1]


def test_a_video_that_is_gone_and_a_folder_are_no_video(press, tmp_path):
    (tmp_path / "frame.png").write_bytes(b"no picture")
    for path in (tmp_path / "gone.mp4", tmp_path):
        last = press("classify", str(path), "videomae")[-1]
        assert "The video was removed: open it again." in last


def test_a_bug_is_a_sentence_that_names_the_log(press, tmp_path, caplog):
    video = encode_video(tmp_path / "clip.mp4", make_frames(10))
    last = press("classify", video, "no model", tell_error=lambda error: None)[-1]
    assert "This is a bug (KeyError): see the log of the server." in last
    assert "Traceback" not in last and "no model" not in last


def test_a_path_of_the_server_is_no_address(press):
    assert "passwd is not a valid address" in press("open-url", None, "videomae", "/etc/passwd")[-1]


def test_a_page_for_other_machines_opens_no_address(make):
    """Neither the field and its button nor the functions behind them are there."""
    own, others = make(), make(only_local=False)
    ids = [{getattr(block, "elem_id", None) for block in page.blocks.values()} for page in (own, others)]
    assert ids[0] - ids[1] == {"url", "open-url"}
    assert len(own.fns) - len(others.fns) == 2 * 4


def test_a_page_opens_a_copy_of_an_example(make, find, tmp_path):
    example = Path(encode_video(tmp_path / "clip.mp4", make_frames(10)))
    ids = [
        {getattr(block, "elem_id", None) for block in make(examples=each).blocks.values()} for each in ([], [example])
    ]
    assert ids[1] - ids[0] == {"examples"}
    (step,) = find(make(examples=[example]), "examples")(REQUEST, None, "videomae", 0)
    message, video = step.values()
    assert "clip.mp4 is open." in message
    assert Path(video) != example and Path(video).read_bytes() == example.read_bytes()


def test_work_goes_on_when_the_page_tells_its_video_later(make, find, tmp_path):
    gr = pytest.importorskip("gradio")
    page = make()
    video = encode_video(tmp_path / "clip.mp4", make_frames(10))
    player = next(block for block in page.blocks.values() if getattr(block, "elem_id", None) == "video")
    keep = next(each.fn for each in page.fns.values() if (player._id, "change") in each.targets)
    work = find(page, "classify")(REQUEST, video, "videomae")
    next(work)  # it reads the video
    (told,) = keep(video, REQUEST).values()
    assert told == gr.skip()
    sentence, bars = next(work).values()
    best, *_ = re.findall("<dt>(.*?)</dt>", bars)
    assert best in sentence
    _, *results = keep(None, REQUEST).values()
    assert not any(results)


def test_no_stub_is_written_beside_the_component(make):
    make()
    assert not list(Path(hf_video.app.__file__).parent.glob("*.pyi"))
