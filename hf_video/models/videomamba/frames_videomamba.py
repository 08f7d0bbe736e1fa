"""What classifiers of frames share: the mask of padded clips, the feature of a frame, and the loss."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig

UNKNOWN = -100
# MS-TCN, section 3.3: differences of log-probabilities count up to 4.
MOST_DIFFERENCE = 4.0


# Copied from hf_video.models.videovit.frames_videovit.check_frame_mask
def check_frame_mask(
    frame_mask: torch.Tensor, batch_size: int, num_token_frames: int, bool_masked_pos: torch.Tensor | None
) -> None:
    """Raise `ValueError` unless the mask is `(batch_size, num_token_frames)`, without a mask of patches beside it."""
    if frame_mask.shape != (batch_size, num_token_frames):
        raise ValueError(
            "The mask of frames must have the shape (batch_size, token frames) = "
            f"({batch_size}, {num_token_frames}), got {tuple(frame_mask.shape)}."
        )
    if bool_masked_pos is not None:
        raise ValueError("A mask of frames and `bool_masked_pos` cannot be given both: pad clips, or hide patches.")


# Copied from hf_video.models.videovit.frames_videovit.mask_of_tokens
def mask_of_tokens(frame_mask: torch.Tensor, grid: tuple[int, int, int], num_prefix_tokens: int) -> torch.Tensor:
    """The mask of token frames `(batch_size, t)` for tokens: bool, `(batch_size, num_prefix_tokens + t * h * w)`."""
    patches = frame_mask.bool().repeat_interleave(math.prod(grid[1:]), dim=1)
    return F.pad(patches, (num_prefix_tokens, 0), value=True)


# Copied from hf_video.models.videovit.frames_videovit.pool_frames
def pool_frames(tokens: torch.Tensor, grid: tuple[int, int, int], config: Any) -> torch.Tensor:
    """
    The feature of each token frame, `config.frame_pooling` of its patches.

    Args:
        tokens: `(batch_size, sequence_length, hidden_size)`; the patches are the last `t * h * w`, frame by frame.
        grid: token grid (t, h, w).
        config: a configuration with `frame_pooling`.

    Returns:
        `(batch_size, t, hidden_size)`.
    """
    patches = tokens[:, tokens.shape[1] - math.prod(grid) :].unflatten(1, (grid[0], -1))
    return patches[:, :, -1] if config.frame_pooling == "last" else patches.mean(dim=2)


# Copied from hf_video.models.videovit.frames_videovit.frame_loss
def frame_loss(
    labels: torch.Tensor,
    logits: torch.Tensor,
    config: PreTrainedConfig,
    attention_mask: torch.Tensor | None = None,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """
    The mean loss of the frames whose labels are known, in float32 at least, and `config.smoothing_loss_weight` times
    `smoothing_loss`.

    Args:
        labels: classes `(batch_size, t)`, int64, for the cross-entropy; or targets in [0, 1] `(batch_size, t,
            num_labels)`, float, for the binary one. -100 is unknown. If `config.problem_type` is not set, the first
            labels decide on it by their dtype.
        logits: `(batch_size, t, num_labels)`.
        attention_mask: `(batch_size, t)`, true for frames, false for padding.
        num_items_in_batch: number of known labels in the whole of an accumulated batch, of which this is a part.

    Raises:
        ValueError: if labels do not fit the logits or the problem type.
    """
    if config.problem_type is None:
        is_multi = labels.is_floating_point()
        config.problem_type = "multi_label_classification" if is_multi else "single_label_classification"
    expected = {"single_label_classification": logits.shape[:-1], "multi_label_classification": logits.shape}
    if labels.shape != expected.get(config.problem_type):
        raise ValueError(
            "`labels` of frames must be classes (batch_size, token frames), int64, or targets (batch_size, token "
            f"frames, num_labels), float. With logits of {tuple(logits.shape)} and problem_type="
            f"{config.problem_type!r}, got {labels.dtype} of {tuple(labels.shape)}."
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if attention_mask is not None:
        real = attention_mask.bool()
        labels = labels.masked_fill(~(real if labels.ndim == 2 else real[..., None]), UNKNOWN)
    is_known = labels.ne(UNKNOWN)
    if config.problem_type == "single_label_classification":
        losses = F.cross_entropy(logits.mT, labels, reduction="none", ignore_index=UNKNOWN)
    else:
        targets = labels.where(is_known, 0.0).to(logits.dtype)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none") * is_known
    num_known = is_known.sum()
    loss = losses.sum() / num_known.clamp(min=1)
    if weight := config.smoothing_loss_weight:
        loss = loss + weight * smoothing_loss(logits, attention_mask, config.problem_type)
    return loss if num_items_in_batch is None else loss * (num_known / num_items_in_batch)


# Copied from hf_video.models.videovit.frames_videovit.smoothing_loss
def smoothing_loss(logits: torch.Tensor, attention_mask: torch.Tensor | None, problem_type: str) -> torch.Tensor:
    """
    The truncated mean squared error of MS-TCN (https://arxiv.org/abs/1903.01945, section 3.3): how much the
    log-probabilities of a frame differ from those of the frame before, which gets no gradient.

    Args:
        logits: `(batch_size, t, num_labels)`.
        attention_mask: `(batch_size, t)`, true for frames; a pair with padding does not count.
        problem_type: several labels at once have the logarithm of a sigmoid each, in place of a softmax.
    """
    is_multi = problem_type == "multi_label_classification"
    log_probabilities = F.logsigmoid(logits) if is_multi else logits.log_softmax(dim=-1)
    differences = log_probabilities[:, 1:] - log_probabilities[:, :-1].detach()
    squares = differences.square().clamp(max=MOST_DIFFERENCE**2)
    if attention_mask is None:
        return squares.sum() / max(squares.numel(), 1)
    pairs = attention_mask[:, 1:].bool()[..., None].expand_as(squares)
    return (squares * pairs).sum() / pairs.sum().clamp(min=1)
