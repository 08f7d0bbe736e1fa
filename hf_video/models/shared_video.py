"""What several families share: base classes of their models, tokens, views and the loss of classes."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedConfig
from transformers.loss.loss_utils import ForSequenceClassificationLoss
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple


def average_views(logits: torch.Tensor, pixel_values: torch.Tensor | None, config: PreTrainedConfig) -> torch.Tensor:
    """
    Turn logits of views `(batch_size * num_views, num_labels)` into those of videos `(batch_size, num_labels)`, at
    least float32, if the pixels have an axis of views. The softmax of the result is the mean of the views' softmaxes,
    the published protocol of VideoMAE and VideoMamba; in multi-label classification the same holds for the sigmoid.
    The values of a regression are averaged, and so are features if there are no labels.
    """
    if pixel_values is None or pixel_values.ndim != 6:
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


class VideoPreTrainedModel(PreTrainedModel):
    """What the base classes of all families share."""

    main_input_name = "pixel_values"
    supports_gradient_checkpointing = True
    _supports_views = False
    _output_class: Any = None
    # Where a model that is built around an encoder of videos has it.
    _tower = "vision_model"

    def _set_gradient_checkpointing(self, enable: bool = True, **kwargs: Any) -> None:
        """Switch gradient checkpointing on or off. A tower goes last, because it may choose its layers."""
        super()._set_gradient_checkpointing(enable, **kwargs)
        tower = getattr(self.base_model, self._tower, None)
        if tower is not None and tower.supports_gradient_checkpointing:
            tower._set_gradient_checkpointing(enable, **kwargs)

    def classifier_output(self, outputs: Any, logits: torch.Tensor, loss: torch.Tensor | None) -> Any:
        """The output of a classifier around an encoder with `outputs`."""
        kept = ("hidden_states", "attentions", "cross_attentions", "state", "memory")
        others = {name: value for name in kept if (value := getattr(outputs, name, None)) is not None}
        return self._output_class(loss=loss, logits=logits, **others)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As in Transformers. Raises `ValueError` if torchao quantised the model and could not read it back."""
        outside = [name for name, _ in self.named_parameters(recurse=False)]
        if outside and getattr(self, "quantization_method", None) == "torchao":
            raise ValueError(
                f"torchao cannot read back {outside[0]}, a tensor outside of all submodules: save the model before it "
                "is quantised, and pass `quantization_config` whenever it is loaded."
            )
        super().save_pretrained(*args, **kwargs)


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

    def set_input_size(self, image_size: int | tuple[int, int] | None = None, num_frames: int | None = None) -> None:
        """
        Change the input size of the model for good. The configuration gets the new size, and the positions are resized
        once. Outputs are those that `interpolate_pos_encoding` gives at run time.

        Args:
            image_size: height and width in pixels; unchanged by default.
            num_frames: number of frames; unchanged by default.

        Raises:
            ValueError: if the new size holds no patch, or the positions of this model cannot be resized to it. The
                model stays unchanged.
        """
        config = self.config
        size = {"image_size": image_size or config.image_size, "num_frames": num_frames or config.num_frames}
        self._resize_positions(type(config)(**{**config.to_dict(), **size}).token_grid)
        config.image_size, config.num_frames = size["image_size"], size["num_frames"]


class VideoClassifierMixin(VideoPreTrainedModel):
    """
    A linear classifier on the feature of a clip. The model that it is mixed into has `dropout`, `classifier` and
    `read_clips(clips, num_views, **kwargs)`, which gives the outputs of the encoder, and the features `(batch_size,
    hidden_size)`.
    """

    _output_class = ImageClassifierOutput
    loss_function = staticmethod(classification_loss)

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames. For several views of a video (clips and crops) they are `(batch_size, num_views,
                num_frames, num_channels, height, width)`, and `average_views` joins the logits.
            labels (`torch.Tensor`, *optional*):
                Class indices `(batch_size,)`, int64, for the cross-entropy; targets in [0, 1] `(batch_size,
                num_labels)`, float, for multi-label classification; values for regression. `config.problem_type`
                says which; if it is not set, the first labels decide by their dtype.
            kwargs: other arguments of the encoder.

        Returns:
            [`ImageClassifierOutput`] with `logits` of shape `(batch_size, num_labels)`; that of a VideoMamba also has
            the next `state`, if there was one.
        """
        clips, num_views = pixel_values, 1
        if pixel_values is not None and pixel_values.ndim == 6:
            clips, num_views = pixel_values.flatten(0, 1), pixel_values.shape[1]
        outputs, features = self.read_clips(clips, num_views, **kwargs)
        logits = average_views(self.classifier(self.dropout(features)), pixel_values, self.config)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return self.classifier_output(outputs, logits, loss)


class ImageClassifierMixin(VideoPreTrainedModel):
    """A classifier of single images, as that of videos which it is mixed into: each is a clip of one frame."""

    def __init__(self, config: Any):
        if config.tubelet_size != 1:
            raise ValueError(f"Image classification needs `tubelet_size=1`, got {config.tubelet_size}.")
        super().__init__(config)

    def forward(
        self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> ImageClassifierOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_channels, height, width)`):
                Normalised images.
            labels (`torch.Tensor`, *optional*):
                As for the classifier of videos.
            kwargs: other arguments of the encoder.

        Returns:
            [`ImageClassifierOutput`] with `logits` of shape `(batch_size, num_labels)`.
        """
        if pixel_values.ndim != 4:
            raise ValueError(
                f"`pixel_values` must be (batch_size, num_channels, height, width), got {tuple(pixel_values.shape)}."
            )
        return super().forward(pixel_values[:, None], labels, **kwargs)


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
