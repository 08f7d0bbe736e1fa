"""What several families share: views, losses, frames, tokens and the base classes of their models."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedConfig
from transformers.loss.loss_utils import ForSequenceClassificationLoss
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

UNKNOWN = -100
# MS-TCN, section 3.3: differences of log-probabilities count up to 4.
MOST_DIFFERENCE = 4.0


class VideoPreTrainedModel(PreTrainedModel):
    """What the base classes of all families share."""

    main_input_name = "pixel_values"
    supports_gradient_checkpointing = True
    _supports_views = False

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As in Transformers. Raises `ValueError` if torchao quantised the model and could not read it back."""
        outside = [name for name, _ in self.named_parameters(recurse=False)]
        if outside and getattr(self, "quantization_method", None) == "torchao":
            raise ValueError(
                f"torchao cannot read back {outside[0]}, a tensor outside of all submodules: save the model before it "
                "is quantised, and pass `quantization_config` whenever it is loaded."
            )
        super().save_pretrained(*args, **kwargs)

    def _adjust_missing_and_unexpected_keys(self, loading_info: Any) -> None:
        """As in Transformers. Raises `OSError` for a model that was saved before the first release."""
        # Those of queries, keys and values in VideoViT, and of the time steps in VideoMamba.
        former = (".attention.qkv.weight", "_scan.dt_proj.bias")
        if found := [name for name in loading_info.unexpected_keys if name.endswith(former)]:
            raise OSError(
                f"{min(found)} is of a model from before the first release, whose weights were others: convert the "
                "original checkpoint anew, or train the model again."
            )
        super()._adjust_missing_and_unexpected_keys(loading_info)


class LayeredPreTrainedModel(VideoPreTrainedModel):
    """The base class of a family whose base model has `embeddings` and `layers`."""

    def _set_gradient_checkpointing(self, enable: bool = True, **kwargs: Any) -> None:
        """Switch recomputation on for the layers in the configuration, unless `every_n_layers` chooses; or off."""
        super()._set_gradient_checkpointing(enable, **kwargs)
        if enable and kwargs.get("every_n_layers", 1) == 1:
            for number, layer in enumerate(self.base_model.layers):
                layer.gradient_checkpointing = number in self.config.recomputed_layers

    def layer_groups(self) -> list[nn.Module]:
        """
        The embeddings and the layers in their order, for learning rates that decay with depth. All other parameters
        count as part of the head.
        """
        return [self.base_model.embeddings, *self.base_model.layers]


class CompositePreTrainedModel(VideoPreTrainedModel):
    """The base class of a family that is built around an encoder of videos."""

    _tower = "vision_model"

    def _set_gradient_checkpointing(self, enable: bool = True, **kwargs: Any) -> None:
        """Switch gradient checkpointing on or off. The vision tower goes last, because it may choose its layers."""
        super()._set_gradient_checkpointing(enable, **kwargs)
        tower = getattr(self.base_model, self._tower, None)
        if tower is not None and tower.supports_gradient_checkpointing:
            tower._set_gradient_checkpointing(enable, **kwargs)


def token_grid(pixel_values: torch.Tensor, config: Any) -> tuple[int, int, int]:
    """
    Token grid (t, h, w) of an input.

    Args:
        pixel_values: `(batch_size, num_frames, num_channels, height, width)`.
        config: a configuration with `num_channels`, `patch_shape` and `token_grid_of`.

    Raises:
        ValueError: for another rank or number of channels, no clip, a dtype that is not floating point, or an input
            smaller than a patch.
    """
    if not pixel_values.is_floating_point():
        raise ValueError(
            f"`pixel_values` must be floating-point numbers, got {pixel_values.dtype}: prepare frames with the "
            "processor of the model."
        )
    if pixel_values.ndim != 5 or pixel_values.shape[2] != config.num_channels:
        raise ValueError(
            f"`pixel_values` must be (batch_size, num_frames, num_channels={config.num_channels}, height, width), got "
            f"{tuple(pixel_values.shape)}."
        )
    if pixel_values.shape[0] == 0:
        raise ValueError(f"`pixel_values` must have at least one clip, got {tuple(pixel_values.shape)}.")
    num_frames, _, height, width = pixel_values.shape[1:]
    grid = config.token_grid_of(num_frames, height, width)
    if min(grid) < 1:
        raise ValueError(
            f"{num_frames} frames of {height} x {width} pixels hold no patch of {config.patch_shape} (frames, height, "
            "width)."
        )
    return grid


def select_tokens(tokens: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """
    The selected tokens of every clip, in raster order, `(batch_size, num_selected, hidden_size)`. They are counted,
    for which their device is waited for.

    Args:
        tokens: `(batch_size or 1, sequence_length, hidden_size)`.
        selected: `(batch_size, sequence_length)`, bool, with as many true entries in every row.
    """
    return take_tokens(tokens, places_of(selected, int(selected[0].sum())))


def count_masked(mask: torch.Tensor, name: str, batch_size: int, num_patches: int, known: int | None) -> int:
    """
    The number of true entries in every row of a mask, bool `(batch_size, num_patches)`: `known`, or read from the
    mask, for which its device is waited for. Raises `ValueError` for another shape or dtype, or unequal rows.
    """
    if mask.dtype != torch.bool or mask.shape != (batch_size, num_patches):
        raise ValueError(
            f"`{name}` must be a bool tensor of shape (batch_size, num_patches) = ({batch_size}, {num_patches}), "
            f"without the class token, got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    if known is not None:
        return known
    counts = mask.sum(dim=1).tolist()
    if len(set(counts)) > 1:
        raise ValueError(
            f"Every clip of a batch must have as many true entries in `{name}`, got {counts}: draw the masks with an "
            "exact count."
        )
    return counts[0]


def visible_places(
    mask: torch.Tensor, batch_size: int, num_patches: int, num_masked: int | None = None
) -> torch.Tensor:
    """The places `(batch_size, num_visible)` of the patches that `bool_masked_pos` does not hide. Raises `ValueError`
    as [`count_masked`] does, and if it hides all."""
    num_masked = count_masked(mask, "bool_masked_pos", batch_size, num_patches, num_masked)
    if num_masked == num_patches:
        raise ValueError("`bool_masked_pos` hides every patch: leave at least one to encode.")
    return places_of(~mask, num_patches - num_masked)


def places_of(selected: torch.Tensor, num_selected: int) -> torch.Tensor:
    """The indices `(batch_size, num_selected)` of the true entries in every row, ascending."""
    return (~selected).int().argsort(dim=1, stable=True)[:, :num_selected]


def take_tokens(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The tokens of `(batch_size or 1, sequence_length, hidden_size)` at indices `(batch_size, num_selected)`."""
    tokens = tokens.expand(places.shape[0], -1, -1)
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[-1]))


def sinusoidal_positions(num_positions: int, hidden_size: int) -> torch.Tensor:
    """
    Table `(1, num_positions, hidden_size)` with sines on even and cosines on odd channels. It is float32, rounded from
    double precision (VideoMAE, `get_sinusoid_encoding_table`; "Attention Is All You Need", section 3.5).
    """
    channels = torch.arange(hidden_size, dtype=torch.float64, device="cpu")
    wavelengths = 10000 ** (2 * (channels // 2) / hidden_size)
    angles = torch.arange(num_positions, dtype=torch.float64, device="cpu")[:, None] / wavelengths
    table = torch.where(channels % 2 == 0, angles.sin(), angles.cos())
    return table.float()[None]


class VideoDropPath(nn.Module):
    """Stochastic depth (https://arxiv.org/abs/1603.09382): in training, some clips skip a residual branch."""

    def __init__(self, drop_prob: float):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, branch: torch.Tensor) -> torch.Tensor:
        if self.drop_prob == 0.0 or not self.training:
            return branch
        keep_prob = 1 - self.drop_prob
        kept = branch.new_empty(branch.shape[0], *[1] * (branch.ndim - 1)).bernoulli_(keep_prob)
        return branch * (kept / keep_prob)

    def extra_repr(self) -> str:
        return f"drop_prob={self.drop_prob}"


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = (query * scaling) @ key.transpose(2, 3)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def average_views(logits: torch.Tensor, pixel_values: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """
    Turn logits of views `(batch_size * num_views, num_labels)` into those of videos `(batch_size, num_labels)`, at
    least float32, if the pixels have an axis of views. The softmax of the result is the mean of the views' softmaxes,
    the published protocol of VideoMAE and VideoMamba; in multi-label classification the same holds for the sigmoid.
    The values of a regression are averaged, and so are features if there are no labels.
    """
    if pixel_values.ndim != 6:
        return logits
    views = logits.to(torch.promote_types(logits.dtype, torch.float32)).unflatten(0, (pixel_values.shape[0], -1))
    if config.problem_type == "multi_label_classification":
        # Log-odds of the mean probability. They come from logarithms, because floats near one are too coarse.
        return F.logsigmoid(views).logsumexp(1) - F.logsigmoid(-views).logsumexp(1)
    if config.problem_type == "regression" or config.num_labels < 2:
        return views.mean(1)
    return views.log_softmax(-1).logsumexp(1) - math.log(views.shape[1])


def classification_loss(
    labels: torch.Tensor,
    logits: torch.Tensor,
    config: PreTrainedConfig,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """
    The mean loss of Transformers' classifiers, for batches that `Trainer` accumulates. `Trainer` adds up the losses of
    the parts of such a batch, so each part divides by `num_items_in_batch`, the number of labels in the whole.
    Transformers does so for single labels alone. A `problem_type` that is not set follows from the labels.
    """
    loss = ForSequenceClassificationLoss(labels, logits, config, num_items_in_batch=num_items_in_batch)
    if num_items_in_batch is None or config.problem_type == "single_label_classification":
        return loss
    whole = torch.as_tensor(num_items_in_batch, device=loss.device)
    return loss * (labels.numel() / whole)


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


def mask_of_tokens(frame_mask: torch.Tensor, grid: tuple[int, int, int], num_prefix_tokens: int) -> torch.Tensor:
    """The mask of token frames `(batch_size, t)` for tokens: bool, `(batch_size, num_prefix_tokens + t * h * w)`."""
    patches = frame_mask.bool().repeat_interleave(math.prod(grid[1:]), dim=1)
    return F.pad(patches, (num_prefix_tokens, 0), value=True)


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
