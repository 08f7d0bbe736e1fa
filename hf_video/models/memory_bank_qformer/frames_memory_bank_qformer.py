"""The frames of a batch of videos: what each of them has, and which can be read together."""

from collections.abc import Iterator

import torch

from .configuration_memory_bank_qformer import MemoryBankQFormerConfig
from .memory_bank import MemoryBank


def check_inputs(
    config: MemoryBankQFormerConfig,
    pixel_values: torch.Tensor | None,
    vision_embeds: torch.Tensor | None,
    frame_attention_mask: torch.Tensor | None,
    input_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Check what `forward` was called with.

    Returns:
        The frames, pixels or embedded, and which of them each video has: bool `(batch_size, num_frames)`, on the CPU.

    Raises:
        ValueError: for inputs of a wrong shape, or that contradict each other.
    """
    frames = vision_embeds if pixel_values is None else pixel_values
    if frames is None or (pixel_values is not None and vision_embeds is not None):
        raise ValueError("Pass either `pixel_values` or `vision_embeds`.")
    width = config.qformer_config.encoder_hidden_size
    if vision_embeds is not None and (vision_embeds.ndim != 4 or vision_embeds.shape[-1] != width):
        raise ValueError(
            f"`vision_embeds` must be (batch_size, num_frames, num_tokens, {width}), got {tuple(vision_embeds.shape)}."
        )
    batch_size, num_frames = frames.shape[:2]
    if not batch_size or not num_frames:
        raise ValueError(f"There are {batch_size} videos of {num_frames} frames: pass at least one of each.")
    if frame_attention_mask is None:
        has_frame = torch.ones(batch_size, num_frames, dtype=torch.bool, device="cpu")
    elif frame_attention_mask.shape == (batch_size, num_frames):
        has_frame = frame_attention_mask.bool().cpu()
    else:
        raise ValueError(
            f"`frame_attention_mask` must be (batch_size, num_frames), here {(batch_size, num_frames)}, got "
            f"{tuple(frame_attention_mask.shape)}."
        )
    longest = config.qformer_config.max_position_embeddings
    if input_ids is None:
        if attention_mask is not None:
            raise ValueError("`qformer_attention_mask` was passed without `qformer_input_ids`.")
    elif not config.use_qformer_text_input:
        raise ValueError("This Q-Former reads no text (`use_qformer_text_input=False`): pass no `qformer_input_ids`.")
    elif input_ids.ndim != 2 or len(input_ids) != batch_size or input_ids.shape[1] > longest:
        raise ValueError(
            f"`qformer_input_ids` must be (batch_size, text_length), here {batch_size} texts of at most {longest} "
            f"tokens, got {tuple(input_ids.shape)}."
        )
    elif attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"`qformer_attention_mask` must have the shape of `qformer_input_ids`, {tuple(input_ids.shape)}, got "
            f"{tuple(attention_mask.shape)}."
        )
    return frames, has_frame


def visible_text(input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Texts `(batch_size, text_length)` to be compared: -1 for padding, whatever stands there."""
    if input_ids is None or attention_mask is None:
        return input_ids
    return input_ids.masked_fill(attention_mask == 0, -1)


def last_frames(frames: torch.Tensor, has_frame: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of `(batch_size, num_frames, ...)` the last that each video has, with 1 for `num_frames`, and whether it has."""
    time = torch.arange(has_frame.shape[1], device="cpu")
    index = torch.where(has_frame, time, 0).amax(1).to(frames.device)
    return frames[torch.arange(len(frames), device=frames.device), index][:, None], has_frame.any(1, keepdim=True)


def uniform_spans(memory: MemoryBank, frames_of_video: list[list[bool]]) -> Iterator[tuple[torch.Tensor, range]]:
    """
    Rows of a batch that can go on together, and the frames over which they do: in each span the same videos have
    frames, and their banks the same number of entries.

    Args:
        memory: asked for its entries when the span begins.
        frames_of_video: for every video which of the frames it has.
    """
    start, num_frames = 0, len(frames_of_video[0])
    while start < num_frames:
        present = [frames[start] for frames in frames_of_video]
        stop = start + 1
        while stop < num_frames and [frames[stop] for frames in frames_of_video] == present:
            stop += 1
        rows_of_length: dict[int, list[int]] = {}
        banks = memory.banks()
        for row in (row for row, has_frame in enumerate(present) if has_frame):
            rows_of_length.setdefault(banks[0].num_entries[row] if banks else 0, []).append(row)
        for rows in rows_of_length.values():
            yield torch.tensor(rows, device="cpu"), range(start, stop)
        start = stop
