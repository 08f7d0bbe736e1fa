"""PyTorch VideoEncoder: classes of frames by any video encoder of Transformers that gives tokens by time."""

from typing import Any

import torch
from torch import nn
from transformers import AutoModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..shared_video import VideoPreTrainedModel, check_frame_mask, frame_loss, pool_frames, take_tokens
from .configuration_video_encoder import PREFIX_TOKENS, VideoEncoderConfig


class VideoEncoderForFrameClassification(VideoPreTrainedModel):
    """
    A video encoder of Transformers with a linear classifier on the feature of each token frame: `config.frame_pooling`
    of its patches after the final norm. Parts of the encoder that only other heads use are left out.
    """

    config: VideoEncoderConfig
    base_model_prefix = "video_encoder"
    input_modalities = ("video",)
    # There is no attention outside the encoder. Other kernels are set for it alone.
    _supports_sdpa = True

    def __init__(self, config: VideoEncoderConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.video_encoder = AutoModel.from_config(config.encoder_config)
        # `from_config` copies it.
        config.encoder_config = self.video_encoder.config
        if hasattr(self.video_encoder, "pooler"):
            self.video_encoder.pooler = None
        if hasattr(self.video_encoder, "predictor"):
            self.video_encoder.predictor = None
            self.video_encoder.register_forward_pre_hook(_without_predictor, with_kwargs=True)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.encoder_config.hidden_size, config.num_labels)
        self.loss_function = frame_loss
        self.post_init()

    def layer_groups(self) -> list[nn.Module]:
        """
        The embeddings and the layers in their order, for learning rates that decay with depth. All other parameters
        count as part of the head.
        """
        modules = dict(self.video_encoder.named_modules())
        embeddings = [module for name, module in modules.items() if name.endswith("embeddings")]
        layers = [module for module in modules.values() if isinstance(module, GradientCheckpointingLayer)]
        return [nn.ModuleList(embeddings), *layers]

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
                Normalised frames of the size of the configuration, at most `config.num_frames`. The encoder knows
                clips of one length alone: shorter ones go on with their last frame. `t = num_frames //
                config.tubelet_size` token frames have logits.
            labels (`torch.Tensor`, *optional*):
                Classes `(batch_size, t)`, int64, or, for several at once, targets in [0, 1] `(batch_size, t,
                num_labels)`, float; -100 where they are unknown. `config.problem_type` says which; if it is not set,
                the first labels decide by their dtype.
            attention_mask (`torch.Tensor` of shape `(batch_size, t)`, *optional*):
                1 or true for token frames, 0 or false for padding behind them, which the last frame replaces.
            kwargs: other arguments of the encoder.

        Returns:
            [`TokenClassifierOutput`] with `logits` of shape `(batch_size, t, num_labels)`.

        Raises:
            ValueError: for clips that are longer or of another size, and for labels or masks of another shape.
        """
        num_token_frames, t = (n // self.config.tubelet_size for n in (pixel_values.shape[1], self.config.num_frames))
        if attention_mask is None:
            attention_mask = pixel_values.new_ones(pixel_values.shape[0], num_token_frames)
        check_frame_mask(attention_mask, pixel_values.shape[0], num_token_frames, None)
        inputs = {self.video_encoder.main_input_name: self._fill_clips(pixel_values, attention_mask)}
        outputs: BaseModelOutput = self.video_encoder(**inputs, **{**kwargs, "return_dict": True})
        tokens = outputs.last_hidden_state[:, PREFIX_TOKENS[self.config.encoder_config.model_type] :]
        if self.config.encoder_config.model_type == "timesformer":
            # Its tokens are those of a patch at all times, then those of the next patch.
            tokens = tokens.unflatten(1, (-1, t)).transpose(1, 2).flatten(1, 2)
        grid = (t, tokens.shape[1] // t, 1)
        features = pool_frames(tokens, grid, self.config)[:, :num_token_frames]
        logits = self.classifier(self.dropout(features))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, attention_mask=attention_mask, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _fill_clips(self, pixel_values: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Clips of `config.num_frames` frames, in which the last frame takes the place of padding and missing ones."""
        size, given = self.config.image_size, pixel_values.shape[1]
        height, width = (size, size) if isinstance(size, int) else size
        least, most = self.config.tubelet_size, self.config.num_frames
        if not least <= given <= most or pixel_values.shape[-2:] != (height, width):
            raise ValueError(
                f"{type(self.video_encoder).__name__} takes {least} to {most} frames of {height} x {width} pixels, "
                f"got {given} of {pixel_values.shape[-2]} x {pixel_values.shape[-1]}: set `num_frames` and "
                "`crop_size` of the processor to those of the model."
            )
        last = (attention_mask.bool().sum(1, keepdim=True) * least - 1).clamp(min=0)
        places = torch.arange(most, device=last.device).minimum(last)
        return take_tokens(pixel_values.flatten(2), places).unflatten(2, pixel_values.shape[2:])


def _without_predictor(encoder: nn.Module, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return inputs, {**options, "skip_predictor": True}


__all__ = ["VideoEncoderForFrameClassification"]
