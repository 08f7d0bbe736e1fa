"""Relative positions in the Q-Former's attention, where no bank of earlier states stands beside the frame's."""

import torch

from .configuration_memory_bank_qformer import MemoryBankQFormerConfig


def uses_relative_positions(config: MemoryBankQFormerConfig, is_cross_attention: bool) -> bool:
    """Whether attention of this kind has a table of distances: the states of many frames at once have none."""
    if getattr(config.qformer_config, "position_embedding_type", "absolute") == "absolute":
        return False
    return not (is_cross_attention and config.visual_memory and config.memory_bank_length > 0)


def add_relative_scores(
    config: MemoryBankQFormerConfig,
    table: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    scaling: float,
    attention_mask: torch.Tensor | None,
) -> torch.Tensor | None:
    """
    The additive attention mask with scores for the distance between query i and key j added, as BERT's `relative_key`
    and `relative_key_query` have them (arXiv:2009.13658, section 4; `BertSelfAttention` of MA-LMM's `Qformer.py`).

    Args:
        config: its `qformer_config.position_embedding_type` tells which.
        table: an embedding for every distance i - j, `(2 * max_position_embeddings - 1, head_dim)`.
        query, key: `(batch_size, num_heads, length, head_dim)`.
        scaling: of the scores.
        attention_mask: bool, True to attend, or additive; broadcast to `(batch_size, num_heads, length, length)`.

    Returns:
        `attention_mask` as it is in cross-attention to another number of tokens than there are queries: the original
        cannot run there, so there is no distance to take.

    Raises:
        ValueError: if there are more positions than the table knows distances of, or the attention implementation
            takes no scores.
    """
    length, longest = query.shape[2], config.qformer_config.max_position_embeddings
    if key.shape[2] != length:
        return attention_mask
    if length > longest:
        raise ValueError(
            f"Queries and text are {length} positions, but relative positions reach over `max_position_embeddings`="
            f"{longest}: pass a shorter text."
        )
    if config._attn_implementation not in ("eager", "sdpa"):
        raise ValueError(
            f"Relative positions need `attn_implementation` 'eager' or 'sdpa', got {config._attn_implementation!r}."
        )
    position = torch.arange(length, device=query.device)
    distances = table[position[:, None] - position + longest - 1].to(query.dtype)
    scores = torch.einsum("bhld,lrd->bhlr", query, distances)
    if config.qformer_config.position_embedding_type == "relative_key_query":
        scores = scores + torch.einsum("bhrd,lrd->bhlr", key, distances)
    scores = scores * scaling
    if attention_mask is None:
        return scores
    if attention_mask.dtype == torch.bool:
        return scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    return scores + attention_mask
