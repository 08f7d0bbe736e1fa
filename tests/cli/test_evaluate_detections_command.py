"""`hf-video evaluate --task action-detection` of a file of detections, and of a model on annotated key frames."""

import json

import pytest
from torch import nn

from hf_video.cli.main import main
from tests.testing.goldens import FIXTURES

from ..data.detection_files import OWN, write_annotations, write_videos
from ..training.detection_testing import make_detector, make_processor

AVA = FIXTURES / "stmixer" / "ava_map"
DETECTIONS = str(AVA / "expected_result.csv")
GROUND_TRUTH = ("--ground-truth", str(AVA / "gt.csv"))
OPTIONS = (*GROUND_TRUTH, "--label-map", str(AVA / "labelmap.pbtxt"), "--exclude", str(AVA / "excluded.csv"))
NAMES = ["talk, loudly", "turn left", "walk"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_annotations(write_videos(tmp_path_factory.mktemp("persons")), test=OWN)


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """Its boxes are whole frames, one of which is annotated."""
    saved = tmp_path_factory.mktemp("detector")
    model = make_detector(id2label=dict(enumerate([*reversed(NAMES), "sit"])))
    for layer in model.layers:
        nn.init.zeros_(layer.box_head.output.weight)
    for part in (model, make_processor()):
        part.save_pretrained(saved)
    return saved


def evaluate(capsys, data, *words):
    code = main(["evaluate", str(data), "--task", "action-detection", *map(str, words)])
    return code, capsys.readouterr()


def test_a_model_and_its_file_of_detections_have_the_same_figures(folder, detector, tmp_path, capsys):
    file = tmp_path / "found.csv"
    options = ("--model", detector, "--device", "cpu", "--batch-size", 2)
    code, printed = evaluate(capsys, folder, *options, "--json", "--detections", file)
    assert code == 0
    result = json.loads(printed.out)
    assert (result["split"], result["num_key_frames"]) == ("test", 3) and list(result["ap"]) == NAMES
    assert 0 < result["mean_ap"] <= 1
    assert {line.split(",")[0] for line in file.read_text().splitlines()} == {"a", "b"}
    code, printed = evaluate(capsys, file, "--ground-truth", folder / "test.csv", "--json")
    assert code == 0 and json.loads(printed.out)["ap"] == pytest.approx(result["ap"], abs=1e-9)
    code, printed = evaluate(capsys, folder, *options)
    assert code == 0 and "3 key frames of the test split" in printed.out
    assert f"mAP at IoU 0.5  {result['mean_ap']:.2%}" in printed.out and "turn left" in printed.out


def test_a_label_map_says_which_actions_are_measured(folder, detector, tmp_path, capsys):
    labels = tmp_path / "map.pbtxt"
    labels.write_text(
        'item { name: "walk" id: 1 } item { name: "talk, loudly" id: 3 } item { name: "turn left" id: 4 }'
    )
    options = ("--model", detector, "--device", "cpu", "--label-map", labels, "--detections", tmp_path / "found.csv")
    code, printed = evaluate(capsys, folder, *options, "--json")
    assert code == 0 and list(json.loads(printed.out)["ap"]) == ["walk", "talk, loudly", "turn left"]
    lines = (tmp_path / "found.csv").read_text().splitlines()
    assert {line.split(",")[6] for line in lines} == {"1", "3", "4"}


def test_a_video_that_ends_too_early_is_left_out(folder, detector, tmp_path, capsys):
    data = write_videos(tmp_path)
    write_annotations(data, test=OWN + "b.mp4,50,0.25,0.5,0.75,1.0,walk,1\n")
    options = ("--model", detector, "--device", "cpu", "--batch-size", 1, "--json")
    assert evaluate(capsys, data, *options)[0] != 0
    code, printed = evaluate(capsys, data, *options, "--on-error", "skip")
    result = json.loads(printed.out)
    assert code == 0 and result["num_key_frames"] == 3 and "b.mp4" in result["broken_videos"][0]


def test_a_model_knows_the_actions_of_the_data(folder, tmp_path, capsys):
    for part in (make_detector(), make_processor()):
        part.save_pretrained(tmp_path)
    code, printed = evaluate(capsys, folder, "--model", tmp_path, "--device", "cpu")
    assert code == 2 and "does not know 3 of the 3 actions of the data (talk, loudly, turn left, walk)" in printed.err


def test_prints_the_figures_of_the_original(tmp_path, capsys):
    file = tmp_path / "result.json"
    words = (DETECTIONS, *OPTIONS)
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
