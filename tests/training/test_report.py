import json
import sys

import numpy as np
import pytest

from hf_video.training import write_report

NAMES = ["left", "right", "up"]
SCORES = np.eye(3)[[0, 1, 2, 2]]
LABELS = np.array([0, 1, 2, 1])
HISTORY = [
    {"loss": 1.0, "epoch": 0.5, "step": 1},
    {"eval_loss": 0.9, "eval_top1_accuracy": 0.5, "epoch": 1.0, "step": 2},
    {"loss": 0.7, "epoch": 1.5, "step": 3},
    {"eval_loss": 0.6, "eval_top1_accuracy": 0.75, "epoch": 2.0, "step": 4},
]


def write(folder, **options):
    return write_report(folder, scores=SCORES, labels=LABELS, class_names=NAMES, **options)


def test_everything_is_written(tmp_path):
    result = write(tmp_path / "report", log_history=HISTORY, split="test", details={"seed": 5})
    written = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert written == ["confusion_matrix.png", "curves.png", "metrics.json", "report.md"]
    assert json.loads((tmp_path / "report" / "metrics.json").read_text()) == result
    assert result["top1_accuracy"] == 0.75 and result["num_videos"] == 4 and result["seed"] == 5
    summary = (tmp_path / "report" / "report.md").read_text()
    assert "Measured on 4 videos of the test split." in summary
    assert "| right | 2 | 50.0% | up (1) |" in summary
    for name in ("curves.png", "confusion_matrix.png"):
        assert (tmp_path / "report" / name).read_bytes().startswith(b"\x89PNG")
        assert f"({name})" in summary


def test_pictures_can_be_drawn_for_many_classes_and_none_without_history(tmp_path):
    num_classes = 70
    scores, labels = np.eye(num_classes), np.arange(num_classes)
    write_report(tmp_path, scores=scores, labels=labels, class_names=[f"class {i}" for i in labels])
    assert (tmp_path / "confusion_matrix.png").exists()
    assert not (tmp_path / "curves.png").exists()


def test_without_matplotlib_the_rest_is_written_with_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write(tmp_path, log_history=HISTORY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.json", "report.md"]
    assert [record.getMessage() for record in caplog.records] == [
        "No pictures in the report: matplotlib is missing (pip install hf-video-models[demo])."
    ]


def test_a_report_survives_an_interrupted_rewrite(tmp_path, monkeypatch):
    write(tmp_path)
    before = (tmp_path / "metrics.json").read_text()

    def interrupted(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, details={"seed": 6})
    assert (tmp_path / "metrics.json").read_text() == before


def test_names_must_match_the_scores(tmp_path):
    with pytest.raises(ValueError, match="scores of 3 classes but 2 class names"):
        write_report(tmp_path / "report", scores=SCORES, labels=LABELS, class_names=NAMES[:2])
    assert not (tmp_path / "report").exists()
