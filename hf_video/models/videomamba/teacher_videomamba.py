"""The teacher of VideoMamba's pre-training: a frozen image model that looks at every frame."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModel, PreTrainedModel

from .configuration_videomamba import VideoMambaConfig


class VideoMambaTeacher(nn.Module):
    """
    A vision transformer of Transformers with a class token. Of a two-tower model such as CLIP it takes the vision
    tower and, where there is one, its projection.

    Args:
        model: loaded with `attn_implementation="eager"`, so that it can tell its attention.

    Raises:
        ValueError: if the model does not cut images into patches.
    """

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.vision_model = getattr(model, "vision_model", model)
        self.projection = getattr(model, "visual_projection", None)
        if not hasattr(self.vision_model.config, "patch_size"):
            raise ValueError(f"A teacher must be a vision transformer of Transformers, got {type(model).__name__}.")
        self.eval().requires_grad_(False)

    @classmethod
    def from_pretrained(cls, model_id: str, **kwargs: Any) -> "VideoMambaTeacher":
        """Load a model by its id on the Hub or its folder; `kwargs` go to its `from_pretrained`."""
        return cls(AutoModel.from_pretrained(model_id, attn_implementation="eager", **kwargs))

    @property
    def num_features(self) -> int:
        """Channels of the features."""
        return self.vision_model.config.hidden_size if self.projection is None else self.projection.out_features

    @torch.no_grad()
    def forward(
        self, pixel_values: torch.Tensor, student: VideoMambaConfig, num_layers: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            pixel_values: `(batch_size, num_frames, num_channels, height, width)`, normalised as for the student. Of a
                tubelet the teacher sees the middle frame, at the size that gives it the student's patches, and
                without the pixels at the border that fill none.
            student: tells the size of its patches and the steps between them, with these its token grid (t, h, w), and
                whether features have unit length.
            num_layers: how many of the last layers to take features of.

        Returns:
            Features `(batch_size, num_layers, 1 + t * h * w, num_features)`, of the class token, which is the mean
            over the frames, and the patches, layers in rising order; and the attention that the class token pays to
            the patches of its frame in the last layer, mean over the heads, `(batch_size, t, h * w)`.

        Raises:
            ValueError: if the model does not give a class token, a token for each patch, and its attention.
        """
        self.to(pixel_values.device)
        num_frames, _, height, width = pixel_values.shape[1:]
        t, h, w = student.token_grid_of(num_frames, height, width)
        num_patches, config = h * w, self.vision_model.config
        frames = pixel_values[:, student.tubelet_size // 2 :: student.tubelet_size][:, :t].flatten(0, 1)
        # A patch of the teacher reaches halfway to the student's next one on either side.
        sizes = zip((-2, -1), (h, w), student.patch_shape[1:], student.patch_steps[1:], strict=True)
        for dim, count, patch, step in sizes:
            start = max(patch - step, 0) // 2
            frames = frames.narrow(dim, start, min(count * step, frames.shape[dim] - start))
        size = (h * config.patch_size, w * config.patch_size)
        if frames.shape[-2:] != size:
            frames = F.interpolate(frames, size=size, mode="bicubic", align_corners=False)
        resize = {"interpolate_pos_encoding": True} if size != (config.image_size, config.image_size) else {}
        outputs = self.vision_model(
            frames.to(self.vision_model.dtype), output_hidden_states=True, output_attentions=True, **resize
        )
        if not outputs.attentions or outputs.hidden_states[-1].shape[1] <= num_patches:
            raise ValueError(
                f"The teacher {type(self.vision_model).__name__} must have a class token and one for each of the "
                f'{h} x {w} patches of a frame, and tell its attention: load it with `attn_implementation="eager"`.'
            )
        features = []
        for tokens in outputs.hidden_states[-num_layers:]:
            tokens = (tokens if self.projection is None else self.projection(tokens)).unflatten(0, (-1, t))
            class_token = tokens[:, :, 0].mean(dim=1, keepdim=True)
            features.append(torch.cat([class_token, tokens[:, :, -num_patches:].flatten(1, 2)], dim=1))
        attention = outputs.attentions[-1][:, :, 0, -num_patches:].mean(dim=1).unflatten(0, (-1, t))
        targets = torch.stack(features, dim=1).float()
        return F.normalize(targets, dim=-1) if student.normalize_features else targets, attention
