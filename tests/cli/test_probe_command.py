import json
import shutil

import pytest
import torch
from transformers import AutoModelForVideoClassification, pipeline

from hf_video.cli.main import main
from hf_video.data import ClipTask


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return tmp_path_factory.mktemp("features")


def probe(digits, trained, features, output_dir, *words):
    command = ["probe", str(digits), "--model", str(trained), "--output-dir", str(output_dir), "--device", "cpu"]
    return main([*command, "--features", str(features), *words])


def test_a_linear_probe_is_a_model_that_all_commands_take(digits, trained, features, tmp_path, capsys, says):
    out = tmp_path / "out"
    assert probe(digits, trained, features, out, "--num-train-epochs=3") == 0
    metrics = json.loads((out / "report" / "metrics.json").read_text())
    assert (metrics["split"], metrics["num_videos"], metrics["training_videos"]) == ("test", 8, 16)
    assert (out / "report" / "curves.png").exists() and (out / "report" / "worst_clips.png").exists()
    assert f"top-1 accuracy {metrics['top1_accuracy']:.1%} on 8 test videos" in capsys.readouterr().out
    again = json.loads(says("evaluate", digits, "--model", out, "--json", "--device", "cpu"))
    assert again["confusion_matrix"] == metrics["confusion_matrix"]
    before, after = (AutoModelForVideoClassification.from_pretrained(path).state_dict() for path in (trained, out))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        "classifier.weight",
        "classifier.bias",
    }
    video = str(next((digits / "test").rglob("*.mp4")))
    assert pipeline("video-classification", model=str(out), device="cpu")(video, top_k=1)[0]["label"]


def test_what_a_probe_held_out_of_class_folders_is_measured(digits, trained, features, tmp_path, says):
    data, out = digits / "train", tmp_path / "out"
    assert probe(data, trained, features, out, "--num-train-epochs=1") == 0
    metrics = json.loads((out / "report" / "metrics.json").read_text())
    found = json.loads(says("evaluate", data, "--model", out, "--json", "--device", "cpu").splitlines()[-1])
    assert (found["split"], found["part_of_training"]) == (metrics["split"], "held out") == ("validation", "held out")
    assert found["confusion_matrix"] == metrics["confusion_matrix"]
    assert found["known_videos"] == {"train": 0, "validation": 8}


def test_an_interrupted_probe_says_what_it_kept_and_the_next_one_reads_no_video_twice(
    digits, trained, tmp_path, monkeypatch, capsys
):
    from hf_video.bulk import feature_cache

    monkeypatch.setattr(feature_cache, "SHARD_SIZE", 4)
    read = []
    original = ClipTask.make

    def count(self, row, key, training):
        if len(read) == 6:
            raise KeyboardInterrupt
        read.append(row)
        return original(self, row, key, training)

    features = tmp_path / "features"
    with monkeypatch.context() as patch:
        patch.setattr(ClipTask, "make", count)
        assert probe(digits, trained, features, tmp_path / "out", "--batch-size", "2") == 130
    assert "The features of 4 of 16 videos are kept in" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    kept = {path: path.stat().st_mtime_ns for path in features.rglob("*.safetensors")}
    assert len(kept) == 1
    assert probe(digits, trained, features, tmp_path / "out", "--num-train-epochs=1") == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    # 24 videos to train on and to hold out of these, in 16 and 8, and 8 to test.
    assert len(list(features.rglob("*.safetensors"))) == 4 + 2 + 2


def test_errors(digits, trained, tmp_path, fails):
    (tmp_path / "thesis.txt").write_text("mine")
    words = ("probe", digits, "--model", trained, "--output-dir")
    assert "is not empty (thesis.txt)" in fails(*words, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_broken_videos_are_left_out_and_named(digits, trained, tmp_path, capsys):
    shutil.copytree(digits, tmp_path / "data")
    # One cannot be opened, the other not be decoded to its end.
    unopened, truncated = (tmp_path / "data" / "train" / name / "0001.mp4" for name in ("left-up", "up-left"))
    unopened.write_bytes(b"not a video")
    truncated.write_bytes(truncated.read_bytes()[:-200])
    words = ("--on-error", "skip", "--num-train-epochs=1")
    assert probe(tmp_path / "data", trained, tmp_path / "features", tmp_path / "out", *words) == 0
    out = capsys.readouterr().out
    assert "videos could not be read:" in out and str(unopened) in out
    assert json.loads((tmp_path / "out" / "report" / "metrics.json").read_text())["num_videos"] == 8
