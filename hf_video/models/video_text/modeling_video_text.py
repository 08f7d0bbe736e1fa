"""PyTorch VideoTextDualEncoder: a video encoder, a text encoder, and a fusion encoder over both."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from transformers import AutoModel, AutoModelForPreTraining, BertConfig, BertModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertIntermediate, BertOutput, BertSelfOutput
from transformers.models.videomae.modeling_videomae import eager_attention_forward
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..shared_video import VideoPreTrainedModel
from .configuration_video_text import LOSSES, VideoTextDualEncoderConfig
from .losses_video_text import (
    contrastive_loss,
    draw_negatives,
    first_id,
    gather_from_processes,
    mask_tokens,
    masked_word_loss,
    matching_loss,
    mean_direction,
    unit_vectors,
)


@dataclass
class VideoTextDualEncoderOutput(ModelOutput):
    """
    Output of [`VideoTextDualEncoderModel`].

    Args:
        loss (`torch.FloatTensor` of shape `()`, *optional*):
            Sum of the losses, each times its weight.
        loss_dict (`dict[str, torch.FloatTensor]`, *optional*):
            The losses without their weights: `loss_vtc`, `loss_vtm`, `loss_mlm` and `loss_uta`. One that is not
            computed is 0.
        similarity (`torch.FloatTensor` of shape `(num_videos, num_texts)`):
            Mean of the cosines between the vectors of a video and that of a text.
        logits_per_video (`torch.FloatTensor` of shape `(num_videos, num_texts)`):
            `similarity` divided by the temperature.
        logits_per_text (`torch.FloatTensor` of shape `(num_texts, num_videos)`):
            The same for texts.
        match_logits (`torch.FloatTensor` of shape `(batch_size, 2)`, *optional*):
            Whether the i-th video and the i-th text belong together; class 1 says they do.
        video_embeds (`torch.FloatTensor` of shape `(num_videos, num_vectors, projection_dim)`):
            Projected vectors of the videos, of any length.
        text_embeds (`torch.FloatTensor` of shape `(num_texts, projection_dim)`):
            Projected vectors of the texts, of any length.
    """

    loss: torch.Tensor | None = None
    loss_dict: dict[str, torch.Tensor] | None = None
    similarity: torch.Tensor | None = None
    logits_per_video: torch.Tensor | None = None
    logits_per_text: torch.Tensor | None = None
    match_logits: torch.Tensor | None = None
    video_embeds: torch.Tensor | None = None
    text_embeds: torch.Tensor | None = None


class VideoTextAttention(nn.Module):
    """Attention of the words to states of any width, with BERT's residual and norm after it."""

    def __init__(self, config: BertConfig, states_size: int):
        super().__init__()
        self.config = config
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.dropout_prob = config.attention_probs_dropout_prob
        self.scaling = self.head_dim**-0.5
        self.is_causal = False
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(states_size, config.hidden_size)
        self.value = nn.Linear(states_size, config.hidden_size)
        self.output = BertSelfOutput(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        query, key, value = (
            tensor.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for tensor in (self.query(hidden_states), self.key(states), self.value(states))
        )
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        kwargs |= {"dropout": self.dropout_prob if self.training else 0.0, "scaling": self.scaling}
        context, _ = attention_interface(self, query, key, value, attention_mask, **kwargs)
        return cast(torch.Tensor, self.output(context.flatten(2), hidden_states))


class VideoTextFusionLayer(GradientCheckpointingLayer):
    """BERT's layer, in which the words attend to the video between self-attention and the feed-forward network."""

    def __init__(self, config: BertConfig, video_size: int):
        super().__init__()
        self.self_attention = VideoTextAttention(config, config.hidden_size)
        self.cross_attention = VideoTextAttention(config, video_size)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        video_tokens: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        attended = self.self_attention(hidden_states, hidden_states, attention_mask, **kwargs)
        attended = self.cross_attention(attended, video_tokens, **kwargs)
        return cast(torch.Tensor, self.output(self.intermediate(attended), attended))


class VideoTextMLMHead(nn.Module):
    """BERT's head of masked words. Its last weight is that of the word embeddings."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation_fn = ACT2FN[config.hidden_act]
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.layer_norm(self.activation_fn(self.dense(hidden_states))))


class VideoTextDualEncoderPreTrainedModel(VideoPreTrainedModel):
    config: VideoTextDualEncoderConfig
    base_model_prefix = "video_text"
    input_modalities = ("video", "text")
    _no_split_modules = ["VideoTextFusionLayer"]
    # The divisor of all cosines: bfloat16 has three digits, and an update of the optimizer is smaller.
    _keep_in_fp32_modules_strict = ["temperature"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, VideoTextDualEncoderModel):
            init.constant_(module.temperature, self.config.temperature)


class VideoTextDualEncoderModel(VideoTextDualEncoderPreTrainedModel):
    """
    Two encoders that map videos and texts into one space, where cosines compare them quickly, and a fusion encoder in
    which the words of a text attend to the tokens of a video. It says how well a pair matches, and predicts masked
    words.
    """

    # For Trainer: the loss is the mean of a call.
    accepts_loss_kwargs = False

    def __init__(self, config: VideoTextDualEncoderConfig):
        super().__init__(config)
        auto_class = AutoModelForPreTraining if config.use_alignment_heads else AutoModel
        self.vision_model = auto_class.from_config(config.vision_config)
        text_config = config.text_config
        self.text_model = BertModel(text_config, add_pooling_layer=False)
        # The layers from `fusion_layer` on are those of the fusion encoder.
        del self.text_model.encoder.layer[config.fusion_layer :]
        video_size, text_size = config.vision_config.hidden_size, text_config.hidden_size
        self.fusion_layers = nn.ModuleList(
            VideoTextFusionLayer(text_config, video_size)
            for _ in range(text_config.num_hidden_layers - config.fusion_layer)
        )
        self.pool_norm = nn.LayerNorm(video_size, eps=config.pool_norm_eps)
        self.video_projection = nn.Linear(video_size, config.projection_dim)
        self.text_projection = nn.Linear(text_size, config.projection_dim)
        self.match_head = nn.Linear(text_size, 2)
        self.mlm_head = None
        if config.use_mlm_head:
            self.mlm_head = VideoTextMLMHead(text_config)
            self._tied_weights_keys = {"mlm_head.decoder.weight": "text_model.embeddings.word_embeddings.weight"}
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.temperature = nn.Parameter(torch.empty((), dtype=dtype))
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.text_model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module | None:
        return None if self.mlm_head is None else self.mlm_head.decoder

    def set_output_embeddings(self, value: nn.Module) -> None:
        if self.mlm_head is not None:
            self.mlm_head.decoder = cast(nn.Linear, value)

    @can_return_tuple
    def get_video_features(
        self,
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames.
            bool_masked_pos (`torch.BoolTensor` of shape `(batch_size, num_patches)`, *optional*):
                True for patches that are hidden, as many in every video, without the class token.
            kwargs: other arguments of the video encoder.

        Returns:
            [`BaseModelOutputWithPooling`] with `last_hidden_state` `(batch_size, num_tokens, hidden_size)`, the
            patches without the class token, to which the fusion encoder attends; and `pooler_output` `(batch_size,
            num_vectors, projection_dim)`, of any length: a vector for each frame if `config.keep_temporal`.
        """
        encoder = self.vision_model.base_model
        outputs: BaseModelOutput = encoder(pixel_values, bool_masked_pos, return_dict=True, **kwargs)
        tokens, class_token = outputs.last_hidden_state, None
        if self.config.has_class_token:
            class_token, tokens = tokens[:, :1], tokens[:, 1:]
        pooled = self.pool(tokens, class_token, pixel_values, bool_masked_pos is not None)
        return BaseModelOutputWithPooling(
            last_hidden_state=tokens,
            pooler_output=self.video_projection(self.pool_norm(pooled)),
            hidden_states=outputs.hidden_states,
        )

    def pool(
        self, tokens: torch.Tensor, class_token: torch.Tensor | None, pixel_values: torch.Tensor, is_masked: bool
    ) -> torch.Tensor:
        """Vectors `(batch_size, num_vectors, hidden_size)` of the patches and of the class token, see
        `config.pooling`."""
        config = self.config
        if config.pooling == "cls":
            return cast(torch.Tensor, class_token)
        keeps_time = config.keep_temporal
        if is_masked:
            keeps_time = keeps_time and config.video_mask_type == config.image_mask_type == "tube"
        num_frames = pixel_values.shape[1] if config.split_by_input_frames else self.grid_of(pixel_values)[0]
        means = tokens.unflatten(1, (num_frames if keeps_time else 1, -1)).mean(dim=2)
        if config.pooling == "avg" or class_token is None:
            return means
        if config.pooling == "cls_cat_avg" and not keeps_time:
            return torch.cat([class_token, means], dim=1)
        return class_token + means

    @can_return_tuple
    def get_text_features(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        r"""
        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`):
                Ids of the tokens.
            attention_mask (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                1 for tokens, 0 for padding.
            kwargs: other arguments of [`BertModel`].

        Returns:
            [`BaseModelOutputWithPooling`] with `last_hidden_state` `(batch_size, sequence_length, hidden_size)`, from
            which the fusion encoder starts, and `pooler_output` `(batch_size, projection_dim)`, of any length.
        """
        outputs = self.text_model(input_ids, attention_mask, return_dict=True, **kwargs)
        states = outputs.last_hidden_state
        return BaseModelOutputWithPooling(
            last_hidden_state=states,
            pooler_output=self.text_projection(states[:, 0]),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def fuse(
        self,
        video_tokens: torch.Tensor,
        text_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """
        The fusion encoder, for pairs of a video and a text.

        Args:
            video_tokens: `(batch_size, num_tokens, video_hidden_size)`, from [`get_video_features`].
            text_states: `(batch_size, sequence_length, hidden_size)`, from [`get_text_features`].
            attention_mask: `(batch_size, sequence_length)`, 1 for tokens, 0 for padding.

        Returns:
            `(batch_size, sequence_length, hidden_size)`.
        """
        mask = create_bidirectional_mask(
            config=self.config.text_config, inputs_embeds=text_states, attention_mask=attention_mask
        )
        for layer in self.fusion_layers:
            text_states = layer(text_states, video_tokens, mask, **kwargs)
        return text_states

    def match(
        self,
        video_tokens: torch.Tensor,
        text_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Logits `(batch_size, 2)` of whether pairs match, class 1 the match. The arguments are those of [`fuse`]."""
        return self.match_head(self.fuse(video_tokens, text_states, attention_mask, **kwargs)[:, 0])

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_match: bool = False,
        return_loss: bool = False,
        video_ids: torch.Tensor | None = None,
        bool_masked_pos: torch.Tensor | None = None,
        video_negatives: torch.Tensor | None = None,
        text_negatives: torch.Tensor | None = None,
        mlm_input_ids: torch.Tensor | None = None,
        mlm_labels: torch.Tensor | None = None,
        teacher_features: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VideoTextDualEncoderOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(num_videos, num_frames, num_channels, height, width)`):
                Normalised frames.
            input_ids (`torch.LongTensor` of shape `(num_texts, sequence_length)`):
                Ids of the tokens.
            attention_mask (`torch.LongTensor` of shape `(num_texts, sequence_length)`, *optional*):
                1 for tokens, 0 for padding.
            output_match (`bool`, defaults to `False`):
                Whether to return `match_logits`, for as many texts as videos.
            return_loss (`bool`, defaults to `False`):
                Whether to compute the losses of `config.loss_weights`, for as many texts as videos. The temperature
                is then clamped to `config.temperature_bounds`.
            video_ids (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
                Which video each pair belongs to; by default each has its own.
            bool_masked_pos (`torch.BoolTensor` of shape `(batch_size, num_patches)`, *optional*):
                True for patches that are hidden, as many in every video, without the class token. By default nothing
                is hidden, except in training with a teacher, which is set with `vision_model.set_teacher`.
            video_negatives, text_negatives (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
                Index of the video that does not match the i-th text, and of the text that does not match the i-th
                video; drawn by default.
            mlm_input_ids, mlm_labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Masked text, and the words to predict, -100 elsewhere; drawn by default.
            teacher_features (`torch.FloatTensor` of shape `(num_layers, batch_size, 1 + num_patches, width)`,
                *optional*): features of all tokens to align with, the class token first; by default the teacher's, if
                there is one.

        Returns:
            [`VideoTextDualEncoderOutput`].

        Raises:
            ValueError: for pairs of unequal numbers of videos and texts, for matching with all pairs of one video, and
                if one of `mlm_input_ids` and `mlm_labels` is missing or cannot be drawn.
        """
        if (output_match or return_loss) and len(pixel_values) != len(input_ids):
            raise ValueError(
                f"Pairs need as many texts as videos, got {len(pixel_values)} videos and {len(input_ids)} texts: "
                "leave `output_match` and `return_loss` out, or give a text for each video."
            )
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        targets = None
        if return_loss:
            with torch.no_grad():
                self.temperature.clamp_(*cast(list[float], self.config.temperature_bounds))
            bool_masked_pos, targets = self.alignment_targets(pixel_values, bool_masked_pos, teacher_features)
        if targets is not None:
            kwargs["output_hidden_states"] = True
        videos = self.get_video_features(pixel_values, bool_masked_pos, return_dict=True, **kwargs)
        texts = self.get_text_features(input_ids, attention_mask, return_dict=True)
        similarity = mean_direction(videos.pooler_output) @ unit_vectors(texts.pooler_output).T
        logits = similarity / self.temperature
        output = VideoTextDualEncoderOutput(
            similarity=similarity,
            logits_per_video=logits,
            logits_per_text=logits.T,
            video_embeds=videos.pooler_output,
            text_embeds=texts.pooler_output,
        )
        if output_match:
            output.match_logits = self.match(videos.last_hidden_state, texts.last_hidden_state, attention_mask)
        if return_loss:
            losses = {f"loss_{name}": similarity.new_zeros(()) for name in LOSSES}
            if video_ids is None:
                video_ids = torch.arange(len(input_ids), device=input_ids.device) + first_id(len(input_ids))
            if self.config.weight_of("vtc"):
                losses["loss_vtc"] = self.contrast(videos.pooler_output, texts.pooler_output, video_ids)
            if self.config.weight_of("vtm"):
                hard = self.config.vtm_hard_negatives
                negatives = draw_negatives(logits, video_ids, hard, video_negatives, text_negatives)
                losses["loss_vtm"] = self.matching(videos, texts, attention_mask, *negatives)
            if self.config.weight_of("mlm"):
                masked, labels = self.masked_words(input_ids, mlm_input_ids, mlm_labels)
                states = self.text_model(masked, attention_mask).last_hidden_state
                fused = self.fuse(videos.last_hidden_state, states, attention_mask)
                losses["loss_mlm"] = masked_word_loss(cast(VideoTextMLMHead, self.mlm_head)(fused), labels)
            if targets is not None:
                mask = self.mask_or_none_hidden(pixel_values, bool_masked_pos)
                grid = self.grid_of(pixel_values)
                losses["loss_uta"] = self.vision_model.align(videos.hidden_states, grid, mask, targets)[1]
            output.loss_dict = losses
            weighted = [self.config.weight_of(name) * losses[f"loss_{name}"] for name in LOSSES]
            output.loss = torch.stack(weighted).sum()
        return output

    def alignment_targets(
        self,
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None,
        teacher_features: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The mask, drawn if there is a teacher and none is given, and what the visible tokens are aligned with."""
        config, tower = self.config, self.vision_model
        if not config.weight_of("uta") or (tower.teacher is None and teacher_features is None):
            return bool_masked_pos, None
        is_image = pixel_values.shape[1] == 1
        mask_type, ratio = config.video_mask_type, config.video_mask_ratio
        if is_image:
            mask_type, ratio = config.image_mask_type, config.image_mask_ratio
        if teacher_features is None and bool_masked_pos is None and mask_type != "none":
            generators = [torch.default_generator] * len(pixel_values)
            drawn = tower.draw_masks(pixel_values, generators, mask_type, mask_ratio=ratio)
            bool_masked_pos, targets = drawn["bool_masked_pos"], drawn["labels"]
        else:
            if teacher_features is None:
                features, _ = tower.teacher(pixel_values, tower.config, tower.config.num_aligned_layers)
            else:
                features = teacher_features.transpose(0, 1)
            targets = tower.targets_of(features, self.mask_or_none_hidden(pixel_values, bool_masked_pos))
        return bool_masked_pos, None if config.align_images_only and not is_image else targets

    def mask_or_none_hidden(self, pixel_values: torch.Tensor, bool_masked_pos: torch.Tensor | None) -> torch.Tensor:
        """The mask, or one that hides nothing."""
        if bool_masked_pos is not None:
            return bool_masked_pos
        num_patches = math.prod(self.grid_of(pixel_values))
        return torch.zeros(len(pixel_values), num_patches, dtype=torch.bool, device=pixel_values.device)

    def grid_of(self, pixel_values: torch.Tensor) -> tuple[int, int, int]:
        """Token grid (t, h, w) of an input."""
        num_frames, _, height, width = pixel_values.shape[1:]
        return self.config.vision_config.token_grid_of(num_frames, height, width)

    def contrast(self, video_embeds: torch.Tensor, text_embeds: torch.Tensor, video_ids: torch.Tensor) -> torch.Tensor:
        """Loss of the contrast of all videos and texts, of all processes if `config.gather_negatives`."""
        videos, texts = mean_direction(video_embeds), unit_vectors(text_embeds)
        if self.config.gather_negatives:
            scale = self.config.original_gradient_scale
            videos, texts, video_ids = (gather_from_processes(each, scale) for each in (videos, texts, video_ids))
        return contrastive_loss(videos @ texts.T / self.temperature, video_ids)

    def matching(
        self,
        videos: BaseModelOutputWithPooling,
        texts: BaseModelOutputWithPooling,
        attention_mask: torch.Tensor,
        video_negatives: torch.Tensor,
        text_negatives: torch.Tensor,
    ) -> torch.Tensor:
        """Loss of the matching: each pair, each text with another video, each video with another text."""
        video, text = videos.last_hidden_state, texts.last_hidden_state
        match_logits = self.match(
            torch.cat([video, video[video_negatives], video]),
            torch.cat([text, text, text[text_negatives]]),
            torch.cat([attention_mask, attention_mask, attention_mask[text_negatives]]),
        )
        return matching_loss(match_logits)

    def masked_words(
        self, input_ids: torch.Tensor, mlm_input_ids: torch.Tensor | None, mlm_labels: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Masked text and labels, drawn unless given."""
        config = self.config
        if mlm_input_ids is not None and mlm_labels is not None:
            return mlm_input_ids, mlm_labels
        if mlm_input_ids is not None or mlm_labels is not None or config.mask_token_id is None:
            raise ValueError(
                "Give both `mlm_input_ids` and `mlm_labels`, or neither and the tokenizer's `mask_token_id` in the "
                "configuration, by which they are drawn."
            )
        never_masked = [token for token in (config.cls_token_id, config.text_config.pad_token_id) if token is not None]
        vocab_size = config.text_config.vocab_size
        return mask_tokens(input_ids, config.mlm_probability, vocab_size, config.mask_token_id, never_masked)


__all__ = ["VideoTextDualEncoderModel", "VideoTextDualEncoderOutput", "VideoTextDualEncoderPreTrainedModel"]
