"""Trains a part of a model: frozen layers, LoRA, and a probe of its features."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from transformers import PreTrainedConfig, PreTrainedModel, PrinterCallback, Trainer, TrainingArguments
from transformers.utils import is_peft_available

from hf_video.inference.prediction import problem_type_of
from hf_video.metrics import compute_metrics

from .losses import CrossEntropy
from .optimization import layer_groups_of


class NormalizedLinear(nn.Linear):
    """A linear layer on batch-normalised features, the probe of MAE (https://arxiv.org/abs/2111.06377).

    The normalisation has no weights, so that `fold` can merge it into one plain linear layer.
    """

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features)
        self.norm = nn.BatchNorm1d(in_features, eps=1e-6, affine=False)
        nn.init.normal_(self.weight, std=0.01)
        nn.init.zeros_(self.bias)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(features))

    @torch.no_grad()
    def fold(self) -> nn.Linear:
        """A plain linear layer with the same outputs as this layer in evaluation mode."""
        linear = nn.Linear(self.in_features, self.out_features, device=self.weight.device, dtype=self.weight.dtype)
        mean, variance = cast(torch.Tensor, self.norm.running_mean), cast(torch.Tensor, self.norm.running_var)
        linear.weight.copy_(self.weight / (variance + self.norm.eps).sqrt())
        linear.bias.copy_(self.bias - linear.weight @ mean)
        return linear


def freeze_layers(model: PreTrainedModel, count: int) -> None:
    """Freezes the first `count` of the groups that `model.layer_groups()` lists: the embeddings, then layer by layer.

    Raises:
        ValueError: the model has no `layer_groups`, or fewer groups.
    """
    if count == 0:
        return
    groups = layer_groups_of(model, f"freeze_layers={count}")
    if not 0 < count <= len(groups):
        raise ValueError(f"freeze_layers is {count}; {type(model).__name__} has {len(groups)} groups of layers.")
    for group in groups[:count]:
        group.requires_grad_(False)


def make_linear_probe(model: PreTrainedModel) -> None:
    """Freezes a classifier and gives it a new, trainable head, a [`NormalizedLinear`].

    Raises:
        ValueError: the model has no linear `classifier`.
    """
    classifier = getattr(model, "classifier", None)
    if not isinstance(classifier, nn.Linear):
        raise ValueError(f"{type(model).__name__} has no linear layer `classifier` to train as a probe.")
    model.requires_grad_(False)
    model.classifier = NormalizedLinear(classifier.in_features, classifier.out_features)


def add_lora(model: PreTrainedModel, rank: int, alpha: float | None = None) -> Any:
    """Puts LoRA adapters on all linear layers after the embeddings, with PEFT. The head is trained as a whole.

    Args:
        model: a video classifier with `layer_groups`.
        rank: rank of the adapters.
        alpha: their outputs are scaled by `alpha / rank`; by default twice the rank.

    Returns:
        A `peft.PeftModel`.

    Raises:
        ImportError: PEFT is not installed.
        ValueError: the model has no `layer_groups`.
    """
    blocks = layer_groups_of(model, f"lora_rank={rank}")[1:]
    linear = {id(module) for block in blocks for module in block.modules() if isinstance(module, nn.Linear)}
    names = [name for name, module in model.named_modules() if id(module) in linear]
    return with_adapters(model, rank, alpha, target_modules=names, modules_to_save=["classifier"])


def with_adapters(model: Any, rank: int, alpha: float | None, **options: Any) -> Any:
    """A `PeftModel` with LoRA adapters. `ImportError` says how to install PEFT."""
    if not is_peft_available():
        raise ImportError("lora_rank needs PEFT, which is not installed: pip install 'hf-video-models[lora]'.")
    from peft import LoraConfig, get_peft_model

    alpha = 2 * rank if alpha is None else alpha
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=cast(int, alpha), **options))


def to_plain_model(model: Any) -> PreTrainedModel:
    """A model with the same outputs that `from_pretrained` can load: adapters are merged and a probe is folded."""
    if is_peft_available():
        from peft import PeftModel

        if isinstance(model, PeftModel):
            model = model.merge_and_unload()
    if isinstance(getattr(model, "classifier", None), NormalizedLinear):
        model.classifier = model.classifier.fold()
    return model


class ProbeModel(nn.Module):
    """A probe, from features to logits, in the form that a `Trainer` takes. The `problem_type` of a configuration
    decides on the loss. In training each view is a clip of its own; in evaluation the probabilities of the views of a
    video are averaged."""

    def __init__(self, probe: nn.Module, config: PreTrainedConfig):
        super().__init__()
        self.probe = probe
        self.model_config = config

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """`loss` and `logits` from features (batch_size, num_views, ...). The logits are (batch_size, num_classes), in
        training (batch_size * num_views, num_classes)."""
        problem_type, num_views = problem_type_of(self.model_config), features.shape[1]
        logits = self.probe(features.flatten(0, 1).float())
        if self.training:
            labels = labels.repeat_interleave(num_views, dim=0)
        else:
            logits = _mean_logits(logits.unflatten(0, (-1, num_views)), problem_type)
        return {"loss": CrossEntropy(problem_type)({"logits": logits}, labels), "logits": logits}


def train_probe(
    probe: NormalizedLinear,
    config: PreTrainedConfig,
    training: tuple[torch.Tensor, torch.Tensor],
    validation: tuple[torch.Tensor, torch.Tensor],
    arguments: TrainingArguments,
) -> Trainer:
    """Trains a probe and restores the weights with the lowest validation loss.

    Args:
        probe: trained in place.
        config: configuration of the model that computed the features.
        training: features (num_videos, num_views, ...) and labels: class ids (num_videos,) or float targets
            (num_videos, num_classes).
        validation: the same of other videos.
        arguments: such as `TrainingArguments(folder, **PROBE_DEFAULTS)`; the folder is for checkpoints of the probe.

    Returns:
        The trainer. Its `predict` takes a `TensorDataset` of features and labels.
    """
    # Running averages would not converge in the few batches of a probe.
    deviation, mean = torch.std_mean(training[0].float().flatten(0, 1), dim=0, correction=0)
    cast(torch.Tensor, probe.norm.running_mean).copy_(mean)
    cast(torch.Tensor, probe.norm.running_var).copy_(deviation.square())
    # Batch normalisation fails on a last batch of one video, which has no variance.
    arguments.dataloader_drop_last = len(training[0]) % arguments.train_batch_size == 1
    trainer = Trainer(
        model=ProbeModel(probe, config),
        args=arguments,
        train_dataset=TensorDataset(*training),
        eval_dataset=TensorDataset(*validation),
        data_collator=_collate,
        compute_metrics=compute_metrics,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def _mean_logits(views: torch.Tensor, problem_type: str) -> torch.Tensor:
    """Logits of the mean probabilities of the views of each video: (batch_size, num_views, num_classes) to
    (batch_size, num_classes). Computed from logarithms, because probabilities near one have no digits left."""
    if problem_type == "multi_label_classification":
        return F.logsigmoid(views).logsumexp(1) - F.logsigmoid(-views).logsumexp(1)
    return views.log_softmax(-1).logsumexp(1) - math.log(views.shape[1])


def _collate(items: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    features, labels = zip(*items, strict=True)
    return {"features": torch.stack(features), "labels": torch.stack(labels)}
