"""Models are named as folders, released models, and repositories of the Hub."""

import time
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from hf_video.cli.errors import explain
from hf_video.loading import configurations
from hf_video.loading.models import load_released, load_trained_model, locate_model, require_model
from tests.hub.conftest import make_model


def test_a_name_that_is_no_folder_is_said_to_be_none_where_the_hub_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    (tmp_path / "config.json").touch()
    require_model(str(tmp_path))
    begin = time.monotonic()
    with pytest.raises(OSError, match="--model nofolder: there is no folder of this name here") as caught:
        require_model("nofolder", "--model")
    # A download would be tried again for half a minute.
    assert time.monotonic() - begin < 5 and explain(caught.value) == str(caught.value)
    with pytest.raises(OSError, match=r"Did you mean MCG-NJU/videomae-base\?"):
        require_model("MCG-NJU/videomae-bse")
    (tmp_path / "my model").mkdir()
    (tmp_path / "my model" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    for wrong in ("my-modle", "my modle", f"{tmp_path}/my-modle"):
        with pytest.raises((OSError, ValueError), match=r"Did you mean my model\?"):
            require_model(wrong)


def test_a_folder_without_a_model_is_refused_and_one_inside_it_is_named(tmp_path):
    with pytest.raises(ValueError, match="has no config.json, so it is no folder of a model.$"):
        require_model(str(tmp_path))
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3" / "config.json").touch()
    with pytest.raises(ValueError, match=r"no folder of a model\. Inside it is checkpoint-3"):
        require_model(str(tmp_path))


@pytest.mark.parametrize("share, fits", [(1.5, True), (0.9, False)])
def test_a_model_may_have_as_many_bytes_as_the_machine(share, fits, tmp_path, monkeypatch):
    model, processor = make_model("VideoViT", ["a", "b"])
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    size = sum(weight.nbytes for weight in model.parameters())
    monkeypatch.setattr(configurations.psutil, "virtual_memory", lambda: SimpleNamespace(total=int(size * share)))
    if fits:
        load_trained_model(str(tmp_path), device="cpu")
    else:
        with pytest.raises(ValueError, match="the memory of this machine"):
            load_trained_model(str(tmp_path), device="cpu")


def test_the_start_that_ships_is_a_model_like_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, processor = load_trained_model("start", device="cpu")
    assert model.config.num_labels > 1 and processor.num_frames == model.config.num_frames
    assert load_released("start")[0].config.id2label == model.config.id2label
    (tmp_path / "start").mkdir()
    assert locate_model("start") == "start"
