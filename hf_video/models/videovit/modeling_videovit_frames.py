"""VideoViT with a classifier of every frame."""

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput, TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..shared_video import frame_loss, pool_frames, token_grid
from .configuration_videovit import VideoViTConfig
from .modeling_videovit import VideoViTModel, VideoViTPreTrainedModel


class VideoViTForFrameClassification(VideoViTPreTrainedModel):
    """
    VideoViT with a linear classifier on the feature of each token frame: `config.frame_pooling` of its patches after
    the final norm.
    """

    _supports_views = False

    def __init__(self, config: VideoViTConfig):
        config = config.with_final_norm()
        super().__init__(config)
        self.num_labels = config.num_labels
        self.videovit = VideoViTModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.loss_function = frame_loss
        self.post_init()

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
            kwargs: other arguments of [`VideoViTModel`]. Positions are not interpolated over time:
                `interpolate_pos_encoding="space"` is the default.

        Returns:
            [`TokenClassifierOutput`] with `logits` of shape `(batch_size, t, num_labels)`.

        Raises:
            ValueError: for more token frames than positions, and for labels or masks of another shape.
        """
        grid = token_grid(pixel_values, self.config)
        kwargs = {"interpolate_pos_encoding": "space", **kwargs, "return_dict": True}
        outputs: BaseModelOutput = self.videovit(pixel_values, frame_mask=attention_mask, **kwargs)
        logits = self.classifier(self.dropout(pool_frames(outputs.last_hidden_state, grid, self.config)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, attention_mask=attention_mask, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


__all__ = ["VideoViTForFrameClassification"]
