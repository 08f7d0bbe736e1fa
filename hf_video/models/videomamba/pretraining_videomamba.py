"""Masked pre-training of VideoMamba: its masks, the teacher that computes its targets, and its losses."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from transformers import PreTrainedModel

from ..shared_video import select_tokens
from .configuration_videomamba import VideoMambaConfig


def visible_targets(targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """
    The features to align, of the tokens that the student sees.

    Args:
        targets: `(batch_size, num_layers, 1 + num_patches, num_features)`, the class token first.
        mask: `(batch_size, num_patches)`, bool, true = hidden, as many in every row.

    Returns:
        `(batch_size, num_layers, 1 + num_visible, num_features)`.
    """
    visible = F.pad(~mask, (1, 0), value=True)
    return torch.stack([select_tokens(layer, visible) for layer in targets.unbind(1)], dim=1)


def draw_mask(importance: torch.Tensor, mask_ratio: float, generator: torch.Generator | None = None) -> torch.Tensor:
    """
    Draw masks that hide the same number of patches in every frame. Important patches stay visible more often.

    The visible patches of a frame are drawn without replacement, in proportion to their importance. With the attention
    of a teacher's class token as importance it is VideoMamba's mask type "attention", which is UMT's
    (https://arxiv.org/abs/2303.16058). Equal importance gives random masks.

    Args:
        importance: `(batch_size, t, h * w)`, above 0.
        mask_ratio: share of the patches of a frame to hide; their number is rounded down.
        generator: source of the draws.

    Returns:
        `(batch_size, t * h * w)`, bool, true = hidden, with `t * int(mask_ratio * h * w)` true entries in every row.

    Raises:
        ValueError: if the ratio hides no patch of a frame, or all of them.
    """
    batch_size, num_token_frames, num_patches = importance.shape
    num_masked = int(mask_ratio * num_patches)
    if not 0 < num_masked < num_patches:
        raise ValueError(
            f"`mask_ratio`={mask_ratio} hides {num_masked} of {num_patches} patches of a frame: hide some, and leave "
            "some."
        )
    visible = torch.multinomial(importance.flatten(0, 1).float(), num_patches - num_masked, generator=generator)
    mask = torch.ones(batch_size * num_token_frames, num_patches, dtype=torch.bool, device=importance.device)
    return mask.scatter(1, visible, False).view(batch_size, -1)


def check_mask(mask: torch.Tensor, batch_size: int, num_patches: int) -> None:
    """
    Raise `ValueError` unless `mask` is bool `(batch_size, num_patches)`, true entries are as many in every row, and at
    least one entry is false.
    """
    if mask.dtype != torch.bool or mask.shape != (batch_size, num_patches):
        raise ValueError(
            f"`bool_masked_pos` must be a bool tensor of shape (batch_size, num_patches) = ({batch_size}, "
            f"{num_patches}), without the class token, got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    counts = mask.sum(dim=1)
    if (counts != counts[0]).any():
        raise ValueError(
            f"Every clip of a batch must have as many true entries in `bool_masked_pos`, got {counts.tolist()}: draw "
            "the masks with an exact count, as `draw_mask` does."
        )
    if counts[0] == num_patches:
        raise ValueError("`bool_masked_pos` hides every patch: leave at least one to encode.")


class VideoMambaTeacher:
    """
    A frozen vision transformer of Transformers with a class token. Of a model with two towers, such as CLIP, it is the
    vision tower with its projection, if there is one.

    Args:
        model: loaded with `attn_implementation="eager"`, which returns the attention.

    Raises:
        ValueError: if the model does not cut images into patches.
    """

    def __init__(self, model: PreTrainedModel):
        self.vision_model = getattr(model, "vision_model", model)
        self.projection = getattr(model, "visual_projection", nn.Identity())
        if not hasattr(self.vision_model.config, "patch_size"):
            raise ValueError(f"A teacher must be a vision transformer of Transformers, got {type(model).__name__}.")
        for module in (self.vision_model, self.projection):
            module.eval().requires_grad_(False)

    @property
    def num_features(self) -> int:
        """Channels of the features."""
        return getattr(self.projection, "out_features", self.vision_model.config.hidden_size)

    @torch.no_grad()
    def __call__(
        self, pixel_values: torch.Tensor, student: VideoMambaConfig, num_layers: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            pixel_values: `(batch_size, num_frames, num_channels, height, width)`, normalised as for the student. The
                teacher sees the middle frame of each tubelet. Pixels at the border that fill no patch are cut off, and
                frames are resized so that the teacher has the student's patches.
            student: configuration of the student. It gives the token grid (t, h, w), from the size of the patches and
                the steps between them, and `normalize_features`.
            num_layers: number of the last layers whose features are returned.

        Returns:
            Features `(batch_size, num_layers, 1 + t * h * w, num_features)`, float32, layers in rising order: those of
            the class token, averaged over the frames, then those of the patches. And the attention that the class
            token pays to the patches of its frame in the last layer, mean over the heads, `(batch_size, t, h * w)`.

        Raises:
            ValueError: if the model does not return a class token, a token for each patch, and its attention.
        """
        self.vision_model.to(pixel_values.device)
        self.projection.to(pixel_values.device)
        num_frames, _, height, width = pixel_values.shape[1:]
        t, h, w = student.token_grid_of(num_frames, height, width)
        num_patches, config = h * w, self.vision_model.config
        frames = pixel_values[:, student.tubelet_size // 2 :: student.tubelet_size][:, :t].flatten(0, 1)
        # The teacher's patches touch each other. Each has the centre of one of the student's, which may overlap.
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
                f"The teacher {type(self.vision_model).__name__} must have a class token and a token for each of the "
                f'{h} x {w} patches of a frame, and return its attention: load it with `attn_implementation="eager"`.'
            )
        features = []
        for tokens in outputs.hidden_states[-num_layers:]:
            tokens = rearrange(self.projection(tokens), "(b t) n c -> b t n c", t=t)
            class_token = tokens[:, :, 0].mean(dim=1, keepdim=True)
            features.append(torch.cat([class_token, tokens[:, :, -num_patches:].flatten(1, 2)], dim=1))
        attention = outputs.attentions[-1][:, :, 0, -num_patches:].mean(dim=1).unflatten(0, (-1, t))
        targets = torch.stack(features, dim=1).float()
        return F.normalize(targets, dim=-1) if student.normalize_features else targets, attention


def cosine_loss(features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean of 2 - 2 * cosine between features of unit length, which is their squared distance."""
    return (2 - 2 * (features * targets).sum(dim=-1)).mean()


# `clip_loss_type` of the original's `run_umt_pretraining.py`, which calls the first one "l2".
ALIGNMENT_LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cosine": cosine_loss,
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
}
