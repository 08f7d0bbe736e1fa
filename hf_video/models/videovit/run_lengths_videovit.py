"""
Run-length tokens of VideoViT: tokens that repeat over time are dropped, and the others are packed.

Source: Choudhury et al., "Don't Look Twice: Faster Video Transformers with Run-Length Tokenization",
https://arxiv.org/abs/2411.05222, section 3.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import is_flash_attention_requested

from .configuration_videovit import VideoViTConfig


class TokenRuns(NamedTuple):
    """
    Runs of repeated tokens in a batch. The packed sequence `(1, num_kept, hidden_size)` holds the first token of every
    run, one clip after another, without padding. A token in front of the patches leads its clip, as a run of its own.

    Args:
        kept_patches: `(num_kept_patches,)`, int64, places of the kept patches among all patches of the batch.
        sources: `(batch_size, sequence_length)`, int64, for every token the place of its run in the packed sequence.
        run_lengths: `(num_kept,)`, int64, number of tokens in every run of the packed sequence.
        clip_lengths: `(batch_size,)`, int64, on the CPU, number of kept tokens of every clip.
        cu_seq_lens: `(batch_size + 1,)`, int32, where the clips begin in the packed sequence, then its length.
    """

    kept_patches: torch.Tensor
    sources: torch.Tensor
    run_lengths: torch.Tensor
    clip_lengths: torch.Tensor
    cu_seq_lens: torch.Tensor

    def select(self, patches: torch.Tensor) -> torch.Tensor:
        """Pack the kept ones of `(batch_size or 1, num_patches, channels)` into `(1, num_kept_patches, channels)`."""
        kept = self.kept_patches % (len(patches) * patches.shape[1])
        return patches.flatten(0, 1).index_select(0, kept.to(patches.device))[None]

    def fill(self, packed: torch.Tensor) -> torch.Tensor:
        """Give all tokens of the batch the features of their runs: `(batch_size, sequence_length, hidden_size)`."""
        return packed[0].index_select(0, self.sources.flatten().to(packed.device)).unflatten(0, self.sources.shape)

    def fill_outputs(self, outputs: BaseModelOutput) -> BaseModelOutput:
        """Undo the packing of the last hidden state and of all others that there are."""
        outputs.last_hidden_state = self.fill(outputs.last_hidden_state)
        if outputs.hidden_states is not None:
            outputs.hidden_states = tuple(
                None if packed is None else self.fill(packed) for packed in outputs.hidden_states
            )
        return outputs

    def drop_clips(self, drop_path: nn.Module, branch: torch.Tensor) -> torch.Tensor:
        """Apply stochastic depth to every clip of a packed residual branch on its own."""
        if not drop_path.training or drop_path.drop_prob == 0.0:
            return branch
        return for_each_clip(drop_path, branch, self.clip_lengths)


def repeated_tokens(pixel_values: torch.Tensor, patch_shape: tuple[int, int, int], threshold: float) -> torch.Tensor:
    """
    Find the tokens that repeat the one before them in time, at the same place (arXiv 2411.05222, section 3). The last
    frame of such a patch differs from the first frame of the patch before by at most `threshold`, as the mean absolute
    difference over pixels and channels. The paper has "below"; here a threshold of 0 finds exact repetitions.

    Args:
        pixel_values: `(batch_size, num_frames, num_channels, height, width)`. Only whole patches count.
        patch_shape: frames, rows and columns of a patch.
        threshold: difference in units of `pixel_values`.

    Returns:
        `(batch_size, t, h * w)`, bool, for the token grid (t, h, w). In the first token frame all are false.
    """
    tubelet_size, *patch_size = patch_shape
    batch_size, t = pixel_values.shape[0], pixel_values.shape[1] // tubelet_size
    # Before the subtraction, which wraps around in uint8 and rounds in bfloat16.
    dtype = torch.promote_types(pixel_values.dtype, torch.float32)
    first = pixel_values[:, : (t - 1) * tubelet_size : tubelet_size].to(dtype)
    last = pixel_values[:, 2 * tubelet_size - 1 :: tubelet_size].to(dtype)
    difference = (last - first).abs()
    difference = F.avg_pool2d(difference.flatten(0, 1), tuple(patch_size)).mean(dim=1)
    repeated = (difference <= threshold).flatten(1).unflatten(0, (batch_size, t - 1))
    return F.pad(repeated, (0, 0, 1, 0))


def choose_runs(
    config: VideoViTConfig,
    pixel_values: torch.Tensor,
    masks: dict[str, torch.Tensor | None],
    output_attentions: bool | None,
) -> TokenRuns | None:
    """
    The runs in a batch, or `None` if the configuration has no threshold or no token repeats another. There may be no
    `masks` then; they are given by their names.

    Raises:
        ValueError: for what a model cannot do while the values of its input decide which tokens it keeps.
    """
    if config.run_length_threshold is None:
        return None
    way_out = "set `config.run_length_threshold=None` to keep all tokens."
    for name, mask in masks.items():
        if mask is not None:
            raise ValueError(f"Run-length tokens cannot be masked by `{name}`: {way_out}")
    if config.output_attentions if output_attentions is None else output_attentions:
        raise ValueError(f"Run-length tokens have attention weights of another size in every clip: {way_out}")
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        raise ValueError(f"Run-length tokens cannot be exported, as their number depends on the input: {way_out}")
    return find_runs(pixel_values, config.patch_shape, config.run_length_threshold, int(config.use_class_token))


@torch.compiler.disable
def find_runs(
    pixel_values: torch.Tensor, patch_shape: tuple[int, int, int], threshold: float, num_prefix_tokens: int
) -> TokenRuns | None:
    """
    Find the runs of repeated tokens in a batch.

    Args:
        pixel_values, patch_shape, threshold: as for `repeated_tokens`.
        num_prefix_tokens: number of tokens in front of the patches of every clip, which are always kept.

    Returns:
        The runs, or `None` if no token of the batch repeats another.
    """
    repeated = repeated_tokens(pixel_values, patch_shape, threshold)
    if not repeated.any():
        return None
    kept = ~repeated
    frames = torch.arange(kept.shape[1], device=kept.device)[:, None]
    # The token frame in which the run of every patch began.
    starts = torch.where(kept, frames, 0).cummax(dim=1).values
    in_sequence = F.pad(kept.flatten(1), (num_prefix_tokens, 0), value=True)
    places = in_sequence.flatten().cumsum(dim=0).view_as(in_sequence) - 1
    prefix, patches = places[:, :num_prefix_tokens], places[:, num_prefix_tokens:]
    sources = torch.cat([prefix, patches.view_as(starts).gather(1, starts).flatten(1)], dim=1)
    clip_lengths = in_sequence.sum(dim=1)
    return TokenRuns(
        kept_patches=kept.flatten().nonzero().squeeze(1),
        sources=sources,
        run_lengths=sources.flatten().bincount(),
        clip_lengths=clip_lengths.cpu(),
        cu_seq_lens=F.pad(clip_lengths.cumsum(dim=0), (1, 0)).to(torch.int32),
    )


class VideoViTRunLengthEmbedding(nn.Module):
    """
    Adds the logarithm of a run's length times a learned vector to its token. A run of one token stays unchanged, so a
    model whose vector is zero or whose clips repeat nothing is the model without this embedding.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))

    def forward(self, tokens: torch.Tensor, runs: TokenRuns | None) -> torch.Tensor:
        """Tokens `(1, num_kept, hidden_size)` of `runs`, or `(batch_size, sequence_length, hidden_size)` without."""
        lengths = self.weight.new_ones(1) if runs is None else runs.run_lengths.to(self.weight)
        return tokens + (lengths.log()[:, None] * self.weight).to(tokens.dtype)


def put_in_front(prefix: torch.Tensor, patches: torch.Tensor, runs: TokenRuns | None) -> torch.Tensor:
    """
    Put the same tokens in front of every clip.

    Args:
        prefix: `(1, num_prefix_tokens, channels)`.
        patches: `(batch_size or 1, num_patches, channels)`; with `runs` packed, `(1, num_kept_patches, channels)`.

    Returns:
        `(batch_size or 1, sequence_length, channels)`, or `(1, num_kept, channels)`.
    """
    if runs is None:
        # `len` would be a fixed number in an exported program.
        return torch.cat([prefix.expand(patches.shape[0], -1, -1), patches], dim=1)
    return for_each_clip(lambda clip: torch.cat([prefix, clip], dim=1), patches, runs.clip_lengths - prefix.shape[1])


@torch.compiler.disable
def for_each_clip(
    function: Callable[[torch.Tensor], torch.Tensor], packed: torch.Tensor, clip_lengths: torch.Tensor
) -> torch.Tensor:
    """Apply a function to the tokens `(1, clip_length, channels)` of every clip in a packed sequence."""
    return torch.cat([function(clip) for clip in packed.split(clip_lengths.tolist(), dim=1)], dim=1)


def attend(
    attention_interface: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    runs: TokenRuns | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Attention in which the tokens of a clip see those of their clip alone.

    Args:
        attention_interface: attention function of Transformers.
        module: attention module, for the function.
        query, key, value: `(batch_size, num_attention_heads, sequence_length, head_dim)`, a row for each clip; with
            `runs` packed, `(1, num_attention_heads, num_kept, head_dim)`.
        attention_mask: mask of a padded batch, as the function takes it; `None` for no padding, and with runs.
        kwargs: further arguments of the function.

    Returns:
        The context `(batch_size or 1, sequence_length or num_kept, num_attention_heads, head_dim)`, and the attention
        weights if the function returns them and there are no runs.
    """
    if runs is None:
        return attention_interface(module, query, key, value, attention_mask, **kwargs)
    # Left out of a compiled model, whose code would fit one number and length of clips. Outside of one, the attention
    # function may compile itself, as FlexAttention does.
    within_clips = attend_uncompiled if torch.compiler.is_compiling() else attend_within_clips
    return within_clips(attention_interface, module, query, key, value, runs, **kwargs), None


def attend_within_clips(
    attention_interface: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    runs: TokenRuns,
    **kwargs: Any,
) -> torch.Tensor:
    """
    The context of `attend` for a packed sequence. FlashAttention takes all of it and the places of the clips. The
    others take one clip after another: on a CPU this is faster than to pad clips, or to join those of equal length.
    """
    if is_flash_attention_requested(module.config):
        longest = int(runs.clip_lengths.max())
        kwargs |= {"cu_seq_lens_q": runs.cu_seq_lens, "cu_seq_lens_k": runs.cu_seq_lens}
        kwargs |= {"max_length_q": longest, "max_length_k": longest}
        return attention_interface(module, query, key, value, None, **kwargs)[0]
    clip_lengths = runs.clip_lengths.tolist()
    clips = zip(*(states.split(clip_lengths, dim=2) for states in (query, key, value)), strict=True)
    return torch.cat([attention_interface(module, *clip, None, **kwargs)[0] for clip in clips], dim=1)


attend_uncompiled = torch.compiler.disable(attend_within_clips)
