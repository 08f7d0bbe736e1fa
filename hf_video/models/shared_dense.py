"""Dense outputs of several families: classes of frames, with their losses, and feature maps."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from transformers import PreTrainedConfig
from transformers.backbone_utils import BackboneMixin, filter_output_hidden_states
from transformers.modeling_outputs import BackboneOutput, BaseModelOutput, TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .shared_video import VideoPreTrainedModel, token_grid

UNKNOWN = -100
# MS-TCN, section 3.3: differences of log-probabilities count up to 4.
MOST_DIFFERENCE = 4.0


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


class FrameClassifierMixin(VideoPreTrainedModel):
    """
    A linear classifier on the feature of each token frame: `config.frame_pooling` of its patches after the final norm.
    The model that it is mixed into has `base_model`, `dropout` and `classifier`.
    """

    _supports_views = False
    loss_function = staticmethod(frame_loss)
    _output_class = TokenClassifierOutput

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames. `t = num_frames // config.tubelet_size` token frames have logits.
            labels (`torch.Tensor`, *optional*):
                Classes `(batch_size, t)`, int64, or, for several at once, targets in [0, 1] `(batch_size, t,
                num_labels)`, float; -100 where they are unknown. `config.problem_type` says which; if it is not set,
                the first labels decide by their dtype.
            attention_mask (`torch.Tensor` of shape `(batch_size, t)`, *optional*):
                1 or true for token frames, 0 or false for padding behind them, which no token sees.
            kwargs: other arguments of the encoder. Positions are not interpolated over time:
                `interpolate_pos_encoding="space"` is the default. A VideoMamba may get a `state`: without one, a video
                begins and ends here.

        Returns:
            [`TokenClassifierOutput`] with `logits` of shape `(batch_size, t, num_labels)` and, if there was a `state`,
            the next one.

        Raises:
            ValueError: for more token frames than positions, for labels or masks of another shape, and for a state
                that does not fit or that this model cannot continue.
        """
        outputs, features = self.read_frames(pixel_values, attention_mask, **kwargs)
        logits = self.classifier(self.dropout(features))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, attention_mask=attention_mask, **kwargs)
        return self.classifier_output(outputs, logits, loss)

    def read_frames(
        self, pixel_values: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs: Any
    ) -> tuple[BaseModelOutput, torch.Tensor]:
        """The outputs of the encoder, and the features `(batch_size, t, hidden_size)` of the token frames."""
        grid = token_grid(pixel_values, self.config)
        kwargs = {"interpolate_pos_encoding": "space", **kwargs, "return_dict": True}
        outputs = self.base_model(pixel_values, frame_mask=attention_mask, **kwargs)
        return outputs, pool_frames(outputs.last_hidden_state, grid, self.config)


class VideoBackboneMixin(BackboneMixin):
    """The feature maps of the encoder `base_model`, for detection and other dense tasks."""

    @can_return_tuple
    @filter_output_hidden_states
    def forward(self, pixel_values: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> BackboneOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames of any size.
            kwargs: other arguments of the encoder.

        Returns:
            [`BackboneOutput`] with one of `feature_maps` for each stage in `config.out_features`, `(batch_size,
            hidden_size, t, h, w)`, after the final norm.
        """
        t, h, w = token_grid(pixel_values, self.config)
        outputs = self.base_model(pixel_values, return_dict=True, **kwargs)
        feature_maps = []
        for stage, hidden_states in zip(self.stage_names, outputs.hidden_states, strict=True):
            if stage in self.out_features:
                patches = self.base_model.norm_of(stage)(hidden_states)[:, -t * h * w :]
                feature_maps.append(rearrange(patches, "b (t h w) c -> b c t h w", t=t, h=h, w=w))
        return BackboneOutput(
            feature_maps=tuple(feature_maps),
            hidden_states=outputs.hidden_states,
            attentions=outputs.get("attentions"),
        )
