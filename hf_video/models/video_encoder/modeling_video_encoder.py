"""PyTorch VideoEncoder: classes of frames by any video encoder of Transformers that gives tokens by time."""

from typing import Any

import torch
from torch import nn
from transformers import AutoModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from ..shared_dense import FrameClassifierMixin, pool_frames
from ..shared_video import check_frame_mask, take_tokens
from .configuration_video_encoder import PREFIX_TOKENS, VideoEncoderConfig


class VideoEncoderForFrameClassification(FrameClassifierMixin):
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

    def read_frames(
        self, pixel_values: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs: Any
    ) -> tuple[BaseModelOutput, torch.Tensor]:
        """
        As in [`FrameClassifierMixin`]. The encoder knows clips of one length alone: those of fewer frames than
        `config.num_frames` go on with their last frame, which also replaces padding. Raises `ValueError` for clips
        that are longer or of another size.
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
        return outputs, pool_frames(tokens, grid, self.config)[:, :num_token_frames]

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
