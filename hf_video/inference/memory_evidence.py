"""Evidence in the memory of a model that reads a video frame by frame."""

from typing import Any

import torch
from transformers import PreTrainedModel

from .class_score import class_score
from .patch_grid import PatchGrid


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

    Args:
        model: a classifier in evaluation mode with `reads_into_memory`.
        patches: of `find_patch_grid`.
        clip: (1, num_frames, num_channels, height, width).
        options: further inputs of the model.
        target: number of the output.

    Returns:
        (1, num_frames, h, w) float32, at least 0. Frames that the bank has dropped have 0.

    Raises:
        ValueError: the inputs have a memory of earlier frames, or a mask of frames, or the model gives no gradients.
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
    if bank is None:
        gradients = torch.autograd.grad(_score(model, last, options, target), [last])
    else:
        # The model adds the last frame to the bank after it has read it.
        slots, counts = bank.slots.clone(), bank.counts[0].long()
        order = bank.order[0, : bank.num_entries[0], :, None].clone()
        bank.slots.requires_grad_()
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            gradients = torch.autograd.grad(_score(model, last, options, target), [last, bank.slots])
        entries = (slots * gradients[1])[0].clamp(min=0).sum(-1, keepdim=True).gather(0, order)[..., 0]
        frames = _spread(entries, counts)[:, -h * w :]
        evidence[num_frames - 1 - len(frames) : num_frames - 1] = frames
    evidence[-1] = (last * gradients[0])[0, 0, -h * w :].detach().float().clamp(min=0).sum(-1)
    return evidence.reshape(1, num_frames, h, w)


def _score(model: PreTrainedModel, embeds: torch.Tensor, options: dict[str, Any], target: int) -> torch.Tensor:
    return class_score(model(vision_embeds=embeds, **options).logits, target)


def _spread(entries: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The evidence of entries (num_entries, num_positions) on the frames that they stand for, oldest first.

    At each position an entry stands for as many frames in a row as its count, and follows on the entry before it.
    """
    shares = (entries / counts).float()
    return torch.stack([share.repeat_interleave(count) for share, count in zip(shares.T, counts.T, strict=True)], 1)
