"""Losses of STMixer: persons are matched to queries, then classes, boxes and actions are compared."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .configuration_stmixer import STMixerConfig

PERSON, BACKGROUND = 0, 1


def generalized_iou(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Generalised intersection over union `(...)` of boxes `(..., 4)` (left, top, right, bottom), which broadcast."""
    inner = torch.minimum(boxes[..., 2:], others[..., 2:]) - torch.maximum(boxes[..., :2], others[..., :2])
    outer = torch.maximum(boxes[..., 2:], others[..., 2:]) - torch.minimum(boxes[..., :2], others[..., :2])
    areas = [(each[..., 2:] - each[..., :2]).prod(dim=-1) for each in (boxes, others)]
    shared, hull = inner.clamp(min=0).prod(dim=-1), outer.prod(dim=-1)
    union = areas[0] + areas[1] - shared
    return shared / union - (hull - union) / hull


def matching_costs(
    logits: torch.Tensor,
    pred_boxes: torch.Tensor,
    boxes: torch.Tensor,
    scales: torch.Tensor,
    weights: Mapping[str, float],
) -> torch.Tensor:
    """
    What it costs to match each person to each query.

    Args:
        logits: `(..., num_queries, 2)`.
        pred_boxes: `(..., num_queries, 4)` in pixels.
        boxes: `(num_persons, 4)` in pixels.
        scales: `(num_persons, 4)`: width, height, width, height of the clip of each person.
        weights: those of `"class"`, `"bbox"` and `"giou"`.

    Returns:
        `(..., num_queries, num_persons)`.
    """
    pred_boxes = pred_boxes[..., None, :]
    distances = ((pred_boxes - boxes).abs() / scales).sum(dim=-1)
    probabilities = logits.softmax(dim=-1)[..., PERSON, None]
    overlaps = generalized_iou(pred_boxes, boxes)
    return weights["bbox"] * distances - weights["class"] * probabilities - weights["giou"] * overlaps


def match_persons(costs: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
    """
    The queries of the persons, by the cheapest assignment in each layer and clip.

    Args:
        costs: `(num_layers, batch_size, num_queries, num_persons)`, the persons of all clips in their order.
        clips: `(num_persons,)`: index of the clip of each person.

    Returns:
        `(num_layers, num_persons)`, int64.
    """
    # Only training needs it.
    from scipy.optimize import linear_sum_assignment

    costs, persons = costs.cpu(), clips.cpu()
    queries = torch.empty(costs.shape[0], costs.shape[-1], dtype=torch.long)
    for layer, layer_costs in enumerate(costs):
        for clip, clip_costs in enumerate(layer_costs):
            chosen = (persons == clip).nonzero()[:, 0]
            # The persons are the rows, so they come back in their order.
            found = linear_sum_assignment(clip_costs[:, chosen].T.numpy())[1]
            queries[layer, chosen] = torch.from_numpy(found)
    return queries.to(clips.device)


def check_labels(labels: Sequence[Mapping[str, torch.Tensor]], batch_size: int, config: STMixerConfig) -> None:
    """Raise `ValueError` for labels that no loss can be computed of."""
    if len(labels) != batch_size:
        raise ValueError(f"`labels` must have one entry for each clip, got {len(labels)} for {batch_size} clips.")
    for number, label in enumerate(labels):
        num_persons = len(label["boxes"])
        if num_persons > config.num_queries:
            raise ValueError(
                f"Clip {number} has {num_persons} persons, and the model {config.num_queries} queries, each of which "
                "finds one at most: set a larger `num_queries`, or leave persons out."
            )
        expected = (num_persons, config.num_labels)
        if tuple(label["class_labels"].shape) != expected:
            raise ValueError(
                f"`class_labels` of clip {number} must have the shape {expected} (persons, actions), got "
                f"{tuple(label['class_labels'].shape)}."
            )


def detection_losses(
    predictions: Sequence[Mapping[str, torch.Tensor]],
    labels: Sequence[Mapping[str, torch.Tensor]],
    sizes: torch.Tensor,
    config: STMixerConfig,
    num_targets: float | None = None,
    num_clips: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """
    The losses of all decoder layers.

    Args:
        predictions: `logits`, `action_logits` and `pred_boxes` of each layer, as in the output of the model.
        labels: for each clip `boxes` `(n, 4)` in pixels and `class_labels` `(n, num_labels)` of zeros and ones.
        sizes: `(batch_size, 2)`: height and width of the clips.
        config: of the model.
        num_targets, num_clips: persons and clips of the whole step, divided by the number of processes; by default
            those at hand. `config.original_loss_means` ignores them.

    Returns:
        The mean over all terms, each times its weight; and the terms without weights, those of the last layer as
        `loss_ce`, `loss_bbox`, `loss_giou` and `loss_bce`, those of the i-th layer before it with `_i` at the end.
    """
    dtype, device = sizes.dtype, sizes.device
    logits, action_logits, pred_boxes = (
        torch.stack([each[name] for each in predictions]).to(dtype)
        for name in ("logits", "action_logits", "pred_boxes")
    )
    num_layers, batch_size, num_queries = logits.shape[:3]
    boxes, actions = (
        torch.cat([each[name].to(device, dtype) for each in labels]) for name in ("boxes", "class_labels")
    )
    counts = torch.tensor([len(each["boxes"]) for each in labels])
    clips = torch.arange(batch_size).repeat_interleave(counts).to(device)
    scales = sizes.flip(-1).repeat(1, 2)[clips]

    with torch.no_grad():
        costs = matching_costs(logits, pred_boxes, boxes, scales, config.match_weights or {})
        queries = match_persons(costs, clips)
    chosen = (torch.arange(num_layers, device=device)[:, None], clips, queries)
    classes = torch.full(logits.shape[:3], BACKGROUND, device=device)
    classes[chosen] = PERSON
    found = pred_boxes[chosen]
    class_weights = logits.new_tensor([1.0, config.background_weight])
    sums: dict[str, Any] = {
        "ce": F.cross_entropy(logits.movedim(-1, 1), classes, class_weights, reduction="none").sum(dim=(1, 2)),
        "bbox": ((found - boxes).abs() / scales).sum(dim=(1, 2)),
        "giou": (1 - generalized_iou(found, boxes)).sum(dim=1),
        "bce": F.binary_cross_entropy_with_logits(
            action_logits[chosen], actions.expand(num_layers, -1, -1), reduction="none"
        ).sum(dim=(1, 2)),
    }

    if num_targets is None or num_clips is None or config.original_loss_means:
        num_targets, num_clips = len(boxes), batch_size
    num_pairs = mean_over_processes(num_targets, device) if config.original_loss_means else num_targets
    divisors = {
        "ce": num_targets + config.background_weight * (num_clips * num_queries - num_targets),
        "bbox": num_pairs,
        "giou": num_pairs,
        "bce": num_targets * config.num_labels,
    }
    terms, total = {}, logits.new_zeros(())
    for name, weight in (config.loss_weights or {}).items():
        # Without persons the sums are 0, and so are the losses.
        losses = sums[name] / (divisors[name] or 1)
        total = total + weight * losses.sum()
        for layer, loss in enumerate(losses):
            terms[f"loss_{name}" if layer == num_layers - 1 else f"loss_{name}_{layer}"] = loss
    return total / len(terms), terms


def mean_over_processes(count: float, device: torch.device) -> float:
    """The mean of a number over the processes, 1 at least, as in the original."""
    if dist.is_available() and dist.is_initialized():
        total = torch.tensor(float(count), device=device)
        dist.all_reduce(total)
        count = total.item() / dist.get_world_size()
    return max(count, 1.0)
