"""Another question to a memory: its frames are kept, and the Q-Former reads them again with another text."""

from typing import Any

import torch

from .frames_memory_bank_qformer import check_inputs, visible_text
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

    The visual bank does not depend on the text. Its entries are read like frames, oldest first, each with those before
    it. As long as nothing was merged this is what the model would have done, had it been asked from the start. Later
    it is an approximation: an entry that stands for many frames is read once, and where token positions merged
    different frames it is of several moments.

    Args:
        model ([`MemoryBankQFormerModel`]): the one that filled the memory.
        memory ([`MemoryBank`]): left as it is. Of one video it answers any number of texts.
        qformer_input_ids, qformer_attention_mask: the text, `(batch_size, text_length)`, as for the model.

    Returns:
        A memory to go on with, and the queries after its last entry `(batch_size, num_query_tokens, hidden_size)`.

    Raises:
        ValueError: if the memory is empty, keeps no frames (`visual_memory=False`), holds different numbers of
            entries for the videos of a batch, or the texts are not one for each video, or too long.
    """
    if memory.visual is None or not any(memory.visual.num_entries):
        raise ValueError("The memory holds no frames to be read with another text: ask from the start instead.")
    if qformer_input_ids is not None and memory.batch_size == 1:
        memory = memory.take(torch.zeros(len(qformer_input_ids), dtype=torch.long))
    visual: Any = memory.visual
    check_inputs(model.config, None, visual.slots, None, qformer_input_ids, qformer_attention_mask)
    num_entries, config = visual.entries_of_each, model.config
    text_length = 0 if qformer_input_ids is None else qformer_input_ids.shape[1]
    query_size = (config.num_query_tokens + text_length, config.qformer_config.hidden_size)
    dtype = model.qformer.embeddings.layernorm.weight.dtype
    replayed = MemoryBank(memory.length, memory.policy)
    replayed.prepare(
        memory.batch_size,
        visual_size=visual.size,
        query_sizes=[query_size] * (config.qformer_config.num_hidden_layers if config.query_memory else 0),
        dtype=dtype,
        device=visual.slots.device,
        text_ids=visible_text(qformer_input_ids, qformer_attention_mask),
    )
    query_embeds = model.query_tokens.expand(memory.batch_size, -1, -1)
    outputs: Any = None
    for entry in visual.states.to(dtype).unbind(1):
        outputs = model.qformer(
            query_embeds, entry, qformer_input_ids, qformer_attention_mask, replayed, True, return_dict=True
        )
        for bank, states in zip(replayed.banks(), (entry, *outputs.layer_inputs), strict=False):
            bank.append(states)
    for bank in replayed.banks():
        # Queries are no tokens of the frame: an entry of theirs stands for as many frames as its mean token.
        counts = visual.counts if bank is replayed.visual else visual.counts.mean(-1, keepdim=True)
        bank.slot_counts[:, :num_entries] = counts
    replayed.frames_seen = memory.frames_seen.clone()
    replayed.last_queries = outputs.last_hidden_state[:, : config.num_query_tokens]
    return replayed, replayed.last_queries


__all__ = ["replay_memory"]
