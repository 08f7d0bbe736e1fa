"""Training of action detectors: denominators of the losses, the schedule, weight decay, and the metric."""

import pytest
import torch
from torch import nn

from hf_video.models.stmixer import STMixerForActionDetectionOutput
from hf_video.training import ActionDetectionTrainer, parameter_settings
from hf_video.training.detection import LOSSES

from .detection_testing import KeyFrames, collate, first_step, make_arguments, make_detector, make_processor


@pytest.mark.parametrize("batch_size", [4, 1])
def test_accumulated_batches_are_one(batch_size, tmp_path):
    model = make_detector().double().train()
    outputs = model(**collate(KeyFrames((1, 3, 0, 2), torch.float64).items))
    outputs.loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    options = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": 4 // batch_size}
    trainer, found = first_step(tmp_path, **options)
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
    trainer = ActionDetectionTrainer(
        RightAnswers(frames.rows),
        make_arguments(tmp_path),
        collate,
        eval_dataset=frames,
        processing_class=make_processor(),
    )
    measured = trainer.evaluate()
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
    with pytest.raises(ValueError, match=r"full_weight_decay names \['layer'\]"):
        parameter_settings(model, full_weight_decay=["layer"])
