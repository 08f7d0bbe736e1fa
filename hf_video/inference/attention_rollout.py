"""Gradient-weighted roll-out of attention."""

import math
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from .class_score import class_score
from .patch_grid import PatchGrid


class RollOut:
    """Adds up the evidence of tokens while the gradient of a class runs back through the layers.

    Equations 5 and 6 of Chefer, Gur and Wolf, "Generic Attention-model Explainability" (ICCV 2021), are, for attention
    A with gradient G in a layer, with the mean over its heads:

        A_bar = mean(max(G * A, 0)),    R <- R + A_bar R,    R = 1 before the first layer.

    The evidence of a token is the mean of its column in R over the rows that the head of the model reads: all tokens,
    or the class token. Those rows have a gradient in the last layer, others have none. The 1 of the start says nothing
    of evidence and is left out. As the last layer's gradient comes first, the mean of rows is rolled out from there:
    a row of numbers takes the place of a matrix for each layer.
    """

    def __init__(self) -> None:
        self.read: torch.Tensor | None = None
        self.row: torch.Tensor | None = None

    def add(self, attention: torch.Tensor, gradient: torch.Tensor) -> None:
        """Takes in the layer before the last one added; both (batch_size, num_heads, num_tokens, num_tokens)."""
        weights = (attention * gradient).clamp(min=0)
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32)).mean(1)
        if self.row is None:
            read = gradient.ne(0).any(-1).any(1).to(weights)
            self.read = self.row = read / read.sum(1, keepdim=True).clamp(min=1)
        self.row = self.row + (self.row[:, None] @ weights)[:, 0]

    def evidence(self) -> torch.Tensor:
        """(batch_size, num_tokens)."""
        if self.row is None or self.read is None:
            raise RuntimeError("No layer has been added.")
        return self.row - self.read


def roll_out_attention(
    model: PreTrainedModel, patches: PatchGrid, clip: torch.Tensor, options: dict[str, Any], target: int
) -> torch.Tensor | None:
    """
    Evidence of patches, by the gradient-weighted roll-out of attention; see `RollOut`.

    Autograd holds the attention of all layers: num_layers * num_heads * (t * h * w)^2 numbers, twice. In float32 these
    are 2.8 GB for VideoViT-B with 1568 tokens, and 7.6 GB for VideoViT-L.

    Args:
        model: a classifier in evaluation mode, with eager attention: fused implementations do not return weights.
        patches: of `find_patch_grid`.
        clip: (1, num_frames, num_channels, height, width).
        options: further inputs of the model.
        target: number of the output.

    Returns:
        (1, t, h, w), at least float32 and at least 0; None if the model does not record attention over one sequence of
        a class token, or none, and then all patches in the order time, row, column.

    Raises:
        ValueError: the model gives no gradients.
    """
    if not _records_attention(model):
        return None
    roll_out = RollOut()
    inputs = {model.main_input_name: clip.detach().requires_grad_(), **options}
    outputs = model(**inputs, output_attentions=True, return_dict=True)
    score = class_score(outputs.logits, target)
    num_patches = math.prod(patches.grid)
    attentions = outputs.attentions or ()
    num_tokens = {attention.shape[-1] if attention.shape[-2] == attention.shape[-1] else 0 for attention in attentions}
    is_one_sequence = all(attention.ndim == 4 and len(attention) == 1 for attention in attentions)
    if not is_one_sequence or num_tokens not in ({num_patches}, {num_patches + 1}):
        return None
    for attention in attentions:
        attention.register_hook(partial(roll_out.add, attention.detach()))
    torch.autograd.grad(score, inputs[model.main_input_name])
    return roll_out.evidence()[:, -num_patches:].reshape(1, *patches.grid)


def _records_attention(model: PreTrainedModel) -> bool:
    recorded = getattr(model, "_can_record_outputs", None) or {}
    return "attentions" in recorded and model._can_set_attn_implementation()
