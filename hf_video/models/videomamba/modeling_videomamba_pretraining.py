"""PyTorch VideoMamba that is pre-trained: masked feature alignment with an image model."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModel
from transformers import initialization as init
from transformers.backbone_utils import filter_output_hidden_states
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..shared_video import select_tokens, sinusoidal_positions, token_grid
from .configuration_videomamba import VideoMambaConfig
from .modeling_videomamba import TokenGrid, VideoMambaModel, VideoMambaPreTrainedModel
from .pretraining_videomamba import (
    ALIGNMENT_LOSSES,
    VideoMambaTeacher,
    draw_mask,
    visible_targets,
)


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

    def set_input_size(self, image_size: int | tuple[int, int] | None = None, num_frames: int | None = None) -> None:
        """As in [`VideoMambaPreTrainedModel`]. The heads get the table of the new size as well."""
        super().set_input_size(image_size, num_frames)
        table = self.position_table(self.config.token_grid)
        self.position_embeddings = table.to(self.position_embeddings.device)

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
        targets, attention = self.teacher(pixel_values, self.config, self.config.num_aligned_layers)
        batch_size, t, num_patches = attention.shape
        shapes = {None: (t, num_patches), "tube": (1, num_patches), "random": (1, t * num_patches)}
        shapes["attention"] = shapes[None]
        if mask_type not in shapes:
            raise ValueError(f"mask_type is {mask_type!r}; attention, tube or random is expected.")
        importance = (
            attention.cpu() if mask_type in (None, "attention") else torch.ones(batch_size, *shapes[mask_type])
        )
        masks = [
            draw_mask(each[None], self.config.mask_ratio if mask_ratio is None else mask_ratio, generator)
            for each, generator in zip(importance, generators, strict=True)
        ]
        mask = torch.cat(masks).to(pixel_values.device)
        if mask_type == "tube":
            mask = mask.repeat(1, t)
        return {"bool_masked_pos": mask, "labels": visible_targets(targets, mask)}

    def aligned_features(self, hidden_states: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Tokens `(batch_size, num_visible_tokens, hidden_size)` of each layer to align, layers in rising order."""
        features = []
        for layer in self.config.aligned_layers:
            is_last = layer == self.config.num_hidden_layers - 1
            if is_last and self.config.last_aligned_feature == "unmixed":
                features.append(hidden_states[layer])
            elif is_last and self.config.last_aligned_feature == "raw":
                features.append(hidden_states[layer + 1])
            else:
                features.append(self.videomamba.norm_f(hidden_states[layer + 1]))
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
        features = self.aligned_features(hidden_states)
        logits = torch.stack(
            [head(feature + positions) for head, feature in zip(self.decoder, features, strict=True)], dim=1
        )
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
        outputs: BaseModelOutput = self.videomamba(pixel_values, bool_masked_pos, return_dict=True, **kwargs)

        if labels is None and targets is not None:
            labels = visible_targets(targets, bool_masked_pos)
        logits, loss = self.align(outputs.hidden_states, grid, bool_masked_pos, labels)
        return VideoMambaForPreTrainingOutput(
            loss=loss, logits=logits, mask=bool_masked_pos.to(logits.dtype), hidden_states=outputs.hidden_states
        )


__all__ = ["VideoMambaForPreTraining", "VideoMambaForPreTrainingOutput"]
