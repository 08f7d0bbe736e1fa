"""Trains a part of a model: a new head, some of the layers, or LoRA adapters."""

from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import is_peft_available

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


def make_linear_probe(model: PreTrainedModel, with_pooler: bool = False) -> None:
    """Freezes a classifier and gives it a new, trainable head, a [`NormalizedLinear`].

    With `with_pooler`, a model with an attentive pooler keeps its linear head, and trains both (V-JEPA 2's probe).

    Raises:
        ValueError: the model has no linear `classifier`.
    """
    classifier = getattr(model, "classifier", None)
    if not isinstance(classifier, nn.Linear):
        raise ValueError(f"{type(model).__name__} has no linear layer `classifier` to train as a probe.")
    model.requires_grad_(False)
    if with_pooler and has_pooler(model):
        model.pooler.requires_grad_(True)
        classifier.requires_grad_(True)
        return
    model.classifier = NormalizedLinear(classifier.in_features, classifier.out_features)


def has_pooler(model: PreTrainedModel) -> bool:
    """Whether the head of a model begins with an attentive pooler."""
    return getattr(model.config, "pooler_type", None) is not None


def freeze_layers(model: PreTrainedModel, count: int) -> None:
    """Freezes the first `count` of the groups that `model.layer_groups()` lists: the embeddings, then layer by layer.

    Raises:
        ValueError: the model has no `layer_groups`, or fewer groups.
    """
    groups = layer_groups_of(model, f"freeze_layers={count}") if count else []
    if count > len(groups):
        raise ValueError(f"freeze_layers is {count}; {type(model).__name__} has {len(groups)} groups of layers.")
    for group in groups[:count]:
        group.requires_grad_(False)


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
    head = ["pooler", "classifier"] if has_pooler(model) else ["classifier"]
    return with_adapters(model, rank, alpha, target_modules=names, modules_to_save=head)


def with_adapters(model: Any, rank: int, alpha: float | None, **options: Any) -> Any:
    """A `PeftModel` with LoRA adapters. `ImportError` says how to install PEFT."""
    if not is_peft_available():
        raise ImportError("lora_rank needs PEFT, which is not installed: pip install 'hf-video-models[lora]'.")
    from peft import LoraConfig, get_peft_model

    alpha = 2 * rank if alpha is None else alpha
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=cast(int, alpha), **options))


def to_plain_model(model: Any) -> PreTrainedModel:
    """A model with the same outputs that `from_pretrained` can load: adapters are merged and a probe is folded."""
    model = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    if isinstance(getattr(model, "classifier", None), NormalizedLinear):
        model.classifier = model.classifier.fold()
    return model
