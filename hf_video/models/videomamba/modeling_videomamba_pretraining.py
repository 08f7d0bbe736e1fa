"""PyTorch VideoMamba that is pre-trained: masked feature alignment with an image model."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from transformers import AutoModel
from transformers import initialization as init
from transformers.backbone_utils import filter_output_hidden_states
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..shared_video import places_of, sinusoidal_positions, take_tokens, token_grid
from .configuration_videomamba import VideoMambaConfig
from .modeling_videomamba import TokenGrid, VideoMambaModel, VideoMambaOutput, VideoMambaPreTrainedModel


def cosine_loss(features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean of 2 - 2 * cosine between features of unit length, which is their squared distance."""
    return (2 - 2 * (features * targets).sum(dim=-1)).mean()


# `clip_loss_type` of the original's `run_umt_pretraining.py`, which calls the first one "l2".
ALIGNMENT_LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cosine": cosine_loss,
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
}


@dataclass
class VideoMambaForPreTrainingOutput(ModelOutput):
    """
    Output of [`VideoMambaForPreTraining`].

    Args:
        loss (`torch.FloatTensor` of shape `(1,)`):
            The loss `config.alignment_loss` between `logits` and the targets, by default the mean of 2 - 2 * cosine.
        logits (`torch.FloatTensor` of shape `(batch_size, num_aligned_layers, num_visible_tokens, projection_dim)`):
            Features of the visible tokens, the class token first. They have unit length if
            `config.normalize_features`. Layers are in rising order.
        mask (`torch.FloatTensor` of shape `(batch_size, num_patches)`):
            The mask that was used: 1 for hidden patches, 0 for visible ones.
        hidden_states (`tuple[torch.FloatTensor]`, *optional*):
            The residual stream over the visible tokens, before the first and after every block.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None


def select_tokens(tokens: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """
    The selected tokens of every clip, in raster order, `(batch_size, num_selected, hidden_size)`. They are counted,
    for which their device is waited for.

    Args:
        tokens: `(batch_size or 1, sequence_length, hidden_size)`.
        selected: `(batch_size, sequence_length)`, bool, with as many true entries in every row.
    """
    return take_tokens(tokens, places_of(selected, int(selected[0].sum())))


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


class VideoMambaAlignmentHead(nn.Module):
    """Projects the tokens of one layer to features. They have unit length if `config.normalize_features`."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__()
        self.normalize = config.normalize_features
        self.head = nn.Linear(config.hidden_size, config.projection_dim)
        self.norm = nn.LayerNorm(config.projection_dim, eps=1e-5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        features = self.norm(self.head(tokens.to(self.head.weight.dtype)))
        return F.normalize(features, dim=-1) if self.normalize else features


class VideoMambaForPreTraining(VideoMambaPreTrainedModel):
    """
    Masked feature alignment (https://arxiv.org/abs/2403.06977, after UMT, https://arxiv.org/abs/2303.16058).
    The encoder sees few patches. Small heads map the tokens of its last layers to the features that a teacher has for
    the same places. Targets are `labels`, or come from the teacher of `set_teacher`.
    """

    # For Trainer: the loss is the mean of a call.
    accepts_loss_kwargs = False
    position_embeddings: torch.Tensor

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        self.videomamba = VideoMambaModel(config)
        config.check_layers()
        self.decoder = nn.ModuleList([VideoMambaAlignmentHead(config) for _ in range(config.num_aligned_layers)])
        self.register_buffer("position_embeddings", self.position_table(config.token_grid), persistent=False)
        # It is no `nn.Module`, so it is neither trained nor saved with this model.
        self.teacher: VideoMambaTeacher | None = None
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            init.copy_(self.position_embeddings, self.position_table(self.config.token_grid))

    def position_table(self, grid: TokenGrid) -> torch.Tensor:
        """Table that is added to all tokens before the heads, the class token's row first."""
        return sinusoidal_positions(1 + math.prod(grid), self.config.hidden_size)

    def _resize_positions(self, grid: TokenGrid) -> None:
        """The heads get the table of the new size as well."""
        super()._resize_positions(grid)
        self.position_embeddings = self.position_table(grid).to(self.position_embeddings.device)

    def set_teacher(self, teacher: str | PreTrainedModel, **kwargs: Any) -> None:
        """
        Compute targets with a frozen image model. It is not saved with this model.

        Args:
            teacher: a vision transformer of Transformers with a class token, or its id on the Hub. The released models
                were aligned with `"openai/clip-vit-base-patch16"`.
            kwargs: options of the teacher's `from_pretrained`, if it is an id.

        Raises:
            ValueError: if the teacher is not a vision transformer, or if its features do not have
                `config.projection_dim` channels.
        """
        if isinstance(teacher, str):
            # The masks are drawn by the attention, which only the eager implementation returns.
            teacher = AutoModel.from_pretrained(teacher, attn_implementation="eager", **kwargs)
        loaded = VideoMambaTeacher(teacher)
        if loaded.num_features != self.config.projection_dim:
            raise ValueError(
                f"The teacher's features have {loaded.num_features} channels, `config.projection_dim` is "
                f"{self.config.projection_dim}: set it to {loaded.num_features}."
            )
        self.teacher = loaded

    def draw_masks(
        self,
        pixel_values: torch.Tensor,
        generators: list[torch.Generator],
        mask_type: str | None = None,
        decoder_mask_ratio: float = 0.0,
        mask_ratio: float | None = None,
    ) -> dict[str, torch.Tensor]:
        """
        Arguments for `forward`: masks, each clip's from a generator of its own, and targets.

        Args:
            pixel_values: `(batch_size, num_frames, num_channels, height, width)`.
            generators: one for each clip, on the CPU.
            mask_type: `"attention"`, the default, hides least where the teacher looks; `"tube"` hides the same places
                of all frames, `"random"` any patches of the clip.
            decoder_mask_ratio: 0, as there is no decoder.
            mask_ratio: share of patches to hide, by default `config.mask_ratio`.

        Raises:
            ValueError: if there is no teacher, for another mask type or a `decoder_mask_ratio`, or for a ratio that
                hides nothing or everything.
        """
        if decoder_mask_ratio:
            raise ValueError(f"decoder_mask_ratio is {decoder_mask_ratio}, and a VideoMamba has no decoder.")
        if self.teacher is None:
            raise ValueError(
                "A VideoMamba learns from a teacher, an image model such as CLIP: name one, with `set_teacher` or "
                "--teacher."
            )
        if mask_type not in (None, "attention", "tube", "random"):
            raise ValueError(f"mask_type is {mask_type!r}; attention, tube or random is expected.")
        targets, attention = self.teacher(pixel_values, self.config, self.config.num_aligned_layers)
        importance = attention.cpu()
        if mask_type == "tube":
            importance = torch.ones_like(importance[:, :1])
        elif mask_type == "random":
            importance = torch.ones_like(importance).flatten(1)[:, None]
        ratio = self.config.mask_ratio if mask_ratio is None else mask_ratio
        pairs = zip(importance, generators, strict=True)
        mask = torch.cat([draw_mask(each[None], ratio, generator) for each, generator in pairs])
        mask = mask.to(pixel_values.device)
        if mask_type == "tube":
            mask = mask.repeat(1, attention.shape[1])
        return {"bool_masked_pos": mask, "labels": visible_targets(targets, mask)}

    def aligned_features(self, hidden_states: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Tokens `(batch_size, num_visible_tokens, hidden_size)` of each layer to align, layers in rising order."""
        features = [self.videomamba.norm_f(hidden_states[layer + 1]) for layer in self.config.aligned_layers]
        if self.config.last_aligned_feature != "normalized":
            # The last aligned layer is the last layer. What enters it comes before what leaves it.
            features[-1] = hidden_states[-2 if self.config.last_aligned_feature == "unmixed" else -1]
        return features

    def targets_of(self, features: torch.Tensor, bool_masked_pos: torch.Tensor) -> torch.Tensor:
        """Labels for `forward` from a teacher's features `(batch_size, num_layers, 1 + num_patches, projection_dim)`
        of all tokens, the class token first."""
        targets = visible_targets(features, bool_masked_pos)
        return F.normalize(targets, dim=-1) if self.config.normalize_features else targets

    def align(
        self,
        hidden_states: tuple[torch.Tensor, ...],
        grid: TokenGrid,
        bool_masked_pos: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        The heads and their loss, for the residual stream of an encoder that ran before.

        Args:
            hidden_states: those of [`VideoMambaModel`] over the visible tokens.
            grid: token grid (t, h, w) of the input.
            bool_masked_pos: `(batch_size, num_patches)`, bool, true for patches that the encoder did not see.
            labels: targets as in `forward`.

        Returns:
            `logits` and `loss` of [`VideoMambaForPreTrainingOutput`].

        Raises:
            ValueError: for labels of another shape than the logits.
        """
        visible = F.pad(~bool_masked_pos, (1, 0), value=True)
        positions = self.position_embeddings
        if positions.shape[1] != visible.shape[1]:
            positions = self.position_table(grid)
        positions = select_tokens(positions.to(visible.device, torch.float32), visible)
        pairs = zip(self.decoder, self.aligned_features(hidden_states), strict=True)
        logits = torch.stack([head(feature + positions) for head, feature in pairs], dim=1)
        if labels is None:
            return logits, None
        if labels.shape != logits.shape:
            raise ValueError(
                "`labels` must be (batch_size, num_aligned_layers, num_visible_tokens, projection_dim) = "
                f"{tuple(logits.shape)}, got {tuple(labels.shape)}."
            )
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return logits, ALIGNMENT_LOSSES[self.config.alignment_loss](logits.to(dtype), labels.to(dtype))

    @can_return_tuple
    @filter_output_hidden_states
    def forward(
        self,
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VideoMambaForPreTrainingOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames.
            bool_masked_pos (`torch.BoolTensor` of shape `(batch_size, num_patches)`, *optional*):
                True for patches that are hidden from the encoder, as many in every clip, without the class token. By
                default the share `config.mask_ratio` of every frame is hidden: at random or, if there is a teacher,
                in inverse proportion to its attention.
            labels (`torch.FloatTensor` of shape `(batch_size, num_aligned_layers, num_visible_tokens,
                projection_dim)`, *optional*):
                Targets, of unit length if `config.normalize_features`. By default they are the teacher's features, if
                there is a teacher.
            kwargs: other arguments of [`VideoMambaModel`].

        Returns:
            [`VideoMambaForPreTrainingOutput`], with a loss if there are targets.

        Raises:
            ValueError: for masks of another shape or dtype, with unequal counts in a batch, or that hide every patch;
                and for labels of another shape than the logits.
        """
        grid = token_grid(pixel_values, self.config)
        targets = attention = None
        if self.teacher is not None and (labels is None or bool_masked_pos is None):
            targets, attention = self.teacher(pixel_values, self.config, self.config.num_aligned_layers)
        if bool_masked_pos is None:
            t, h, w = grid
            importance = pixel_values.new_ones(pixel_values.shape[0], t, h * w) if attention is None else attention
            bool_masked_pos = draw_mask(importance, self.config.mask_ratio)
        outputs: VideoMambaOutput = self.videomamba(pixel_values, bool_masked_pos, return_dict=True, **kwargs)

        if labels is None and targets is not None:
            labels = visible_targets(targets, bool_masked_pos)
        logits, loss = self.align(outputs.hidden_states, grid, bool_masked_pos, labels)
        return VideoMambaForPreTrainingOutput(
            loss=loss, logits=logits, mask=bool_masked_pos.to(logits.dtype), hidden_states=outputs.hidden_states
        )


__all__ = ["VideoMambaForPreTraining", "VideoMambaForPreTrainingOutput"]
