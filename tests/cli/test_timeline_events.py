"""`hf-video timeline` finds the known events of a video of variable frame rate; `evaluate` says how well."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForVideoClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

from benchmarks.helpers.event_video import BACKGROUND, CLASSES, DIRECTIONS, write_event_video, write_ground_truth
from hf_video.cli.main import main
from hf_video.processing import VideoClipProcessor

NUM_FRAMES, FPS, IMAGE_SIZE = 8, 8, 48


class MotionConfig(PreTrainedConfig):
    model_type = "motion_of_pixels"


class MotionOfPixels(PreTrainedModel):
    """Needs no training: it measures how the brightness of a clip moves."""

    config_class = MotionConfig
    main_input_name = "pixel_values"

    def __init__(self, config):
        super().__init__(config)
        self.zero = torch.nn.Parameter(torch.zeros(()))
        self.post_init()

    def forward(self, pixel_values, **kwargs):
        frames = pixel_values.mean(dim=2)
        angles = torch.arange(IMAGE_SIZE) * (2 * np.pi / IMAGE_SIZE)
        waves = torch.polar(torch.ones(IMAGE_SIZE), angles)
        steps = []
        for axis in (2, 3):  # rows, columns
            # The edges are joined, so a place is an angle. Brightness that is the same everywhere cancels out.
            moments = (frames.sum(dim=5 - axis) * waves).sum(dim=-1)
            seen = (moments[:, 1:].abs() > 20) & (moments[:, :-1].abs() > 20)
            steps.append((moments[:, 1:] * moments[:, :-1].conj()).angle() * seen * (IMAGE_SIZE / (2 * np.pi)))
        # Pixels moved each way in a window; the slowest digit moves 14.
        moved = torch.stack([(sign * steps[axis]).clamp(min=0).sum(1) for axis, sign in AXES], dim=1)
        still = (8 - moved.sum(dim=1)).clamp(min=0) * 2
        scores = torch.cat([moved, still[:, None]], dim=1)
        scores = scores / scores.sum(dim=1, keepdim=True)
        return ImageClassifierOutput(logits=scores.clamp(min=1e-6).log() + self.zero)


# Axis and sign of each class.
AXES = [(0, row) if row else (1, column) for row, column in DIRECTIONS.values()]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    AutoConfig.register(MotionConfig.model_type, MotionConfig, exist_ok=True)
    AutoModelForVideoClassification.register(MotionConfig, MotionOfPixels, exist_ok=True)
    names = {"id2label": dict(enumerate(CLASSES)), "label2id": {name: index for index, name in enumerate(CLASSES)}}
    MotionOfPixels(MotionConfig(**names)).save_pretrained(folder)
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    sampling = {"num_frames": NUM_FRAMES, "sampling_strategy": "dense", "fps": FPS}
    VideoClipProcessor(**sampling, size=size, crop_size=size).save_pretrained(folder)
    return folder


def test_the_events_of_a_video_are_found(model, tmp_path, capsys, says):
    events = write_event_video(tmp_path / "test.mp4", seconds=60, seed=5, held_out=True)
    write_ground_truth(tmp_path / "truth.json", {"test": (60, events)})
    words = ["--model", model, "--background", BACKGROUND, "--output", tmp_path / "found", "--device", "cpu"]
    assert main(["timeline", str(tmp_path / "test.mp4"), *map(str, words)]) == 0
    capsys.readouterr()
    words = [tmp_path / "found" / "segments.json", "--ground-truth", tmp_path / "truth.json", "--json"]
    found = json.loads(says("evaluate", "--task", "segments", *words))
    at = found["tious"].index(0.5)
    assert found["num_segments"] == len(events) >= 5 and set(found["classes"]) == set(DIRECTIONS)
    assert found["f1"][at] >= 0.95, found
    assert found["median_border_error"][at] <= NUM_FRAMES / FPS / 2
