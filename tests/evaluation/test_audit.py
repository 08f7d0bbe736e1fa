"""What a model loses without order, colours or borders, and how sure that is."""

import hashlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import ImageClassifierOutput

from hf_video import VideoClipProcessor
from hf_video.evaluation import audit_model, classes
from hf_video.evaluation.audit import LITTLE, VARIANTS, _at_distance, effective_number, paired_interval
from hf_video.inference import AuditSettings
from tests.testing.videos import encode_video

NUM_VIDEOS, SIZE = 80, 16


class Rule(torch.nn.Module):
    """A classifier of two classes by a number of each view, (batch_size, views); stands for a `PreTrainedModel`."""

    main_input_name = "pixel_values"

    def __init__(self, rule):
        super().__init__()
        names = {0: "high", 1: "low"}
        self.rule, self.config = rule, SimpleNamespace(problem_type=None, num_labels=2, id2label=names)
        self.device, self.dtype = torch.device("cpu"), torch.float32

    def forward(self, pixel_values):
        views = pixel_values if pixel_values.ndim == 6 else pixel_values[:, None]
        values = self.rule(views).mean(1)
        return ImageClassifierOutput(logits=torch.stack([values, -values], 1))


RULES = {
    "brightens": lambda clips: (clips[:, :, -1] - clips[:, :, 0]).mean((2, 3, 4)),
    "is red": lambda clips: (clips[:, :, :, 0] - clips[:, :, :, 2]).mean((2, 3, 4)),
    "has a bright border": lambda clips: clips[..., 0].mean((2, 3, 4)) - clips[..., SIZE // 2].mean((2, 3, 4)),
    "moves fast": lambda clips: (clips[:, :, 1:] - clips[:, :, :-1]).abs().mean((2, 3, 4, 5)) - 0.25,
}


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Half of them brighten quickly, are red and have a bright border on the left; the others are the opposite."""
    folder = tmp_path_factory.mktemp("audited")
    generator = np.random.default_rng(0)
    for number in range(NUM_VIDEOS):
        is_high = number < NUM_VIDEOS // 2
        ramp = np.linspace(60, 180, 24) if is_high else np.linspace(130, 110, 24)
        frames = np.repeat(ramp, SIZE * SIZE * 3).reshape(24, SIZE, SIZE, 3) + generator.normal(0, 1, (24, 1, 1, 1))
        frames[..., 0 if is_high else 2] += 40
        frames[:, :, :2] += 30 if is_high else -30
        file = folder / ("high" if is_high else "low") / f"{number}.mp4"
        file.parent.mkdir(exist_ok=True)
        encode_video(file, frames.clip(0, 255).astype(np.uint8), codec_options={"preset": "ultrafast", "qp": "10"})
    return folder


@pytest.fixture
def audited(videos, monkeypatch, tmp_path):
    """Audits a rule; returns what is said."""

    def run(rule, batch_size=20, **options):
        size = {"height": SIZE, "width": SIZE}
        options = {"num_frames": 4, "frame_sampling_rate": 4, "size": size, "crop_size": size} | options
        loaded = Rule(rule), VideoClipProcessor(**options)
        monkeypatch.setattr(classes, "load_trained_model", lambda *words, **options: loaded)
        return audit_model(AuditSettings(data=str(videos), model=str(tmp_path), batch_size=batch_size))

    return run


def used(found, verdict=True):
    return {name for name, each in found["variants"].items() if each.get("is_used") is verdict}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("brightens", {"frames_shuffled", "frames_reversed", "one_frame"}),
        ("is red", {"colours_off"}),
        ("has a bright border", {"mirrored", "borders_hidden"}),
        ("moves fast", {"one_frame", "half_distance", "borders_hidden"}),
    ],
)
def test_what_a_model_looks_at_is_named_and_all_else_is_not_used(audited, name, expected):
    found = audited(RULES[name])
    assert found["variants"]["as_it_is"]["accuracy"] == 1 and used(found) == expected
    assert used(found, False) == {each.name for each in VARIANTS[1:]} - expected
    for each in found["variants"].values():
        low, high = each["interval"]
        assert low <= each["accuracy"] <= high + 1e-9 and each["num_clips"] == NUM_VIDEOS
        assert "is_used" not in each or each["cost_interval"][0] <= each["cost"] <= each["cost_interval"][1]


def test_all_views_of_a_video_are_changed_alike_and_the_draws_do_not_depend_on_the_batch(audited):
    found, again = (audited(RULES["brightens"], num_clips=2, batch_size=size) for size in (7, 80))
    assert used(found) == {"frames_shuffled", "frames_reversed", "one_frame"} and found["views"] == "2 clips x 1 crop"
    assert found["variants"] == again["variants"]


def test_a_model_that_guesses_is_not_said_to_use_nothing(audited):
    found = audited(lambda clips: torch.ones(clips.shape[:2]))
    assert not used(found) and not used(found, False)
    assert "no better" in found["variants"]["as_it_is"]["sentence"]


def test_where_videos_are_too_short_for_a_distance_it_is_left_open(audited):
    found = audited(RULES["brightens"], frame_sampling_rate=6)["variants"]["double_distance"]
    assert (found["num_clips"], found["is_used"]) == (0, None) and "accuracy" not in found
    assert audited(RULES["brightens"], frame_sampling_rate=1)["variants"]["half_distance"]["num_clips"] == 0


def test_clips_at_another_distance_have_their_middle_and_stay_in_their_segment():
    clips = np.array([[10, 14, 18, 22], [0, 4, 8, 12], [28, 32, 36, 40]])
    assert _at_distance(clips, 0.5, range(41)).tolist() == [[13, 15, 17, 19], [3, 5, 7, 9], [31, 33, 35, 37]]
    doubled = [[4, 12, 20, 28], [0, 8, 16, 24], [16, 24, 32, 40]]
    assert _at_distance(clips, 2, range(41)).tolist() == doubled
    assert _at_distance(clips[:1], 2, range(8, 26)).tolist() == [[8, 13, 21, 25]]


def test_an_interval_holds_the_true_difference_in_95_of_100_draws():
    """Of pairs of clips that are right together more often than not."""
    generator, num_draws = np.random.default_rng(0), 400
    for number, share, kept, gained in ((20, 0.9, 0.95, 0.3), (100, 0.7, 0.8, 0.1), (60, 0.95, 1.0, 0.0)):
        difference = share - (share * kept + (1 - share) * gained)
        hits = 0
        for _ in range(num_draws):
            first = generator.random(number) < share
            second = np.where(first, generator.random(number) < kept, generator.random(number) < gained)
            low, high = paired_interval(first, second, np.arange(number))
            hits += low <= difference <= high
        assert hits >= 0.93 * num_draws


def test_an_interval_is_that_of_the_source_and_has_a_width_without_a_difference():
    pairs = np.repeat([[1, 1], [1, 0], [0, 1], [0, 0]], [36, 12, 2, 0], axis=0).astype(bool)
    low, high = paired_interval(*pairs.T, np.arange(50))
    assert (low, high) == pytest.approx((0.0569, 0.3404), abs=1e-4)
    reaches = [paired_interval(*np.ones((2, number), bool), np.arange(number))[1] for number in (72, 73)]
    assert reaches[0] > LITTLE > reaches[1]  # of which `tell_audit` speaks
    low, high = paired_interval(*np.ones((2, 80), bool), np.arange(80))
    assert low == -high and 0.03 < high < 0.05


def test_clips_of_one_video_that_are_alike_count_as_one():
    generator = np.random.default_rng(0)
    of_videos = generator.random(50) < 0.5
    assert effective_number(of_videos, np.arange(50)) == 50
    alike = effective_number(of_videos.repeat(4), np.arange(50).repeat(4))
    assert alike == pytest.approx(50, rel=0.05)
    assert effective_number(generator.random(200) < 0.5, np.arange(50).repeat(4)) > 120
    assert effective_number(of_videos, np.zeros(50, int)) == 1
    assert effective_number(np.ones(50), np.arange(25).repeat(2)) == 25


def test_the_folder_of_the_model_gets_the_result_and_the_digests_of_its_weights(audited, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    found = audited(RULES["is red"])
    kept = json.loads((tmp_path / "audit.json").read_text())
    digest = kept.pop("weights")["model.safetensors"]
    assert kept == found and digest == hashlib.sha256(b"weights").hexdigest()
