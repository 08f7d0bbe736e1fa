"""The head that a training of the start begins with: a regression on what the start sees in the clips.

Random weights would first move all layers at random, and few clips do not mend that (Kumar et al. 2022,
https://arxiv.org/abs/2202.10054).
"""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from hf_video.data import VideoDataset
from hf_video.inference.features import seen_by_head

# Strengths of the regression, over the mean variance of the features.
_STRENGTHS = torch.logspace(-4, 2, 25, dtype=torch.float64)
# The logits over the regression of 0 and 1: sure, and not so sure that nothing is left to learn.
_GAIN = 4.0


@torch.no_grad()
def begin_head(model: PreTrainedModel, dataset: VideoDataset, batch_size: int) -> None:
    """Sets the linear `classifier` of a model from the clips of a data set with one class each, which are read without
    augmentation. Clips that cannot be read are left out."""
    on_error = "error" if dataset.on_error == "error" else "skip"
    plain = VideoDataset(dataset.rows, dataset.task, training=False, on_error=on_error).drop_broken()
    features, labels = [], []
    model.eval()
    for batch in DataLoader(plain, batch_size, collate_fn=plain.task.collate):
        with seen_by_head(model) as seen:
            model(**{model.main_input_name: batch["pixel_values"].to(model.device, model.dtype)})
        # A row may have several clips.
        features.append(seen[0].unflatten(0, (len(batch["labels"]), -1)).mean(dim=1).double())
        labels.append(batch["labels"])
    head = model.get_submodule("classifier")
    weight, bias = fit_ridge(torch.cat(features), F.one_hot(torch.cat(labels), model.config.num_labels).double())
    head.weight.copy_(_GAIN * weight)
    head.bias.copy_(_GAIN * bias)


def fit_ridge(features: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A ridge regression of (N, D) features to (N, K) targets: weights (K, D) and biases (K,). Its strength is the one
    with the least error on each row after fitting the others, in closed form (Allen 1974)."""
    centre, mean = features.mean(dim=0), targets.mean(dim=0)
    apart, wanted = features - centre, targets - mean
    variances, axes = torch.linalg.eigh(apart @ apart.T)
    variances = variances.clamp(min=0)
    along = axes.T @ wanted

    def left_out_error(strength: torch.Tensor) -> float:
        kept = variances / (variances + strength)
        leverage = axes.square() @ kept + 1 / len(features)
        missed = wanted - axes @ (kept[:, None] * along)
        return float((missed / (1 - leverage).clamp(min=1e-3)[:, None]).square().mean())

    strength = min(_STRENGTHS * variances.mean().clamp(min=1e-12), key=left_out_error)
    weight = (apart.T @ (axes @ (along / (variances + strength)[:, None]))).T
    return weight, mean - weight @ centre
