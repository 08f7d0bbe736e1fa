"""Training of action detectors: losses, schedule, weight decay and metric; the command and its recipes."""

import json

import pytest
import torch
from torch import nn
from transformers import AutoModelForObjectDetection, AutoVideoProcessor

from hf_video.cli.main import main
from hf_video.loading.heads import load_detector
from hf_video.models.stmixer import STMixerForActionDetectionOutput
from hf_video.models.videovit import VideoViTForVideoClassification
from hf_video.training import ActionDetectionTrainer, DetectionTrainingArguments, parameter_settings
from hf_video.training.detection import LOSSES
from hf_video.training.task_settings import TrainDetectionSettings
from hf_video.training.values import choose_values, make, read_named
from tests.testing.trainers import weights_of

from ..data.detection_files import OWN, write_annotations, write_videos
from .detection_testing import (
    ACTIONS,
    KeyFrames,
    collate,
    first_step,
    make_arguments,
    make_backbone_config,
    make_detector,
    make_processor,
)

NAMES = ["talk, loudly", "turn left", "walk"]
# Settings of both recipes, as the original's files have them; the number of clips is of 8 processes.
RECIPE = {
    **{"num_frames": 16, "frame_sampling_rate": 4, "image_size": 256, "drop_path_rate": 0.2, "num_queries": 100},
    **{"original_loss_means": True, "num_train_epochs": 12.0, "per_device_train_batch_size": 1},
    **{"learning_rate": 1e-5, "lr_scheduler_type": "constant_with_warmup", "lr_drop_epochs": [5.0, 8.0]},
    **{"warmup_epochs": 2.0, "warmup_lr_rate": 0.1, "weight_decay": 1e-4},
    "full_weight_decay": ["lateral_branches", "layers", "spatial_queries", "temporal_queries"],
    **{"scales": [1.0, 1.25], "flip_prob": 0.5, "adam_beta1": 0.9, "adam_beta2": 0.999, "max_grad_norm": 0.0},
    **{"dataloader_drop_last": True, "activation_checkpointing": True},
}
SMALL = ("--detector-config", '{"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}')


def test_accumulated_batches_are_one(tmp_path):
    model = make_detector().double().train()
    outputs = model(**collate(KeyFrames((1, 3, 0, 2), torch.float64).items))
    outputs.loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    trainer, found = first_step(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    [logged] = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    assert logged["loss"] == pytest.approx(outputs.loss.item(), rel=1e-6)
    for name in LOSSES:
        assert logged[name] == pytest.approx(outputs.loss_dict[name].item(), rel=1e-6)


def test_the_original_means_are_those_of_each_batch(tmp_path):
    model = make_detector(original_loss_means=True).double().train()
    items = KeyFrames((2, 2, 2, 2), torch.float64).items
    # Each batch has as many persons, so that the order of the batches does not matter.
    losses = [model(**collate(items[start : start + 2])).loss for start in (0, 2)]
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "original_loss_means": True}
    trainer, _ = first_step(tmp_path, (2, 2, 2, 2), train_sampling_strategy="sequential", **options)
    [logged] = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    assert logged["loss"] == pytest.approx(sum(losses).item() / 2, rel=1e-6)


class RightAnswers(nn.Module):
    """Finds what the annotations say, at the key frames in their order."""

    def __init__(self, rows):
        super().__init__()
        self.config, self.rows = make_detector().config, iter(rows)

    def forward(self, pixel_values, **_):
        count = len(pixel_values)
        logits = torch.tensor([-9.0, 9.0]).repeat(count, 6, 1)
        boxes, actions = torch.zeros(count, 6, 4), torch.full((count, 6, 3), -9.0)
        for clip in range(count):
            row = next(self.rows)
            for person, (box, labels) in enumerate(zip(row["boxes"], row["actions"], strict=True)):
                logits[clip, person] = torch.tensor([9.0, -9.0])
                boxes[clip, person] = 32 * torch.tensor(box)
                actions[clip, person, labels] = 9.0
        return STMixerForActionDetectionOutput(
            loss=torch.tensor(0.5), logits=logits, action_logits=actions, pred_boxes=boxes
        )


def test_what_is_right_has_a_mean_ap_of_one(tmp_path):
    frames = KeyFrames()
    sets = {"eval_dataset": frames, "processing_class": make_processor()}
    measured = ActionDetectionTrainer(RightAnswers(frames.rows), make_arguments(tmp_path), collate, **sets).evaluate()
    assert measured["eval_mean_ap"] == 1 and measured["eval_loss"] == 0.5


def test_the_learning_rate_rises_and_falls_by_epoch(tmp_path):
    options = {"num_train_epochs": 4, "lr_scheduler_type": "constant_with_warmup", "lr_drop_epochs": [2, 3]}
    options |= {"learning_rate": 1.0, "warmup_epochs": 1, "warmup_lr_rate": 0.1, "per_device_train_batch_size": 1}
    trainer = ActionDetectionTrainer(
        make_detector(),
        make_arguments(tmp_path, logging_steps=1, optim="sgd", **options),
        collate,
        KeyFrames((1, 1)),
        processing_class=make_processor(),
    )
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([0.1, 0.55, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01])


def test_the_backbone_alone_has_parameters_without_weight_decay():
    model = make_detector()
    detector = ["lateral_branches", "layers", "spatial_queries", "temporal_queries"]
    found = parameter_settings(model, weight_decay=0.1, full_weight_decay=detector)
    for name, parameter in model.named_parameters():
        is_decayed = not name.startswith("backbone.") or parameter.ndim > 1
        assert found[name].weight_decay == (0.1 if is_decayed else 0), name
    with pytest.raises(ValueError, match=r"\['layer'\] in its name"):
        parameter_settings(model, full_weight_decay=["layer"])


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


@pytest.mark.parametrize("names", [["sit", "run"], list(ACTIONS)])
def test_heads_are_kept_for_the_same_actions_alone(names, detector, caplog):
    model, _ = load_detector(detector, names)
    before, after = weights_of(AutoModelForObjectDetection.from_pretrained(detector)), weights_of(model)
    heads = {f"layers.{layer}.action_head.output.{part}" for layer in range(2) for part in ("weight", "bias")}
    is_new = names != list(ACTIONS)
    assert ("the head starts afresh" in caplog.text) == is_new
    for name, weight in before.items():
        if is_new and name in heads:
            assert not weight.ndim == 2 or not torch.isin(after[name], weight).any()
        else:
            torch.testing.assert_close(after[name], weight, rtol=0, atol=0)
    # The bias is that of rare actions.
    assert after["layers.0.action_head.output.bias"][0].item() == pytest.approx(-4.595, abs=1e-3)


def test_a_detector_is_made_around_a_backbone(folder, classifier, tmp_path, caplog):
    out = tmp_path / "out"
    options = ("--epochs", "1", "--learning-rate", "0", "--num-queries", "5", "--action-weight", "7", *SMALL)
    assert main(words(folder, classifier, out, *options)) == 0
    assert "gives its encoder: the head starts afresh" in caplog.text
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
    ("model", "more", "sentence"),
    [
        ("detector", ["--num-clips", "2"], "--num-clips has no effect here, but with --task classification"),
        ("detector", ["--num-queries", "9"], "leave out its num_queries"),
        ("detector", ["--num-frames", "8"], "takes clips of 4 frames, and num_frames is 8"),
        ("detector", SMALL, "is a detector with a configuration of its own"),
        ("classifier", ["--num-queries", "1", *SMALL], "a.mp4 has 2 persons at 1 s, and the model finds 1 at most"),
        ("classifier", ["--detector-config", '{"hidden_sizes": 16}'], "detector_config has 'hidden_sizes'"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_step(model, more, sentence, folder, request, tmp_path, capsys):
    assert main(words(folder, request.getfixturevalue(model), tmp_path / "out", *more)) == 2
    assert sentence in capsys.readouterr().err
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
