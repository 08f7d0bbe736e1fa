"""Asking a memory something else: its frames stay, and the Q-Former reads them again with another text."""

from typing import Any

import torch

from .memory_bank import MemoryBank


@torch.no_grad()
def replay_memory(
    model: Any,
    memory: MemoryBank,
    qformer_input_ids: torch.Tensor | None = None,
    qformer_attention_mask: torch.Tensor | None = None,
) -> tuple[MemoryBank, torch.Tensor]:
    """
    Rebuild the query banks of a memory for another text.

    The visual bank does not depend on the text. Its entries are read like frames, oldest first, each with the entries
    before it. As long as no entries were merged, the result is exact: it equals a memory that was filled with this
    text from the start. After that it is an approximation: an entry that stands for many frames is read once, and its
    token positions may stand for different frames.

    Args:
        model ([`MemoryBankQFormerModel`]): the model that filled the memory.
        memory ([`MemoryBank`]): the memory, which is not changed. If it has one video, it answers any number of texts.
        qformer_input_ids, qformer_attention_mask: the text `(batch_size, text_length)`, as the model takes it.

    Returns:
        A memory to go on with, and the queries after its last entry `(batch_size, num_query_tokens, hidden_size)`.

    Raises:
        ValueError: if the memory is empty or has no visual bank (`visual_memory=False`), if its videos have different
            numbers of entries, if there is not one text for each video, or if a text is too long.
    """
    if memory.visual is None or not any(memory.visual.num_entries):
        raise ValueError("The memory holds no frames to be read with another text: ask from the start instead.")
    if qformer_input_ids is not None and memory.batch_size == 1:
        memory = memory.take(torch.zeros(len(qformer_input_ids), dtype=torch.long))
    visual: Any = memory.visual
    model.check_inputs(None, visual.slots, None, qformer_input_ids, qformer_attention_mask)
    num_entries = visual.entries_of_each
    replayed = MemoryBank(memory.length, memory.policy)
    model.prepare_memory(replayed, visual.slots, qformer_input_ids, qformer_attention_mask)
    query_embeds = model.query_tokens.expand(memory.batch_size, -1, -1)
    outputs: Any = None
    for entry in visual.states.to(model.qformer.embeddings.layernorm.weight.dtype).unbind(1):
        outputs = model.qformer(
            query_embeds, entry, qformer_input_ids, qformer_attention_mask, replayed, True, return_dict=True
        )
        for bank, states in zip(replayed.banks(), (entry, *outputs.layer_inputs), strict=False):
            bank.append(states)
    for bank in replayed.banks():
        # Queries have other positions than vision tokens, so their entries get the mean of the counts.
        counts = visual.counts if bank is replayed.visual else visual.counts.mean(-1, keepdim=True)
        bank.slot_counts[:, :num_entries] = counts
    replayed.frames_seen = memory.frames_seen.clone()
    replayed.last_queries = outputs.last_hidden_state[:, : model.config.num_query_tokens]
    return replayed, replayed.last_queries


__all__ = ["replay_memory"]
