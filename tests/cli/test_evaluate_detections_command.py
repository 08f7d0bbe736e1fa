"""`hf-video evaluate --task action-detection` of a file of detections."""

import json

import pytest

from hf_video.cli.main import main
from tests.testing.goldens import FIXTURES

AVA = FIXTURES / "stmixer" / "ava_map"
DETECTIONS = str(AVA / "expected_result.csv")
GROUND_TRUTH = ("--ground-truth", str(AVA / "gt.csv"))
OPTIONS = (*GROUND_TRUTH, "--label-map", str(AVA / "labelmap.pbtxt"), "--exclude", str(AVA / "excluded.csv"))


def evaluate(capsys, *words):
    code = main(["evaluate", *words])
    return code, capsys.readouterr()


def test_prints_the_figures_of_the_original(tmp_path, capsys):
    file = tmp_path / "result.json"
    words = (DETECTIONS, "--task", "action-detection", *OPTIONS)
    code, printed = evaluate(capsys, *words, "--json", "--output", str(file))
    assert code == 0
    result = json.loads(printed.out)
    assert result == json.loads(file.read_text()) and list(result) == ["mean_ap", "ap"]
    expected = json.loads((AVA / "expected.json").read_text())["metrics"]
    found = {f"PascalBoxes_PerformanceByCategory/AP@0.5IOU/{name}": value for name, value in result["ap"].items()}
    found["PascalBoxes_Precision/mAP@0.5IOU"] = result["mean_ap"]
    assert found == pytest.approx(expected, abs=1e-6)
    _, printed = evaluate(capsys, *words)
    assert "mAP at IoU 0.5  39.26%" in printed.out and "action 2             12.50%" in printed.out


def test_tells_what_is_missing(fails):
    words = ("evaluate", DETECTIONS, "--task", "action-detection")
    assert "--model" in fails(*words)
    assert "no effect without task=detection" in fails("evaluate", DETECTIONS, *GROUND_TRUTH)
    assert "leave --model and --detections out" in fails(*words, *GROUND_TRUTH, "--model", "m")
    assert "has no scores" in fails("evaluate", AVA / "gt.csv", *words[2:], *OPTIONS)
