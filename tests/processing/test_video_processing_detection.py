from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoVideoProcessor

from hf_video import STMixerConfig
from hf_video.processing import VideoDetectionProcessor
from tests.testing.goldens import load_golden


def outputs_of(logits, action_logits, boxes):
    return SimpleNamespace(logits=logits, action_logits=action_logits, pred_boxes=boxes)


def some_outputs(dtype=torch.float32):
    """Two persons of four queries in one clip; the first box sticks out at the left and the bottom."""
    logits = torch.tensor([[[2.0, -2.0], [-2.0, 2.0], [0.3, 0.0], [1.0, -1.0]]], dtype=dtype)
    boxes = torch.tensor([[[-4.0, 10.0, 20.0, 90.0], [0, 0, 5, 5], [0, 0, 7, 7], [10, 20, 30, 40]]], dtype=dtype)
    return outputs_of(logits, torch.linspace(-2, 2, 12, dtype=dtype).reshape(1, 4, 3), boxes)


def test_prepares_clips_and_boxes_as_the_original():
    golden = load_golden("stmixer", "preprocessing")
    clips = [golden.inputs[f"clip.{number}.frames_rgb"] for number in range(2)]
    annotations = [
        {
            "boxes": golden.inputs[f"clip.{number}.boxes"] * torch.tensor(clip.shape[1:3]).flip(0).repeat(2),
            "class_labels": torch.eye(3),
        }
        for number, clip in enumerate(clips)
    ]
    processor = VideoDetectionProcessor(size={"shortest_edge": golden.config["short_side"]}, num_frames=2)
    batch = processor(clips, annotations=annotations, flip=golden.config["flipped"], return_tensors="pt")
    expected = golden.expected["pixel_values"].transpose(1, 2)
    torch.testing.assert_close(batch["pixel_values"], expected, atol=1e-5, rtol=0)
    assert batch["original_sizes"].tolist() == golden.expected["whwh"][:, [1, 0]].tolist()
    for number, labels in enumerate(batch["labels"]):
        assert labels["boxes"].dtype == torch.float32
        torch.testing.assert_close(
            labels["boxes"].double(), golden.expected[f"clip.{number}.boxes"], atol=1e-4, rtol=0
        )
        assert torch.equal(labels["class_labels"], torch.eye(3))


def test_an_option_of_a_call_counts():
    clip = np.zeros((16, 40, 60, 3), dtype=np.uint8)
    batch = VideoDetectionProcessor(size={"shortest_edge": 40})([clip], pad_size_divisor=48, return_tensors="pt")
    assert batch["pixel_values"].shape[-2:] == (48, 96)
    with pytest.raises(ValueError, match="pad_size_divisor=0 must be"):
        VideoDetectionProcessor()([clip], pad_size_divisor=0)


def test_clips_of_another_device_are_taken(monkeypatch):
    class Far(torch.Tensor):
        def __array__(self, *args, **kwargs):
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")

    clip = torch.randint(0, 255, (16, 3, 40, 60), dtype=torch.uint8)
    processor = VideoDetectionProcessor(size={"shortest_edge": 40})
    found, expected = (processor([each], return_tensors="pt") for each in (clip.as_subclass(Far), clip))
    assert torch.equal(found["pixel_values"].as_subclass(torch.Tensor), expected["pixel_values"])


def test_times_of_a_clip_are_those_of_the_original_frames():
    processor = VideoDetectionProcessor()
    for case in load_golden("stmixer", "preprocessing").config["clip_frame_indices_16x4"]:
        frames = processor.key_frame_times(case["center"] / 30) * 30
        assert np.allclose(np.clip(frames, 0, case["num_frames"] - 1), case["frames"])


@pytest.mark.parametrize("precision", ["", "float64."])
@pytest.mark.parametrize(("case", "last_stage"), [("detector_inference", 2), ("detector_padded", 1)])
def test_returns_persons_as_the_original(case, last_stage, precision):
    golden = load_golden("stmixer", case)
    names = ("class_logits", "action_logits", "boxes")
    outputs = outputs_of(*(golden.expected[f"{precision}stage.{last_stage}.{name}"] for name in names))
    persons = VideoDetectionProcessor().post_process_action_detection(
        outputs, threshold=0.6, original_sizes=golden.inputs["whwh"][:, [1, 0]], original=True
    )
    tolerance = 1e-9 if precision else 2e-6
    for clip, person in enumerate(persons):
        for ours, theirs in {"boxes": "boxes", "scores": "person_scores", "action_scores": "action_scores"}.items():
            expected = golden.expected[f"{precision}post.{clip}.{theirs}"]
            torch.testing.assert_close(person[ours], expected, atol=tolerance, rtol=0)


def test_persons_are_cut_at_the_clip_and_scaled_to_the_video():
    processor, outputs = VideoDetectionProcessor(), some_outputs()
    (person,) = processor.post_process_action_detection(outputs, 0.6, [(50, 40)])
    assert person["boxes"].tolist() == [[0, 10, 20, 49], [10, 20, 30, 40]]
    assert torch.allclose(person["scores"], torch.tensor([4.0, 2.0]).sigmoid())
    assert torch.allclose(person["action_scores"], outputs.action_logits[0, [0, 3]].sigmoid())
    (scaled,) = processor.post_process_action_detection(outputs, 0.6, torch.tensor([[50, 40]]), [(100, 120)])
    assert scaled["boxes"].tolist() == [[0, 20, 60, 98], [30, 40, 90, 80]]
    (uncut,) = processor.post_process_action_detection(outputs)
    assert uncut["boxes"][0].tolist() == [-4, 10, 20, 90]


@pytest.mark.parametrize("value", [1.5, "high"])
def test_a_threshold_is_a_share(value):
    with pytest.raises(ValueError, match="person_threshold"):
        VideoDetectionProcessor(person_threshold=value)


def test_a_clip_without_persons_gives_empty_tensors_except_in_the_original_form():
    processor, outputs = VideoDetectionProcessor(), some_outputs(torch.bfloat16)
    (nobody,) = processor.post_process_action_detection(outputs, threshold=1.0, original_sizes=[(50, 40)])
    assert [nobody[name].shape for name in ("boxes", "scores", "action_scores")] == [(0, 4), (0,), (0, 3)]
    assert nobody["scores"].dtype == torch.float32
    options = {"threshold": 1.0, "original_sizes": [(50, 40)], "original": True}
    (best,) = processor.post_process_action_detection(outputs, **options)
    assert best["scores"].argsort(descending=True).tolist() == [0, 1, 2]
    few = outputs_of(outputs.logits[:, :2], outputs.action_logits[:, :2], outputs.pred_boxes[:, :2])
    assert len(processor.post_process_action_detection(few, **options)[0]["boxes"]) == 2


def test_clips_of_several_sizes_are_padded_to_the_largest():
    processor = VideoDetectionProcessor(size={"shortest_edge": 16}, pad_size_divisor=8)
    clips = [np.full((3, 20, 40, 3), 255, np.uint8), np.full((3, 60, 20, 3), 255, np.uint8)]
    annotations = [{"boxes": np.zeros((0, 4)), "class_labels": np.zeros((0, 5))}] * 2
    batch = processor(clips, annotations=annotations, return_tensors="pt")
    assert batch["pixel_values"].shape == (2, 3, 3, 48, 32)
    assert batch["original_sizes"].tolist() == [[16, 32], [48, 16]]
    white = (1 - 0.45) / 0.225
    assert torch.allclose(batch["pixel_values"][0, ..., :16, :32], torch.tensor(white))
    assert not batch["pixel_values"][0, ..., 16:, :].any() and not batch["pixel_values"][1, ..., 16:].any()
    assert batch["labels"][1]["boxes"].shape == (0, 4) and batch["labels"][1]["class_labels"].shape == (0, 5)


@pytest.mark.parametrize(
    ("videos", "options", "message"),
    [
        (["video.mp4"], {}, "'video.mp4' is not a clip: an array"),
        ([np.zeros((2, 8, 8, 3), np.float32)], {}, "A clip is uint8"),
        ([np.zeros((2, 8, 8, 3), np.uint8), np.zeros((3, 8, 8, 3), np.uint8)], {}, r"Clips of \[2, 3\] frames"),
        ([np.zeros((2, 8, 8, 3), np.uint8)], {"flip": [True, False]}, "There are 1 clips, but 2 flip"),
        ([np.zeros((2, 8, 8, 3), np.uint8)], {"annotations": []}, "There are 1 clips, but 0 annotations"),
        ([np.zeros((2, 8, 8, 3), np.uint8)], {"size": (8, 8)}, "must have shortest_edge"),
    ],
)
def test_tells_what_is_no_clip(videos, options, message):
    with pytest.raises(ValueError, match=message):
        VideoDetectionProcessor()(videos, return_tensors="pt", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_sizes": [(8, 8)]}, "give original_sizes"),
        ({"original": True}, "give original_sizes"),
        ({"original_sizes": [(8, 8)] * 2}, "There are 1 clips, but 2 original_sizes"),
        ({"original_sizes": [(8, 8)], "target_sizes": [(8, 8)], "original": True}, "use one"),
    ],
)
def test_tells_which_size_is_missing(options, message):
    with pytest.raises(ValueError, match=message):
        VideoDetectionProcessor().post_process_action_detection(some_outputs(), **options)


def test_is_saved_and_loaded(tmp_path):
    options = {"num_frames": 8, "frame_sampling_rate": 2, "pad_size_divisor": 16, "person_threshold": 0.9}
    STMixerConfig().save_pretrained(tmp_path)
    VideoDetectionProcessor(**options).save_pretrained(tmp_path)
    loaded = AutoVideoProcessor.from_pretrained(tmp_path)
    assert isinstance(loaded, VideoDetectionProcessor) and loaded.size == {"shortest_edge": 256}
    assert {name: getattr(loaded, name) for name in options} == options
    (person,) = loaded.post_process_action_detection(some_outputs())
    assert torch.allclose(person["scores"], torch.tensor([4.0]).sigmoid())
    assert len(loaded.post_process_action_detection(some_outputs(), 0.6)[0]["scores"]) == 2
