"""The card of a trained classifier of frames: its task, its figures, its delay, and examples that run."""

import json
import re
import shutil

import pytest
from huggingface_hub import ModelCard

from hf_video.hub import publish, publishing, stage, verify_model
from hf_video.training import TrainFrameSettings, train_frames
from tests.data.frame_videos import write_flashes
from tests.hub_server.fixtures import run_in_fresh_process

REPO = "alice/frames"
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "patch_size": 16, "tubelet_size": 1, "image_size": 16}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    times = write_flashes(folder, num_videos=2)
    settings = TrainFrameSettings(
        data=str(times),
        output_dir=str(folder / "model"),
        **{**SIZES, "num_frames": 8, "causal": True, "delay": 2, "background": "rest"},
        **{"device": "cpu", "num_train_epochs": 1.0, "disable_tqdm": True},
    )
    train_frames(settings)
    return folder / "model"


def test_it_says_what_a_frame_gets_and_how_well(trained, hub, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(publishing, "verify", lambda *arguments, **options: {})
    staged = stage(trained, tmp_path, REPO, labels=["hell", "dunkel", "Pause"]).folder
    card = ModelCard.load(staged / "README.md")
    card.validate()
    # The page of the Hub shows a pipeline for a tag, and that of videos takes the weights for a classifier of clips.
    assert card.data.pipeline_tag is None and "pipeline" not in card.text
    assert card.data.metrics == ["accuracy", "edit_score", "f1"]
    assert "It gives every frame one of 3 classes: hell, dunkel, Pause. Frames of `Pause` are no segment." in card.text
    assert "The scores of a frame come 2 token frames (0.25 s) later." in card.text
    report = json.loads((trained / "report/frames.json").read_text())
    values = report["frame_accuracy"], report["edit_score"], *report["f1"]
    titles = ("frame accuracy", "edit score", "F1 at 10% overlap", "F1 at 25% overlap", "F1 at 50% overlap")
    for title, value in zip(titles, values, strict=True):
        assert f"| validation | 1 | all frames | {title} | {value:.2%} |" in card.text
    assert "| train: num videos | 1 |" in card.text and "frames of a video at a time" not in card.text
    assert json.loads((staged / "config.json").read_text())["background_label"] == "Pause"
    assert "do not depend on the pixels" not in caplog.text
    found = verify_model(str(staged), device="cpu")
    assert found.first_difference is None and found.findings[-1].part == "logits"


def test_its_examples_run_for_a_stranger(trained, hub, tmp_path):
    publish(trained, REPO, check_download=False)
    shutil.copy(trained.parent / "0.mp4", tmp_path / "video.mp4")
    example, self_test = re.findall(r"```python\n(.*?)```", ModelCard.load(REPO).text, re.DOTALL)
    process = run_in_fresh_process(hub, example + self_test, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    *frames, first, second = process.stdout.splitlines()
    assert len(frames) == 6 and all(re.fullmatch(r"frame \d: (bright|dark|rest)", line) for line in frames)
    assert all("of the largest logit" in line for line in (first, second))
