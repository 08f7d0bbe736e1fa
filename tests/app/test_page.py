"""What the page of Gradio lets a browser do."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

import hf_video.app
from hf_video.app.work import LoadedModel
from hf_video.inference.inference_settings import TimelineSettings
from hf_video.processing import VideoClipProcessor

pytestmark = pytest.mark.extras


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes the page of a small model."""
    pytest.importorskip("gradio")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    from hf_video.app.page import Page

    sizes = {"image_size": 32, "patch_size": 16, "num_frames": 2, "hidden_size": 16}
    config = VideoMAEConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    config.name_or_path = "/models/secret"
    torch.manual_seed(0)
    processor = VideoClipProcessor(num_frames=2, crop_size={"height": 32, "width": 32})
    model = LoadedModel("videomae", VideoMAEForVideoClassification(config).eval(), processor)

    return lambda: Page([model], workers=1, tell_error=str).blocks


@pytest.fixture
def press(make):
    """Presses a button, and returns the messages of its work."""

    def run(element, *values):
        page = make()
        button = next(block for block in page.blocks.values() if getattr(block, "elem_id", None) == element)
        work = next(each for each in page.fns.values() if (button._id, "click") in each.targets)
        return [next(iter(step.values())) for step in work.fn(*values)]

    return run


def test_no_function_can_be_called_from_outside(make):
    functions = make().config["dependencies"]
    assert functions and all(each["api_visibility"] == "private" or not each["backend_fn"] for each in functions)


def test_a_broken_file_is_one_sentence_with_the_name_of_the_user(press, tmp_path):
    file = tmp_path / "a hash" / "my clip.mp4"
    file.parent.mkdir()
    file.write_bytes(b"no video")
    for element, *more in (("classify",), ("find-segments", 0.5, 0, 0), ("explain", "", False, 0)):
        *_, last = press(element, str(file), "videomae", *more)
        assert 'class="problem"' in last and str(tmp_path) not in last
        assert "clip.mp4 cannot be opened as a video" in last


def test_without_a_video_the_page_says_what_to_do(press, tmp_path):
    for path in (None, str(tmp_path / "gone.mp4"), str(tmp_path)):
        assert "There is no video, or it was removed: drop one" in press("classify", path, "videomae")[-1]


def test_no_name_of_a_stranger_becomes_html(press, tmp_path):
    file = tmp_path / "<img src=x onerror=alert(1)>.mp4"
    file.write_bytes(b"no video")
    shown = press("classify", str(file), "videomae")[-1]
    assert "<img" not in shown and "&lt;img src=x onerror=alert(1)&gt;.mp4" in shown


def test_segments_are_those_of_the_command_by_default(make):
    sliders = [block.value for block in make().blocks.values() if block.get_block_name() == "slider"]
    settings = TimelineSettings
    assert sliders == [settings.onset, settings.min_duration_on, settings.min_duration_off]


def test_a_browser_cannot_name_an_address_in_place_of_a_video(make):
    gradio = pytest.importorskip("gradio")
    player = next(block for block in make().blocks.values() if getattr(block, "elem_id", None) == "video")
    with pytest.raises(gradio.Error, match="no address"), ThreadPoolExecutor() as pool:
        # In a thread of its own: the browser of other tests holds a loop in this one.
        pool.submit(asyncio.run, player.async_move_resource_to_block_cache("http://127.0.0.1/a.mp4")).result()


def test_no_stub_is_written_beside_the_component(make):
    make()
    assert not list(Path(hf_video.app.__file__).parent.glob("*.pyi"))
