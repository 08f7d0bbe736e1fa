"""`hf-video train --task action-detection`: from a detector, around a backbone, and with the recipes."""

import json

import pytest
import torch
from transformers import AutoModelForObjectDetection, AutoVideoProcessor

from hf_video.cli.main import main
from hf_video.loading.detectors import load_detector
from hf_video.models.videovit import VideoViTForVideoClassification
from hf_video.training import DetectionTrainingArguments
from hf_video.training.task_settings import TrainDetectionSettings
from hf_video.training.values import choose_values, make, read_named
from tests.testing.trainers import weights_of

from ..data.detection_files import OWN, write_annotations, write_videos
from .detection_testing import ACTIONS, make_backbone_config, make_detector, make_processor

NAMES = ["talk, loudly", "turn left", "walk"]
# Settings of both recipes, as the original's files have them; the number of clips is of 8 processes.
RECIPE = {
    "num_frames": 16,
    "frame_sampling_rate": 4,
    "image_size": 256,
    "drop_path_rate": 0.2,
    "num_queries": 100,
    "original_loss_means": True,
    "num_train_epochs": 12.0,
    "per_device_train_batch_size": 1,
    "learning_rate": 1e-5,
    "lr_scheduler_type": "constant_with_warmup",
    "lr_drop_epochs": [5.0, 8.0],
    "warmup_epochs": 2.0,
    "warmup_lr_rate": 0.1,
    "weight_decay": 1e-4,
    "full_weight_decay": ["lateral_branches", "layers", "spatial_queries", "temporal_queries"],
    "scales": [1.0, 1.25],
    "flip_prob": 0.5,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "max_grad_norm": 0.0,
    "dataloader_drop_last": True,
    "activation_checkpointing": True,
}
SMALL = ("--detector-config", '{"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = write_videos(tmp_path_factory.mktemp("persons"))
    return write_annotations(found, train=OWN, validation=OWN)


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    saved = tmp_path_factory.mktemp("detector")
    for part in (make_detector(), make_processor()):
        part.save_pretrained(saved)
    return saved


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A classifier with mean pooling, whose tokens have no norm."""
    saved = tmp_path_factory.mktemp("classifier")
    config = make_backbone_config()
    config.use_mean_pooling = True
    VideoViTForVideoClassification(config).save_pretrained(saved)
    return saved


def words(data, model, out, *more):
    options = ("--task", "action-detection", "--model", model, "--output-dir", out, "--device", "cpu")
    return ["train", *map(str, (data, *options, *more))]


def test_the_command_trains_and_measures(folder, detector, tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--epochs", "2", "--batch-size", "2", "--learning-rate", "0.01"]
    assert main(words(folder, detector, out, *options)) == 0
    printed = capsys.readouterr().out
    assert "mAP" in printed and "3 validation key frames" in printed
    report = json.loads((out / "report/metrics.json").read_text())
    assert report["split"] == "validation" and report["num_key_frames"] == 3
    assert 0 <= report["mean_ap"] <= 1 and list(report["ap"]) == NAMES
    model, processor = AutoModelForObjectDetection.from_pretrained(out), AutoVideoProcessor.from_pretrained(out)
    assert model.config.id2label == dict(enumerate(NAMES)) and processor.num_frames == 4
    state = json.loads((out / "checkpoint-4/trainer_state.json").read_text())
    measured = [entry["eval_mean_ap"] for entry in state["log_history"] if "eval_mean_ap" in entry]
    assert len(measured) == 2 and state["best_metric"] == max(measured)
    # A run of the same command with more epochs goes on.
    assert main(words(folder, detector, out, *options, "--epochs", "3", "--resume")) == 0


def test_other_actions_have_new_heads_and_keep_the_rest(folder, detector, tmp_path, caplog):
    out = tmp_path / "out"
    assert main(words(folder, detector, out, "--epochs", "1", "--learning-rate", "0")) == 0
    assert "the heads of actions start afresh" in caplog.text
    before, after = (weights_of(AutoModelForObjectDetection.from_pretrained(each)) for each in (detector, out))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    # The first bias is that of rare actions, as before.
    assert changed == {f"layers.{layer}.action_head.output.weight" for layer in range(2)}


@pytest.mark.parametrize("names", [["sit", "run"], list(ACTIONS)])
def test_heads_are_kept_for_the_same_actions_alone(names, detector):
    model, _ = load_detector(detector, names)
    before = AutoModelForObjectDetection.from_pretrained(detector)
    for layer, known in zip(model.layers, before.layers, strict=True):
        head, old = layer.action_head.output, known.action_head.output
        assert (
            torch.equal(head.weight, old.weight)
            if names == list(ACTIONS)
            else not torch.isin(head.weight, old.weight).any()
        )
        assert head.bias[0].item() == pytest.approx(-4.595, abs=1e-3)


def test_a_detector_is_made_around_a_backbone(folder, classifier, tmp_path, caplog):
    out = tmp_path / "out"
    options = ("--epochs", "1", "--learning-rate", "0", "--num-queries", "5", "--action-weight", "7", *SMALL)
    assert main(words(folder, classifier, out, *options)) == 0
    assert "is a backbone: the detector around it starts afresh" in caplog.text
    model, processor = AutoModelForObjectDetection.from_pretrained(out), AutoVideoProcessor.from_pretrained(out)
    assert len(model.layers) == 1 and model.config.num_queries == 5 and model.config.loss_weights["bce"] == 7
    assert processor.num_frames == 4 and processor.size["shortest_edge"] == 32
    before = weights_of(VideoViTForVideoClassification.from_pretrained(classifier).videovit)
    found = weights_of(model.backbone.videovit)
    assert before.keys() < found.keys()
    for name, weight in before.items():
        assert torch.equal(found[name], weight), name
    assert torch.equal(found["layernorm.weight"], torch.ones(16))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--num-clips", "2"], "--num-clips has no effect here, but with --task classification"),
        (["--num-queries", "9"], "has learned 6 queries: leave out num_queries=9"),
        (["--num-frames", "8"], "takes clips of 4 frames, and num_frames is 8"),
        (SMALL, "is a detector with a configuration of its own"),
    ],
)
def test_settings_without_effect_are_refused(more, sentence, folder, detector, tmp_path, capsys):
    assert main(words(folder, detector, tmp_path / "out", *more)) != 0
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_more_persons_than_queries_are_refused_before_the_first_step(folder, classifier, tmp_path, capsys):
    assert main(words(folder, classifier, tmp_path / "out", "--num-queries", "1", *SMALL)) == 2
    assert "a.mp4 has 2 persons at 1 s, and the model 1 queries" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "action_weight"), [("videomae_base", 24), ("videomae_v2_base", 48)])
def test_a_recipe_has_the_values_of_its_original(name, action_weight, tmp_path):
    settings = TrainDetectionSettings(
        data="d", output_dir=str(tmp_path), model=str(tmp_path), recipe=f"stmixer/{name}_ava"
    )
    assert read_named(settings).recipe == RECIPE | {"action_weight": action_weight}
    arguments = make(DetectionTrainingArguments, choose_values(settings), use_cpu=True)
    # 23048 iterations an epoch
    assert arguments.get_warmup_steps(12 * 23048) == 2 * 23048


def test_a_recipe_trains_with_the_size_of_its_clips(folder, classifier, tmp_path):
    options = ("--recipe", "stmixer/videomae_base_ava", "--image-size", "32", "--num-frames", "4", "--max-steps", "1")
    assert main(words(folder, classifier, tmp_path / "out", *options, *SMALL)) == 0
    model = AutoModelForObjectDetection.from_pretrained(tmp_path / "out")
    assert model.config.num_queries == 100 and model.config.original_loss_means
    assert model.config.backbone_config.drop_path_rate == 0.2


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ('{"hidden_sizes": 16}', "detector_config has 'hidden_sizes'"),
    ],
)
def test_a_wrong_configuration_is_told(value, sentence, folder, classifier, tmp_path, capsys):
    assert main(words(folder, classifier, tmp_path / "out", "--detector-config", value)) == 2
    assert sentence in capsys.readouterr().err
