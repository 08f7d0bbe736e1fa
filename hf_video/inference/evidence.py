"""The evidence of patches for a class: rolled-out attention, gradients on a memory, or integrated gradients.

Each of the three functions takes

- model: a classifier in evaluation mode;
- patches: what `find_patch_grid` gives;
- clip: (1, num_frames, num_channels, height, width);
- options: further inputs of the model;
- target: number of the output,

and returns (1, t, h, w), at least float32 and at least 0. It raises `ValueError` if the model gives no gradients.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)
_NUM_STEPS = 8


def class_score(logits: torch.Tensor, target: int) -> torch.Tensor:
    """One output of a model for one clip: (1,), of the logits (1, num_labels), through which gradients can run."""
    if not logits.requires_grad:
        raise ValueError(
            "The model gives no gradients, which heat maps need. If it rounds its activations (int8), load it without "
            "quantisation, or with weights alone in int8."
        )
    return logits.reshape(1, -1)[:, target]


class PatchGrid(NamedTuple):
    """The frames, rows and columns of a patch, and the number of patches of a clip in time, in rows and in columns."""

    patch_shape: tuple[int, int, int]
    grid: tuple[int, int, int]

    def sum_pixels(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over the pixels of each patch: (1, num_frames, num_channels, height, width) to (1, t, h, w). What fills
        no patch at the end is left out."""
        return F.avg_pool3d(values.sum(2)[:, None], self.patch_shape, divisor_override=1)[:, 0]


def find_patch_grid(model: PreTrainedModel, clip: torch.Tensor) -> PatchGrid:
    """The patches that a model cuts a clip (1, num_frames, num_channels, height, width) into. The layer that turns a
    patch into a token tells them: the only convolution or linear layer in the input embeddings of the model or, if
    these read text, of the vision tower within it. A convolution's kernel is the patch. A linear layer does not tell
    its patch: there the `patch_shape` of the embeddings' configuration does."""
    for part in (part for part in model.modules() if isinstance(part, PreTrainedModel)):
        try:
            embedding = part.get_input_embeddings()
        except NotImplementedError:
            continue
        found = [] if embedding is None else list(_projections(embedding))
        if len(found) == 1:
            patch_shape = _patch_shape(found[0], getattr(embedding, "config", None))
            if patch_shape is not None:
                sizes = clip.shape[1], *clip.shape[3:]
                t, h, w = (size // patch for size, patch in zip(sizes, patch_shape, strict=True))
                if not t * h * w:
                    raise ValueError(
                        f"{sizes[0]} frames of {sizes[1]} x {sizes[2]} pixels hold no patch of {patch_shape} (frames, "
                        "height, width)."
                    )
                return PatchGrid(patch_shape, (t, h, w))
    raise ValueError(
        f"{type(model).__name__} cannot be explained: no layer was found that turns patches of pixels into tokens."
    )


def _projections(module: nn.Module) -> Iterator[nn.Module]:
    """The convolutions and linear layers in a module. One with a LoRA adapter of PEFT is one layer."""
    layer = getattr(module, "base_layer", module)
    if isinstance(layer, (*_CONVOLUTIONS, nn.Linear)):
        yield layer
    else:
        for child in module.children():
            yield from _projections(child)


def _patch_shape(projection: nn.Module, config: object) -> tuple[int, int, int] | None:
    """Frames, rows and columns of a patch; None if patches overlap, or the shape is unknown."""
    if not isinstance(projection, _CONVOLUTIONS):
        return getattr(config, "patch_shape", None)
    if projection.kernel_size != projection.stride or any(projection.padding):
        return None
    sizes = (1, *projection.kernel_size)[-3:]
    return sizes[0], sizes[1], sizes[2]


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
        self.read: Any = None
        self.row: Any = None

    def add(self, attention: torch.Tensor, gradient: torch.Tensor) -> None:
        """Takes in the layer before the last one added; both (batch_size, num_heads, num_tokens, num_tokens)."""
        weights = (attention * gradient).clamp(min=0)
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32)).mean(1)
        if self.row is None:
            read = gradient.ne(0).any(-1).any(1).to(weights)
            self.read = self.row = read / read.sum(1, keepdim=True).clamp(min=1)
        self.row = self.row + (self.row[:, None] @ weights)[:, 0]

    def evidence(self) -> Any:
        """(batch_size, num_tokens)."""
        return self.row - self.read


def roll_out_attention(
    model: PreTrainedModel, patches: PatchGrid, clip: torch.Tensor, options: dict[str, Any], target: int
) -> torch.Tensor | None:
    """
    Evidence of patches, by the gradient-weighted roll-out of attention; see `RollOut`.

    Attention is eager: fused implementations do not return weights. Autograd holds that of all layers: num_layers *
    num_heads * (t * h * w)^2 numbers, twice. In float32 these are 2.8 GB for VideoViT-B with 1568 tokens, and 7.6 GB
    for VideoViT-L.

    Returns:
        None if the model does not record attention over one sequence of a class token, or none, and then all patches
        in the order time, row, column.
    """
    recorded = getattr(model, "_can_record_outputs", None) or {}
    if "attentions" not in recorded or not model._can_set_attn_implementation():
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


def weigh_patches(
    model: PreTrainedModel, patches: PatchGrid, clip: torch.Tensor, options: dict[str, Any], target: int
) -> torch.Tensor:
    """
    Evidence of patches: the integrated gradients of their pixels from a blank clip, as far as their sum is positive.

    Equation 1 of Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks" (ICML 2017). The blank clip has
    the median of each colour channel over the clip. All values, before negative ones are set to 0, add up to the score
    of the clip less that of the blank one, up to the error of 8 steps. A patch becomes a token by an affine map, so
    the sum over its pixels is that over the channels of its token. The pixels have their places, whatever order, class
    token or scan comes behind.

    A patch that looks like the blank clip has no evidence, whatever the model has learned. Where a video shows one
    thing before an even background, any model's map is on that thing; what has been learned decides which of its
    places and moments count.

    It costs 8 passes forward and back, one at a time.

    Raises:
        ImportError: captum is not installed.
        ValueError: the model leaves out patches.
    """
    try:
        from captum.attr import IntegratedGradients
    except ImportError as error:
        raise ImportError(
            f"Heat maps of {type(model).__name__} are computed with captum: pip install 'hf-video-models[explain]'"
        ) from error

    def score(pixels: torch.Tensor) -> torch.Tensor:
        return class_score(model(**{model.main_input_name: pixels, **options}).logits, target)

    colors = clip.float().transpose(1, 2).flatten(2).median(-1).values.to(clip.dtype)
    blank = colors[:, None, :, None, None].expand_as(clip)
    products = IntegratedGradients(score).attribute(clip.detach(), blank, n_steps=_NUM_STEPS, internal_batch_size=1)
    return patches.sum_pixels(products.detach().float()).clamp(min=0)


def reads_into_memory(model: PreTrainedModel) -> bool:
    """Whether a model embeds frames apart and reads them one after the other, as MemoryBankQFormer does."""
    return hasattr(model.base_model, "get_vision_embeds") and hasattr(model.base_model, "uses_memory")


def weigh_memory(
    model: PreTrainedModel, patches: PatchGrid, clip: torch.Tensor, options: dict[str, Any], target: int
) -> torch.Tensor:
    """
    Evidence of patches: gradient times activation of each channel of a vision token, as far as it is positive.

    The score comes from the last frame and from the visual bank, which holds the tokens of the frames before; the
    gradients are taken there. An entry of the bank that stands for several frames gives each the same share. What the
    query bank has kept of earlier frames has no place in a frame, and is left out.

    The model is one with `reads_into_memory`. Frames that the bank has dropped have 0.

    Raises:
        ValueError: the inputs have a memory of earlier frames, or a mask of frames.
    """
    for name in ("memory", "frame_attention_mask"):
        if options.get(name) is not None:
            raise ValueError(f"The inputs have a `{name}`: explain whole videos, without it.")
    num_frames, (_, h, w) = clip.shape[1], patches.grid
    evidence = torch.zeros(num_frames, h * w, device=clip.device)
    with torch.no_grad():
        embeds = model.base_model.get_vision_embeds(clip)
        memory = model(vision_embeds=embeds[:, :-1], **options).memory if num_frames > 1 else None
    last = embeds[:, -1:].clone().requires_grad_()
    bank = None if memory is None else memory.visual
    if memory is not None:
        options = {**options, "memory": memory}
    sources = [last]
    if bank is not None:
        # The model adds the last frame to the bank after it has read it.
        slots, counts = bank.slots.clone(), bank.counts[0].long()
        order = bank.order[0, : bank.num_entries[0], :, None].clone()
        sources.append(bank.slots.requires_grad_())
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        score = class_score(model(vision_embeds=last, **options).logits, target)
        gradients = torch.autograd.grad(score, sources)
    if bank is not None:
        entries = (slots * gradients[1])[0].clamp(min=0).sum(-1, keepdim=True).gather(0, order)[..., 0]
        frames = spread_over_frames(entries, counts)[:, -h * w :]
        evidence[num_frames - 1 - len(frames) : num_frames - 1] = frames
    evidence[-1] = (last * gradients[0])[0, 0, -h * w :].detach().float().clamp(min=0).sum(-1)
    return evidence.reshape(1, num_frames, h, w)


def spread_over_frames(entries: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The evidence of entries (num_entries, num_positions) on the frames that they stand for, oldest first.

    At each position an entry stands for as many frames in a row as its count, and follows on the entry before it.
    """
    shares = (entries / counts).float()
    return torch.stack([share.repeat_interleave(count) for share, count in zip(shares.T, counts.T, strict=True)], 1)
