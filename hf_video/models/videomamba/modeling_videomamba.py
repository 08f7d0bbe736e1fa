"""PyTorch VideoMamba: bidirectional state spaces over the patches of a video."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.backbone_utils import BackboneMixin, filter_output_hidden_states
from transformers.modeling_outputs import (
    BackboneOutput,
    BaseModelOutputWithNoAttention,
    ImageClassifierOutputWithNoAttention,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_videomamba import VideoMambaConfig
from .embeddings_videomamba import (
    TokenGrid,
    VideoMambaEmbeddings,
    select_tokens,
    temporal_first_order,
)
from .layer_videomamba import (
    VideoMambaLayer,
    VideoMambaNorm,
    VideoMambaOutputProjection,
    VideoMambaScan,
    VideoMambaTimeStepProjection,
)
from .loss_videomamba import classification_loss
from .masking_videomamba import check_mask, draw_mask
from .teacher_videomamba import VideoMambaTeacher
from .views_videomamba import average_views, flatten_views

logger = logging.get_logger(__name__)


@dataclass
class VideoMambaForPreTrainingOutput(ModelOutput):
    """
    Output of [`VideoMambaForPreTraining`].

    Args:
        loss (`torch.FloatTensor` of shape `(1,)`):
            Of `config.alignment_loss` between `logits` and the targets, by default the mean of 2 - 2 * cosine.
        logits (`torch.FloatTensor` of shape `(batch_size, num_aligned_layers, num_visible_tokens, projection_dim)`):
            Features of the visible tokens, the class token first, of unit length if `config.normalize_features`;
            layers in rising order.
        mask (`torch.FloatTensor` of shape `(batch_size, num_patches)`):
            The mask that was used: 1 for hidden patches, 0 for visible ones.
        hidden_states (`tuple[torch.FloatTensor]`, *optional*):
            The residual stream over the visible tokens, before the first and after every block.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None


class VideoMambaPreTrainedModel(PreTrainedModel):
    config: VideoMambaConfig
    config_class = VideoMambaConfig
    base_model_prefix = "videomamba"
    main_input_name = "pixel_values"
    input_modalities = ("video",)
    supports_gradient_checkpointing = True
    _supports_views = True
    _no_split_modules = ["VideoMambaPatchEmbeddings", "VideoMambaEmbeddings", "VideoMambaLayer"]
    _keep_in_fp32_modules_strict = ["A_log", "D", "dt_proj.bias"]
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": VideoMambaLayer}
    _input_embed_layer = "patch_embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        config, std = self.config, self.config.initializer_range
        if isinstance(module, VideoMambaTimeStepProjection) and config.time_step_init_scheme != "zero_bias":
            self._init_time_steps(module)
        elif isinstance(module, nn.Linear):
            if isinstance(module, VideoMambaOutputProjection):
                # PyTorch's default divided by sqrt(depth), so that the residual sum keeps its scale.
                bound = (module.in_features * config.num_hidden_layers) ** -0.5
                init.uniform_(module.weight, -bound, bound)
            else:
                init.trunc_normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Conv1d | nn.Conv3d):
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            if module.bias is not None:
                bound = module.weight[0].numel() ** -0.5
                init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, VideoMambaNorm | nn.LayerNorm):
            init.ones_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, VideoMambaEmbeddings):
            init.zeros_(module.cls_token)
            init.trunc_normal_(module.position_embeddings, std=std)
            if module.temporal_position_embeddings is not None:
                init.zeros_(module.temporal_position_embeddings)
        elif isinstance(module, VideoMambaScan):
            rates = torch.arange(1, config.state_size + 1, dtype=torch.float32, device=module.A_log.device)
            init.copy_(module.A_log, rates.log().expand_as(module.A_log))
            init.ones_(module.D)
        elif isinstance(module, VideoMambaForPreTraining):
            init.copy_(module.position_embeddings, module.position_table(config.token_grid))

    def set_input_size(self, image_size: int | tuple[int, int] | None = None, num_frames: int | None = None) -> None:
        """
        Bake another input size into the model: the configuration takes it and positions are resized once, with the
        results that `interpolate_pos_encoding` gives at run time.

        Args:
            image_size: height and width in pixels; unchanged when not given.
            num_frames: number of frames; unchanged when not given.

        Raises:
            ValueError: if the new size holds no patch.
        """
        config, embeddings = self.config, self.base_model.embeddings
        new_size: dict[str, Any] = {
            "image_size": image_size or config.image_size,
            "num_frames": num_frames or config.num_frames,
        }
        new_grid = type(config)(**{**config.to_dict(), **new_size}).token_grid
        with torch.no_grad():
            tables = embeddings.positions(new_grid)
        names = ("position_embeddings", "temporal_position_embeddings")
        for name, table in zip(names, tables, strict=True):
            if table is not None:
                requires_grad = getattr(embeddings, name).requires_grad
                setattr(embeddings, name, nn.Parameter(table.clone(), requires_grad=requires_grad))
        config.image_size, config.num_frames = new_size["image_size"], new_size["num_frames"]
        if isinstance(self, VideoMambaForPreTraining):
            self.position_embeddings = self.position_table(new_grid).to(self.position_embeddings.device)

    def _set_gradient_checkpointing(self, enable: bool = True, **kwargs: Any) -> None:
        """Transformers' switch, for the layers that the configuration names unless the call itself leaves some out."""
        super()._set_gradient_checkpointing(enable, **kwargs)
        if enable and kwargs.get("every_n_layers", 1) == 1:
            for number, layer in enumerate(self.base_model.layers):
                layer.gradient_checkpointing = number in self.config.recomputed_layers

    def layer_groups(self) -> list[nn.Module]:
        """The modules with a depth, from the input on; all other parameters are as deep as the head."""
        return [self.base_model.embeddings, *self.base_model.layers]

    def _init_time_steps(self, module: nn.Linear) -> None:
        """Mamba's initialisation (`Mamba.__init__` of mamba-ssm)."""
        config = self.config
        bound = config.time_step_scale * module.in_features**-0.5
        if config.time_step_init_scheme == "constant":
            init.constant_(module.weight, bound)
        else:
            init.uniform_(module.weight, -bound, bound)
        low, high = math.log(config.time_step_min), math.log(config.time_step_max)
        draws = torch.rand(module.out_features, dtype=torch.float32, device=module.bias.device)
        steps = torch.exp(low + (high - low) * draws).clamp(min=config.time_step_floor)
        # The inverse of softplus.
        init.copy_(module.bias, steps + torch.log(-torch.expm1(-steps)))


class VideoMambaModel(VideoMambaPreTrainedModel):
    """The bare encoder."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        num_layers = config.num_hidden_layers
        self.embeddings = VideoMambaEmbeddings(config)
        self.layers = nn.ModuleList(
            [VideoMambaLayer(config, config.drop_path_rate * i / max(num_layers - 1, 1)) for i in range(num_layers)]
        )
        self.norm_f = VideoMambaNorm(config)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None = None,
        interpolate_pos_encoding: bool = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithNoAttention:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames. Frames and pixels that fill no patch are dropped.
            bool_masked_pos (`torch.BoolTensor` of shape `(batch_size, num_patches)`, *optional*):
                True for patches that are hidden, as many in every clip; only the others become tokens.
            interpolate_pos_encoding (`bool`, defaults to `True`):
                Whether to resize the positions for an input of another size than configured.

        Returns:
            [`BaseModelOutputWithNoAttention`] whose `last_hidden_state` is `(batch_size, 1 + num_patches,
            hidden_size)`, tokens in the order time, row, column behind the class token whatever the order of the
            scans; `hidden_states` are the residual stream before the final norm.

        Raises:
            ValueError: for another rank or number of channels, an input smaller than a patch, masks of another shape
                or with unequal counts, or another size where `interpolate_pos_encoding` forbids it.
        """
        grid = self.embeddings.patch_embeddings.grid_of(pixel_values)
        if bool_masked_pos is not None:
            check_mask(bool_masked_pos, pixel_values.shape[0], math.prod(grid))
        hidden_states = self.embeddings(
            pixel_values.to(self.embeddings.patch_embeddings.projection.weight.dtype),
            bool_masked_pos,
            interpolate_pos_encoding,
        )
        if self.config.residual_in_fp32:
            hidden_states = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
        temporal_first = None
        if self.config.scan_order != "spatial_first":
            temporal_first = temporal_first_order(grid, bool_masked_pos, hidden_states.device)
        for layer in self.layers:
            hidden_states = layer(hidden_states, temporal_first)
        return BaseModelOutputWithNoAttention(last_hidden_state=self.norm_f(hidden_states))


class VideoMambaClassifier(VideoMambaPreTrainedModel):
    """What the video and the image classifier share: pooling, head and loss."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        if not config.bidirectional and not config.use_mean_pooling:
            logger.warning_once(
                "With `bidirectional=False` the class token comes before all patches and sees none of them, so that "
                "the logits do not depend on the pixels: set `use_mean_pooling=True`."
            )
        self.num_labels = config.num_labels
        self.videomamba = VideoMambaModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.loss_function = classification_loss
        self.post_init()

    def pool(self, tokens: torch.Tensor) -> torch.Tensor:
        """Pooled features `(batch_size, hidden_size)` of tokens `(batch_size, sequence_length, hidden_size)`."""
        return tokens[:, 1:].mean(dim=1) if self.config.use_mean_pooling else tokens[:, 0]

    def classify(
        self, pixel_values: torch.Tensor, labels: torch.Tensor | None, **kwargs: Unpack[TransformersKwargs]
    ) -> ImageClassifierOutputWithNoAttention:
        outputs: BaseModelOutputWithNoAttention = self.videomamba(flatten_views(pixel_values), **kwargs)
        features = self.dropout(self.pool(outputs.last_hidden_state))
        logits = average_views(self.classifier(features), pixel_values, self.config)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutputWithNoAttention(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


class VideoMambaForVideoClassification(VideoMambaClassifier):
    """VideoMamba with a linear classifier on the pooled feature; with `num_labels=0` that feature is the output."""

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutputWithNoAttention:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames; `(batch_size, num_views, ...)` for several clips and crops, see `average_views`.
            labels (`torch.Tensor`, *optional*):
                Class indices `(batch_size,)`, int64, for the cross-entropy; targets in [0, 1] `(batch_size,
                num_labels)`, float, for multi-label classification; values for regression. `config.problem_type`
                decides, or the labels' dtype the first time.
            interpolate_pos_encoding (`bool`, defaults to `True`):
                Whether to resize the positions for an input of another size than configured.

        Returns:
            [`ImageClassifierOutputWithNoAttention`] with `logits` of shape `(batch_size, num_labels)`.
        """
        return self.classify(pixel_values, labels, **kwargs)


class VideoMambaForImageClassification(VideoMambaClassifier):
    """
    VideoMamba on single images: a clip of one frame, for a configuration with `num_frames=1` and `tubelet_size=1`.
    Patches overlap where `config.patch_stride` is below `config.patch_size`.
    """

    def __init__(self, config: VideoMambaConfig):
        if config.tubelet_size != 1:
            raise ValueError(f"Image classification needs `tubelet_size=1`, got {config.tubelet_size}.")
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutputWithNoAttention:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_channels, height, width)`):
                Normalised images.
            labels (`torch.Tensor`, *optional*):
                As for [`VideoMambaForVideoClassification`].

        Returns:
            [`ImageClassifierOutputWithNoAttention`] with `logits` of shape `(batch_size, num_labels)`.
        """
        if pixel_values.ndim != 4:
            raise ValueError(
                f"`pixel_values` must be (batch_size, num_channels, height, width), got {tuple(pixel_values.shape)}."
            )
        return self.classify(pixel_values[:, None], labels, **kwargs)


def cosine_loss(features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean of 2 - 2 * cosine, which is the squared distance, between features of unit length."""
    return (2 - 2 * (features * targets).sum(dim=-1)).mean()


# `clip_loss_type` of the original's `run_umt_pretraining.py`, where the first one is "l2".
ALIGNMENT_LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cosine": cosine_loss,
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
}


class VideoMambaAlignmentHead(nn.Module):
    """Projects the tokens of one layer to features, of unit length unless the configuration leaves theirs open."""

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
    Masked feature alignment (https://arxiv.org/abs/2403.06977, after UMT, https://arxiv.org/abs/2303.16058): the
    encoder sees few patches, and small heads map the tokens of its last layers to the features that a teacher has for
    the same places. Targets are given as `labels`, or come from the teacher of `set_teacher`.
    """

    # For Trainer: the loss is the mean of a call.
    accepts_loss_kwargs = False
    position_embeddings: torch.Tensor

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        self.videomamba = VideoMambaModel(config)
        self.decoder = nn.ModuleList([VideoMambaAlignmentHead(config) for _ in range(config.num_aligned_layers)])
        self.register_buffer("position_embeddings", self.position_table(config.token_grid), persistent=False)
        # In a tuple, because a teacher is no part of the model: it is neither trained nor saved.
        self._teacher: tuple[VideoMambaTeacher, ...] = ()
        self.post_init()

    def position_table(self, grid: TokenGrid) -> torch.Tensor:
        """
        Table that is added to all tokens before the heads, the class token's first, `(1, 1 + t * h * w, hidden_size)`:
        sines on even and cosines on odd channels ("Attention Is All You Need", section 3.5), rounded from double
        precision.
        """
        size = self.config.hidden_size
        channels = torch.arange(size, dtype=torch.float64, device="cpu")
        wavelengths = 10000 ** (2 * (channels // 2) / size)
        places = torch.arange(1 + math.prod(grid), dtype=torch.float64, device="cpu")
        angles = places[:, None] / wavelengths
        return torch.where(channels % 2 == 0, angles.sin(), angles.cos()).float()[None]

    def set_teacher(self, teacher: str | PreTrainedModel, **kwargs: Any) -> None:
        """
        Take a frozen image model as the source of targets, which is not saved with this one.

        Args:
            teacher: a vision transformer of Transformers with a class token, or its id on the Hub, such as
                `"openai/clip-vit-base-patch16"`, which the released models were aligned with.
            kwargs: for its `from_pretrained`.

        Raises:
            ValueError: if its features do not have `config.projection_dim` channels.
        """
        loaded = VideoMambaTeacher.from_pretrained(teacher, **kwargs) if isinstance(teacher, str) else None
        loaded = loaded or VideoMambaTeacher(cast(PreTrainedModel, teacher))
        if loaded.num_features != self.config.projection_dim:
            raise ValueError(
                f"The teacher's features have {loaded.num_features} channels, `config.projection_dim` is "
                f"{self.config.projection_dim}: set it to the former."
            )
        self._teacher = (loaded,)

    def aligned_features(self, hidden_states: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """The tokens of the layers to align, `(batch_size, num_visible_tokens, hidden_size)` each, in rising order."""
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
                True for patches that are hidden from the encoder, as many in every clip, without the class token. When
                not given, `config.mask_ratio` of every frame is hidden at random, or in inverse proportion to the
                teacher's attention where there is a teacher.
            labels (`torch.FloatTensor` of shape `(batch_size, num_aligned_layers, num_visible_tokens,
                projection_dim)`, *optional*):
                Targets, of unit length if `config.normalize_features`. When not given, the teacher's, if there is one.

        Returns:
            [`VideoMambaForPreTrainingOutput`], with a loss where there are targets.

        Raises:
            ValueError: for masks of another shape or dtype, with unequal counts in a batch or that leave nothing to
                encode, and for labels of another shape than the logits.
        """
        grid = self.videomamba.embeddings.patch_embeddings.grid_of(pixel_values)
        targets = attention = None
        if self._teacher and (labels is None or bool_masked_pos is None):
            targets, attention = self._teacher[0](pixel_values, self.config, self.config.num_aligned_layers)
        if bool_masked_pos is None:
            t, h, w = grid
            importance = pixel_values.new_ones(pixel_values.shape[0], t, h * w) if attention is None else attention
            bool_masked_pos = draw_mask(importance, self.config.mask_ratio)
        outputs: BaseModelOutputWithNoAttention = self.videomamba(
            pixel_values, bool_masked_pos=bool_masked_pos, **kwargs
        )

        visible = F.pad(~bool_masked_pos, (1, 0), value=True)
        positions = self.position_embeddings if grid == self.config.token_grid else self.position_table(grid)
        positions = select_tokens(positions.to(pixel_values.device, torch.float32), visible)
        features = self.aligned_features(outputs.hidden_states)
        logits = torch.stack(
            [head(feature + positions) for head, feature in zip(self.decoder, features, strict=True)], dim=1
        )
        if labels is None and targets is not None:
            labels = torch.stack([select_tokens(layer, visible) for layer in targets.unbind(1)], dim=1)
        loss = None
        if labels is not None:
            if labels.shape != logits.shape:
                raise ValueError(
                    "`labels` must be (batch_size, num_aligned_layers, num_visible_tokens, projection_dim) = "
                    f"{tuple(logits.shape)}, got {tuple(labels.shape)}."
                )
            loss = ALIGNMENT_LOSSES[self.config.alignment_loss](logits.float(), labels.float())
        return VideoMambaForPreTrainingOutput(
            loss=loss, logits=logits, mask=bool_masked_pos.to(logits.dtype), hidden_states=outputs.hidden_states
        )


class VideoMambaBackbone(BackboneMixin, VideoMambaPreTrainedModel):
    """Feature maps for detection and other dense tasks."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        self.videomamba = VideoMambaModel(config)
        self.num_features = [config.hidden_size] * (config.num_hidden_layers + 1)
        self.post_init()

    @can_return_tuple
    @filter_output_hidden_states
    def forward(self, pixel_values: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> BackboneOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames of any size.

        Returns:
            [`BackboneOutput`] whose `feature_maps` are, one for each stage in `config.out_features`, `(batch_size,
            hidden_size, t, h, w)`, after the final norm.
        """
        grid = self.videomamba.embeddings.patch_embeddings.grid_of(pixel_values)
        outputs: BaseModelOutputWithNoAttention = self.videomamba(pixel_values, **kwargs)
        feature_maps = []
        for stage, hidden_states in zip(self.stage_names, outputs.hidden_states, strict=True):
            if stage in self.out_features:
                tokens = self.videomamba.norm_f(hidden_states)
                feature_maps.append(tokens[:, 1:].mT.unflatten(-1, grid))
        return BackboneOutput(feature_maps=tuple(feature_maps), hidden_states=outputs.hidden_states)


__all__ = [
    "VideoMambaBackbone",
    "VideoMambaForImageClassification",
    "VideoMambaForPreTraining",
    "VideoMambaForPreTrainingOutput",
    "VideoMambaForVideoClassification",
    "VideoMambaModel",
    "VideoMambaPreTrainedModel",
]
