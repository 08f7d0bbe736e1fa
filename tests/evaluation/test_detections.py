"""Mean average precision over frames, against the original."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from hf_video.data.boxes import LabelledBoxes, action_names, load_detections, read_boxes, write_boxes
from hf_video.evaluation import annotated_boxes, detected_boxes, evaluate_detection_file, frame_mean_ap
from tests.testing.goldens import FIXTURES

from ..data.detection_files import OWN, write_annotations, write_videos

AVA = FIXTURES / "stmixer" / "ava_map"


@pytest.fixture(scope="module")
def expected():
    content = json.loads((AVA / "expected.json").read_text())
    names = {name.rpartition("/")[2]: value for name, value in content["metrics"].items()}
    return content | {"mean_ap": names.pop("mAP@0.5IOU"), "ap": names}


@pytest.fixture(scope="module")
def detections(expected):
    tensors = load_file(AVA / "predictions.safetensors")
    persons = [
        {name: tensors[f"clip.{clip}.{name}"] for name in ("boxes", "action_scores")}
        for clip in range(len(expected["clips_video_timestamp"]))
    ]
    return detected_boxes(persons, expected["clips_video_timestamp"])


def test_measures_as_the_original(expected):
    result = evaluate_detection_file(
        AVA / "expected_result.csv", AVA / "gt.csv", label_map=AVA / "labelmap.pbtxt", exclude=AVA / "excluded.csv"
    )
    assert result["mean_ap"] == pytest.approx(expected["mean_ap"], abs=1e-12)
    assert result["ap"] == pytest.approx(expected["ap"], abs=1e-12)


def test_writes_detections_as_the_original(detections, tmp_path):
    write_boxes(tmp_path / "detections.csv", detections, range(1, 9))
    written = (tmp_path / "detections.csv").read_text().splitlines()
    assert written == (AVA / "expected_result.csv").read_text().splitlines()
    again = read_boxes(tmp_path / "detections.csv", {str(number + 1): number for number in range(8)}, scored=True)
    for ours, read in zip(detections[1:], again[1:], strict=True):
        assert np.array_equal(ours, read)


def test_equal_scores_count_as_in_the_original():
    # Both boxes of frame 0 hit the annotated one, which the second of them gets; frame 1 comes before them.
    boxes = np.array([[0.0, 0, 1, 1], [0, 0, 1, 0.9], [0, 0, 0.2, 0.2]])
    found = LabelledBoxes(["a"] * 3, np.array([0.0, 0, 1]), boxes, np.zeros(3, int), np.full(3, 0.5))
    true = LabelledBoxes(["a"] * 1, np.zeros(1), boxes[:1], np.zeros(1, int), np.ones(1))
    assert frame_mean_ap(found, true, ["walk"])["mean_ap"] == pytest.approx(1 / 3)


def test_a_class_that_nobody_detects_has_no_precision():
    box = np.array([[0.0, 0, 1, 1]])
    true = LabelledBoxes(["a"], np.zeros(1), box, np.zeros(1, int), np.ones(1))
    found = LabelledBoxes(["a"], np.zeros(1), box, np.ones(1, int), np.ones(1))
    assert frame_mean_ap(found, true, ["walk", "talk"]) == {"mean_ap": 0, "ap": {"walk": 0, "talk": None}}
    with pytest.raises(ValueError, match="No annotation has one of the 1 classes"):
        frame_mean_ap(found, LabelledBoxes([], np.zeros(0), box[:0], np.zeros(0, int), np.ones(0)), ["walk"])


def test_annotations_measure_themselves_as_perfect(tmp_path):
    rows = load_detections(write_annotations(write_videos(tmp_path), train=OWN))["train"]
    true, names = annotated_boxes(rows), action_names(rows)
    assert frame_mean_ap(true, true, names)["ap"] == dict.fromkeys(names, 1)
    write_boxes(tmp_path / "detections.csv", true._replace(video=["a.mp4"] * 3 + ["b.mp4"]), names)
    assert (tmp_path / "detections.csv").read_text().splitlines()[1:3] == [
        'a.mp4,0001,0.10000,0.20000,0.50000,0.90000,"talk, loudly",1.00000',
        "a.mp4,1.5,0.00000,0.00000,1.00000,1.00000,walk,1.00000",
    ]
    result = evaluate_detection_file(tmp_path / "detections.csv", tmp_path / "train.csv")
    assert result == {"mean_ap": 1, "ap": {name: 1 for name in names}}
    with pytest.raises(ValueError, match=r"No row of .*detections.csv has one of the 6 actions: 'action 1'"):
        evaluate_detection_file(tmp_path / "detections.csv", AVA / "gt.csv", label_map=AVA / "labelmap.pbtxt")
