"""Mean average precision over frames: against the original, and against a slow count."""

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


def slow_average_precision(found, true, iou):
    """The average precision of one class, counted box by box. `found` are (frame, number of the frame, box, score),
    `true` are (frame, box)."""

    def overlap(a, b):
        width, height = (min(a[2 + axis], b[2 + axis]) - max(a[axis], b[axis]) for axis in (0, 1))
        common = max(width, 0) * max(height, 0)
        areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
        return common / (sum(areas) - common)

    taken, is_right = set(), {}
    # Of equal scores in a frame, the last one chooses first.
    for row, (frame, _, box, _) in sorted(enumerate(found), key=lambda each: (-each[1][3], -each[0])):
        if box[0] >= box[2] or box[1] >= box[3]:
            continue
        overlaps = [(overlap(box, other), -number) for number, (place, other) in enumerate(true) if place == frame]
        best, number = max(overlaps, default=(0, 0))
        is_right[row] = best >= iou and number not in taken
        if is_right[row]:
            taken.add(number)
    # Of equal scores in all frames, those of the last frame come first, in the opposite order.
    ranking = sorted(is_right, key=lambda row: (-found[row][3], -found[row][1], row))
    marks = [is_right[row] for row in ranking]
    area, highest = 0.0, 0.0
    for rank in range(len(marks), 0, -1):
        highest = max(highest, sum(marks[:rank]) / rank)
        area += highest * marks[rank - 1]
    return area / len(true)


def random_boxes(rng, size, num_classes, num_frames=6):
    corners = rng.random((size, 2)) * 0.5
    boxes = np.concatenate([corners, corners + 0.2 + rng.random((size, 2)) * 0.3], axis=1)
    boxes[rng.random(size) < 0.05, 2] = 0
    videos = [f"video {number}" for number in rng.integers(3, size=size)]
    seconds = rng.integers(num_frames, size=size).astype(float)
    return LabelledBoxes(videos, seconds, boxes, rng.integers(-1, num_classes, size), rng.permutation(size) / size)


@pytest.mark.parametrize(("seed", "iou", "decimals"), [(0, 0.3, 1), (1, 0.5, 5)])
def test_agrees_with_a_count_box_by_box(seed, iou, decimals):
    rng = np.random.default_rng(seed)
    classes = ["walk", "talk", "sit", "never"]
    found, true = random_boxes(rng, 400, 3), random_boxes(rng, 150, 3)
    found = found._replace(score=found.score.round(decimals))
    result = frame_mean_ap(found, true, classes, iou)
    frames = [list(zip(each.video, each.second.tolist(), strict=True)) for each in (found, true)]
    counts = [frame for frame, action in zip(frames[0], found.action, strict=True) if action >= 0]
    order = {frame: number for number, frame in enumerate(dict.fromkeys(counts))}
    expected = {
        name: slow_average_precision(
            [
                (frames[0][row], order[frames[0][row]], found.boxes[row], found.score[row])
                for row in np.flatnonzero(found.action == number)
            ],
            [(frames[1][row], true.boxes[row]) for row in np.flatnonzero(true.action == number)],
            iou,
        )
        for number, name in enumerate(classes[:3])
    }
    assert result["ap"].pop("never") is None
    assert result["ap"] == pytest.approx(expected, abs=1e-12)
    assert result["mean_ap"] == pytest.approx(np.mean(list(expected.values())), abs=1e-12)
    assert 0.01 < result["mean_ap"] < 0.99


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
