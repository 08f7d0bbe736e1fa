"""Mean average precision over frames: against the original, and against a slow count."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from hf_video.data.box_files import read_boxes, write_boxes
from hf_video.inference import detected_boxes, evaluate_detection_file

from ..goldens import FIXTURES

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
