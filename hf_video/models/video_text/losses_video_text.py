"""Losses of VideoTextDualEncoder: contrast, matching and masked words, and what they draw."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

IGNORED = -100


def unit_vectors(embeds: torch.Tensor) -> torch.Tensor:
    """Vectors of unit length along the last dimension, float32 at least."""
    return F.normalize(embeds.to(torch.promote_types(embeds.dtype, torch.float32)), dim=-1)


def mean_direction(video_embeds: torch.Tensor) -> torch.Tensor:
    """
    One vector for each video, whose product with a text of unit length is the mean of the cosines between the video's
    vectors and the text's.

    Args:
        video_embeds: `(num_videos, num_vectors, projection_dim)`, of any length.

    Returns:
        `(num_videos, projection_dim)`, float32 at least.
    """
    return unit_vectors(video_embeds).mean(dim=1)


def gather_from_processes(tensor: torch.Tensor, original_gradient_scale: bool = False) -> torch.Tensor:
    """
    Join the tensors of all processes, in their order. They must have the same shape.

    Every process computes the same loss of the whole, so a process knows the gradient of its own part. It is
    multiplied by the number of processes, because data parallelism divides the sum of their gradients by it. With
    `original_gradient_scale` it is not multiplied.
    """
    num_processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if num_processes == 1:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(num_processes)]
    dist.all_gather(parts, tensor.detach().contiguous())
    own = tensor.view_as(tensor)
    if own.requires_grad and not original_gradient_scale:
        own.register_hook(lambda gradient: gradient * num_processes)
    parts[dist.get_rank()] = own
    return torch.cat(parts)


def first_id(batch_size: int) -> int:
    """A number from which ids of pairs are unique among processes with batches of this size."""
    return batch_size * dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def contrastive_loss(logits: torch.Tensor, video_ids: torch.Tensor) -> torch.Tensor:
    """
    Cross-entropy from videos to texts and from texts to videos, averaged. Pairs of one video share its probability.

    Args:
        logits: `(batch_size, batch_size)`, videos in rows.
        video_ids: `(batch_size,)`, int64: which video a pair belongs to.
    """
    same = (video_ids[:, None] == video_ids).to(logits.dtype)
    targets = same / same.sum(dim=1, keepdim=True)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2


def negative_weights(logits: torch.Tensor, video_ids: torch.Tensor, hard: bool = True) -> torch.Tensor:
    """
    Weights by which the negatives of each row are drawn, 0 for those of the same video.

    Args:
        logits: `(batch_size, batch_size)`, cosines over the temperature.
        video_ids: `(batch_size,)`, int64.
        hard: whether similar ones are drawn more often.

    Raises:
        ValueError: if all pairs are of one video.
    """
    same = video_ids[:, None] == video_ids
    if same.all():
        raise ValueError(
            f"Matching needs pairs of at least two videos in a batch, got {len(video_ids)} of one: enlarge the batch, "
            'or set the weight of "vtm" in `loss_weights` to 0.'
        )
    if not hard:
        return (~same).to(logits.dtype)
    # The original sets the weights of the same video to 0 after the softmax, where all others may be 0 too.
    return logits.detach().masked_fill(same, -math.inf).softmax(dim=1).nan_to_num(nan=1e-2)


def draw_negatives(
    logits: torch.Tensor,
    video_ids: torch.Tensor,
    hard: bool = True,
    video_negatives: torch.Tensor | None = None,
    text_negatives: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The video drawn for each text, then the text drawn for each video, both `(batch_size,)`, unless given. `logits`
    have videos in rows."""
    if video_negatives is None:
        video_negatives = negative_weights(logits.T, video_ids, hard).multinomial(1)[:, 0]
    if text_negatives is None:
        text_negatives = negative_weights(logits, video_ids, hard).multinomial(1)[:, 0]
    return video_negatives, text_negatives


def matching_loss(match_logits: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of logits `(3 * batch_size, 2)`, of which the first third are pairs that match."""
    labels = torch.zeros(len(match_logits), dtype=torch.long, device=match_logits.device)
    labels[: len(labels) // 3] = 1
    return F.cross_entropy(match_logits.to(torch.promote_types(match_logits.dtype, torch.float32)), labels)


def mask_tokens(
    input_ids: torch.Tensor, probability: float, vocab_size: int, mask_token_id: int, never_masked: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    BERT's masking (https://arxiv.org/abs/1810.04805, section 3.1): of the tokens to predict, 80 % become
    `mask_token_id`, 10 % any token, and 10 % stay.

    Returns:
        Ids and labels, both `(batch_size, sequence_length)`, int64; labels are -100 where nothing is to predict.
    """
    excluded = torch.isin(input_ids, torch.tensor(never_masked, device=input_ids.device))
    chosen = torch.full(input_ids.shape, probability, device=input_ids.device).bernoulli().bool() & ~excluded
    labels = input_ids.masked_fill(~chosen, IGNORED)
    draws = torch.rand(input_ids.shape, device=input_ids.device)
    words = torch.randint_like(input_ids, vocab_size)
    masked = torch.where(draws < 0.8, torch.full_like(input_ids, mask_token_id), words.where(draws < 0.9, input_ids))
    return masked.where(chosen, input_ids), labels


def masked_word_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of `(batch_size, sequence_length, vocab_size)` over the labels that are not -100, 0 if there
    are none."""
    words = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(words, labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp(min=1)
