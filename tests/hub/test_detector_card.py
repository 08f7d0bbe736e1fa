"""The card of a trained action detector: its task, its figures, and an example that runs."""

import json
import re

import pytest
import torch
from huggingface_hub import ModelCard

from hf_video.hub import publish, publishing, stage
from hf_video.training import train_detection
from hf_video.training.run_settings import TrainDetectionSettings
from tests.data.detection_files import OWN, write_annotations, write_videos
from tests.hub_server.fixtures import run_in_fresh_process
from tests.training.detection_testing import make_detector, make_processor

REPO = "alice/detector"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    for part in (make_detector(), make_processor()):
        part.save_pretrained(folder / "detector")
    data = write_annotations(write_videos(folder), train=OWN, validation=OWN, test=OWN)
    settings = TrainDetectionSettings(
        data=str(data), model=str(folder / "detector"), output_dir=str(folder / "out"), device="cpu", max_steps=1
    )
    train_detection(settings)
    return folder / "out"


def test_it_says_what_the_detector_finds_and_how_well(trained, hub, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "verify", lambda *arguments, **options: {})
    card = ModelCard.load(stage(trained, tmp_path, REPO).folder / "README.md")
    card.validate()
    assert card.data.pipeline_tag == "object-detection" and card.data.metrics == ["mean_average_precision"]
    assert "It finds people, and knows 3 actions: talk, loudly, turn left, walk." in card.text
    test = json.loads((trained / "report/detection.json").read_text())["mean_ap"]
    validation = json.loads((trained / "training_facts.json").read_text())["validation"]["eval_mean_ap"]
    assert {result.dataset_split: result.metric_value for result in card.data.eval_results} == {
        "test": round(test, 4),
        "validation": round(validation, 4),
    }
    assert f"| test | 3 | 1 clip a key frame | mAP at IoU 0.5 | {test:.2%} |" in card.text
    assert "| train: num key frames | 3 |" in card.text and "How it was trained was not recorded" not in card.text


def test_its_example_runs_for_a_stranger(hub, tmp_path, monkeypatch):
    model = make_detector()
    with torch.no_grad():
        # Every query finds a person.
        model.layers[-1].person_head.output.bias.copy_(torch.tensor([9.0, -9.0]))
    for part in (model, make_processor()):
        part.save_pretrained(tmp_path / "detector")
    publish(tmp_path / "detector", REPO, check_download=False)
    write_videos(tmp_path)
    (tmp_path / "a.mp4").rename(tmp_path / "video.mp4")
    (example,) = re.findall(r"```python\n(.*?)```", ModelCard.load(REPO).text, re.DOTALL)
    process = run_in_fresh_process(hub, example, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert len(lines) == 6 and all(re.fullmatch(r"\[(-?\d+, ){3}-?\d+\] (sit|run|talk)", line) for line in lines)
