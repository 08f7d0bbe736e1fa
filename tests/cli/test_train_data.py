"""Training from other data than folders: clips of several classes, and data sets with a column of videos."""

import json
import shutil
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Video
from transformers import AutoModelForVideoClassification, pipeline

from hf_video.cli.main import main
from hf_video.processing import VideoClipProcessor
from tests.testing.files import ODD_FILES, make_odd_file

from .conftest import TINY_MODEL, TINY_RUN

NAMES = ["down", "left", "right", "up"]


@pytest.fixture(scope="module")
def directions(digits, tmp_path_factory):
    """CSV files that give each moving digit the directions in the name of its folder."""
    folder = tmp_path_factory.mktemp("directions")
    for split in ("train", "test"):
        lines = [f"{path},{path.parent.name.replace('-', ';')}" for path in sorted((digits / split).rglob("*.mp4"))]
        (folder / f"{split}.csv").write_text("\n".join(["path,labels", *lines]))
    return folder


@pytest.fixture(scope="module")
def multi_label_model(directions, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "multi_label"
    words = ["--num-clips", "2", "--mixup-alpha=0.8", "--horizontal-flip"]
    assert main(["train", str(directions), "--output-dir", str(folder), *TINY_MODEL, *TINY_RUN, *words]) == 0
    return folder


def test_a_model_of_several_classes_a_clip(multi_label_model):
    config = AutoModelForVideoClassification.from_pretrained(multi_label_model).config
    assert config.problem_type == "multi_label_classification"
    assert [config.id2label[index] for index in range(4)] == NAMES
    state = json.loads((multi_label_model / "checkpoint-4" / "trainer_state.json").read_text())
    best = max(entry.get("eval_mean_average_precision", 0) for entry in state["log_history"])
    assert state["best_metric"] == best > 0
    assert VideoClipProcessor.from_pretrained(multi_label_model).num_clips == 2


def test_evaluation_by_average_precision(multi_label_model, directions, tmp_path, says, fails):
    table = tmp_path / "table.csv"
    words = ["evaluate", str(directions), "--model", str(multi_label_model), "--device", "cpu"]
    result = json.loads(says(*words, "--json", "--predictions", table))
    report = json.loads((multi_label_model / "report" / "metrics.json").read_text())
    assert result["mean_average_precision"] == pytest.approx(report["mean_average_precision"])
    assert result["class_names"] == NAMES and result["views"] == "2 clips x 1 crop"
    present = [path.read_text().count(name) for name in NAMES for path in [directions / "test.csv"]]
    assert sum(result["class_videos"]) <= sum(present) and len(result["class_average_precision"]) == 4
    assert result["mean_average_precision"] == pytest.approx(sum(result["class_average_precision"]) / 4)
    assert "confusion_matrix" not in result and "top1_accuracy" not in result
    assert table.read_text().startswith("video,labels,predictions,is_right,error,score: down")
    out = says(*words)
    assert "mean average precision" in out and "\ndown " in out
    assert "--by video measures accuracy" in fails(*words, "--by", "video")


def test_predictions_are_independent_probabilities(multi_label_model, digits, says):
    video = str(next((digits / "test").rglob("*.mp4")))
    words = ["predict", video, "--model", str(multi_label_model), "--device", "cpu", "--json"]
    scores = {entry["label"]: entry["score"] for entry in json.loads(says(*words))["predictions"]}
    classify = pipeline("video-classification", multi_label_model)
    expected = {entry["label"]: entry["score"] for entry in classify(video, num_frames=4, top_k=4)}
    assert scores == pytest.approx(expected, abs=1e-5)
    assert sum(scores.values()) != pytest.approx(1, abs=1e-2)


def test_options_and_models_of_one_class_a_clip_are_refused(
    multi_label_model, directions, digits, trained, tmp_path, fails
):
    words = ["--output-dir", tmp_path / "out", *TINY_MODEL, *TINY_RUN, "--label-smoothing-factor=0.1"]
    assert "label_smoothing_factor is for one class a video" in fails("train", directions, *words)
    assert not (tmp_path / "out").exists()
    message = fails("evaluate", digits, "--model", multi_label_model)
    assert "not among the 4 known labels" in message
    (tmp_path / "one.csv").write_text(
        (directions / "test.csv").read_text().replace("labels", "label").replace(";", "-")
    )
    assert "not among the 4 known labels" in fails("evaluate", tmp_path / "one.csv", "--model", multi_label_model)
    lines = [f"{path},{path.parent.name.split('-')[0]}" for path in sorted((digits / "test").rglob("*.mp4"))]
    (tmp_path / "one.csv").write_text("\n".join(["path,label", *lines]))
    message = fails("evaluate", tmp_path / "one.csv", "--model", multi_label_model)
    assert "have one class each, the model was trained for any number" in message


def test_a_data_set_with_a_column_of_videos(digits, tmp_path, capsys, says):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    splits = DatasetDict()
    for split in ("train", "test"):
        paths = sorted((digits / split).rglob("*.mp4"))
        names = [path.parent.name for path in paths]
        features = Features({"clip": Video(decode=False), "direction": ClassLabel(names=sorted(set(names)))})
        if split == "train":
            paths, names = [*paths, tmp_path / "broken.mp4"], [*names, names[0]]
        clips = [{"path": path.name, "bytes": path.read_bytes()} for path in paths]
        splits[split] = Dataset.from_dict({"clip": clips, "direction": names}, features=features)
    splits.save_to_disk(tmp_path / "data")
    words = ["--output-dir", str(tmp_path / "out"), *TINY_MODEL, *TINY_RUN, "--on-error", "skip"]
    out = says("train", tmp_path / "data", *words)
    assert "1 video could not be read" in out and "broken.mp4" in out
    facts = json.loads((tmp_path / "out" / "training_facts.json").read_text())
    assert facts["data"]["train"]["num_classes"] == 8
    report = json.loads((tmp_path / "out" / "report" / "metrics.json").read_text())
    assert report["split"] == "test" and report["num_videos"] == 8
    table = tmp_path / "table.csv"
    words = ["evaluate", str(tmp_path / "data"), "--model", str(tmp_path / "out"), "--device", "cpu", "--json"]
    assert json.loads(says(*words, "--predictions", table))["top1_accuracy"] == report["top1_accuracy"]
    assert len({line.partition(",")[0] for line in table.read_text().splitlines()}) == 9
    assert main(["inspect", str(tmp_path / "data"), "--json"]) == 1
    assert list(json.loads(capsys.readouterr().out)["broken"]) == ["train[24] broken.mp4"]
    assert Path(tmp_path / "out" / "config.json").is_file()


def test_a_validation_split_without_any_class_is_refused_before_training(directions, tmp_path, fails):
    data = shutil.copytree(directions, tmp_path / "data")
    rows = [line.partition(",")[0] + "," for line in (data / "test.csv").read_text().splitlines()[1:]]
    (data / "test.csv").unlink()
    (data / "validation.csv").write_text("\n".join(["path,labels", *rows]))
    message = fails("train", data, "--output-dir", tmp_path / "out", *TINY_MODEL, *TINY_RUN)
    assert "No video of the validation split has a class" in message
    assert not (tmp_path / "out").exists()


def test_a_run_begins_with_a_warning_of_clips_that_repeat(digits, tmp_path, caplog):
    folder = shutil.copytree(digits, tmp_path / "data")
    rows = [f"{video},{video.parent.name}" for video in sorted((folder / "train").rglob("*.mp4"))]
    twice = rows[0].partition(",")[0]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows, f"{twice},{rows[-1].partition(',')[2]}"]))
    words = ["--output-dir", str(tmp_path / "out"), *TINY_MODEL, *TINY_RUN, "--max-steps=1"]
    assert main(["train", str(tmp_path / "list.csv"), *words]) == 0
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "hf_video.training.data"]
    assert "different labels" in warning and "(1 clip)" in warning and twice in warning


def test_training_refuses_what_stands_in_the_place_of_a_video(digits, tmp_path, fails):
    folder = shutil.copytree(digits, tmp_path / "data")
    odd = [make_odd_file(folder / "train" / "left-up" / f"{kind}.mp4", kind) for kind in ODD_FILES if kind != "folder"]
    broken = folder / "train" / "up-left" / "broken.mp4"
    broken.write_bytes(b"not a video")
    message = fails("train", folder, "--output-dir", tmp_path / "out", *TINY_MODEL, *TINY_RUN)
    assert f"{len(odd) + 1} videos cannot be read" in message and "is no file; a file is expected" in message
    assert str(broken) in message
    assert not (tmp_path / "out").exists()
