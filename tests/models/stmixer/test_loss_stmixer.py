"""Matching and losses of STMixer: those of the original, and of steps that are divided."""

import pytest
import torch

from hf_video.models.stmixer.loss_stmixer import detection_losses, generalized_iou, match_persons, matching_costs
from tests.testing.goldens import load_golden

from .stmixer_testing import make, random_clips, random_labels, tiny_config

GOLDEN = load_golden("stmixer", "loss_units")
TERMS = {"loss_ce", "loss_bbox", "loss_giou", "loss_bce"}


def golden_case(dtype):
    inputs = {name: tensor.to(dtype, copy=True) for name, tensor in GOLDEN.inputs.items()}
    labels = [
        {"boxes": inputs[f"target.{clip}.boxes"], "class_labels": inputs[f"target.{clip}.action_labels"]}
        for clip in range(3)
    ]
    names = {"logits": "class_logits", "action_logits": "action_logits", "pred_boxes": "boxes"}
    predictions = {name: inputs[theirs].requires_grad_() for name, theirs in names.items()}
    return predictions, labels, inputs["whwh"]


def test_costs_and_matches_equal_the_original():
    predictions, labels, whwh = golden_case(torch.float32)
    config = tiny_config()
    with torch.no_grad():
        for clip, label in enumerate(labels):
            logits, boxes = predictions["logits"][clip], predictions["pred_boxes"][clip]
            costs = matching_costs(logits, boxes, label["boxes"], whwh[clip], config.match_weights)
            torch.testing.assert_close(costs, GOLDEN.expected[f"cost.{clip}.total"], atol=1e-6, rtol=1e-5)
            overlaps = generalized_iou(boxes[:, None], label["boxes"])
            torch.testing.assert_close(-overlaps, GOLDEN.expected[f"cost.{clip}.giou"], atol=1e-6, rtol=1e-5)
            queries = match_persons(costs[None, None], torch.zeros(len(label["boxes"]), dtype=torch.long))[0]
            queries, order = queries.sort()
            assert torch.equal(queries, GOLDEN.expected[f"match.{clip}.query"])
            assert torch.equal(order, GOLDEN.expected[f"match.{clip}.target"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_and_gradients_equal_the_original(dtype):
    predictions, labels, whwh = golden_case(dtype)
    config = tiny_config(num_labels=5)
    loss, terms = detection_losses([predictions], labels, whwh[:, [1, 0]], config)
    loss.backward()
    assert set(terms) == TERMS
    for name, term in terms.items():
        torch.testing.assert_close(term, GOLDEN.expected[f"unweighted.{name}"].to(dtype), rtol=1e-5, atol=1e-6)
    prefix = "" if dtype == torch.float32 else "float64."
    atol = 1e-5 if dtype == torch.float32 else 1e-8  # the original keeps class weights in float32
    torch.testing.assert_close(loss, GOLDEN.expected[f"{prefix}total"], rtol=1e-6, atol=0)
    for name, theirs in (("logits", "logits"), ("pred_boxes", "boxes"), ("action_logits", "actions")):
        torch.testing.assert_close(
            predictions[name].grad, GOLDEN.expected[f"{prefix}grad.{theirs}"], atol=atol, rtol=atol
        )


@pytest.mark.parametrize("counts", [(3, 1), (2, 0), (0, 0)])
def test_parts_of_a_step_add_up_to_the_whole(counts):
    model, clips, labels = make().double(), random_clips().double(), random_labels(*counts)
    whole = model(clips, labels=labels)
    parts = [model(clips[i : i + 1], labels=labels[i : i + 1], num_targets=sum(counts), num_clips=2) for i in range(2)]
    assert set(whole.loss_dict) == TERMS | {f"{name}_0" for name in TERMS}
    torch.testing.assert_close(parts[0].loss + parts[1].loss, whole.loss)
    for name, term in whole.loss_dict.items():
        torch.testing.assert_close(parts[0].loss_dict[name] + parts[1].loss_dict[name], term, msg=name)
    if not any(counts):
        assert whole.loss_dict["loss_bce"] == whole.loss_dict["loss_bbox"] == 0 < whole.loss
        whole.loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_means_of_the_original_are_those_of_a_process():
    settings = {"clips": random_clips(), "labels": random_labels(3, 1)}
    own, original = make(), make(original_loss_means=True)
    step = {"num_targets": 40, "num_clips": 20}
    expected = own(settings["clips"], labels=settings["labels"])
    given = original(settings["clips"], labels=settings["labels"], **step)
    torch.testing.assert_close(given.loss, expected.loss)
    assert own(settings["clips"], labels=settings["labels"], **step).loss < 0.5 * expected.loss


def test_labels_are_checked_before_anything_is_computed():
    model, clips = make(), random_clips()
    model.backbone.register_forward_pre_hook(lambda *_: pytest.fail("the backbone ran"))
    with pytest.raises(ValueError, match="Clip 1 has 7 persons, and the model 6 queries"):
        model(clips, labels=random_labels(2, 7))
    with pytest.raises(ValueError, match="got 1 for 2 clips"):
        model(clips, labels=random_labels(2))
    with pytest.raises(ValueError, match=r"must have the shape \(1, 3\)"):
        model(clips, labels=random_labels(1, 1, num_labels=4))


def test_each_loss_has_its_weight():
    clips, labels = random_clips(), random_labels(2, 1)
    outputs = make(loss_weights={"ce": 1, "bbox": 0, "giou": 3, "bce": 5})(clips, labels=labels)
    weights = {"loss_ce": 1, "loss_bbox": 0, "loss_giou": 3, "loss_bce": 5}
    expected = sum(weights[name.removesuffix("_0")] * term for name, term in outputs.loss_dict.items()) / 8
    torch.testing.assert_close(outputs.loss, expected)
