"""PyTorch MemoryBankQFormer: the Q-Former of MA-LMM, which reads a video frame by frame with an explicit memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.instructblip.modeling_instructblip import (
    InstructBlipQFormerIntermediate,
    InstructBlipQFormerOutput,
    InstructBlipQFormerSelfOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_memory_bank_qformer import MemoryBankQFormerConfig
from .frame_bank import Bank
from .frames_memory_bank_qformer import check_inputs, last_frames, uniform_spans, visible_text
from .loss_memory_bank_qformer import classification_loss
from .memory_bank import MemoryBank
from .relative_positions_memory_bank_qformer import add_relative_scores, uses_relative_positions
from .views_memory_bank_qformer import average_views, flatten_views
from .vision_memory_bank_qformer import encode_frames, make_vision_model


@dataclass
class MemoryBankQFormerModelOutput(ModelOutput):
    """
    Output of [`MemoryBankQFormerModel`].

    Args:
        last_hidden_state (`torch.FloatTensor` of shape `(batch_size, num_query_tokens, hidden_size)`):
            The queries after the last frame of each video; zeros for a video without a frame in this call.
        pooler_output (`torch.FloatTensor` of shape `(batch_size, num_tokens, projection_dim)`, *optional*):
            From [`~MemoryBankQFormerModel.get_video_features`]: the tokens for the language model.
        text_hidden_state (`torch.FloatTensor` of shape `(batch_size, text_length, hidden_size)`, *optional*):
            The text after the last frame.
        frame_hidden_states (`torch.FloatTensor` of shape `(batch_size, num_frames, num_query_tokens, hidden_size)`,
            *optional*): the queries after every frame; zeros where a video has none.
        memory ([`MemoryBank`], *optional*):
            To be passed with the frames that follow.
        hidden_states, attentions, cross_attentions (`tuple[torch.FloatTensor]`, *optional*):
            Of the pass over the last frame, where it is one pass for all videos. Keys are those of the bank and of
            the frame itself.
    """

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    text_hidden_state: torch.Tensor | None = None
    frame_hidden_states: torch.Tensor | None = None
    memory: MemoryBank | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    cross_attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class MemoryBankQFormerForVideoClassificationOutput(ModelOutput):
    """
    Output of [`MemoryBankQFormerForVideoClassification`].

    Args:
        loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
            Of the logits against the labels.
        logits (`torch.FloatTensor` of shape `(batch_size, num_labels)`):
            Scores after the last frame.
        memory, hidden_states, attentions, cross_attentions (*optional*):
            As in [`MemoryBankQFormerModelOutput`].
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    memory: MemoryBank | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    cross_attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class MemoryBankQFormerEncoderOutput(ModelOutput):
    """
    One pass over one frame: `last_hidden_state` of queries and text, and in `layer_inputs` what each layer got, which
    is what the query banks store.
    """

    last_hidden_state: torch.Tensor | None = None
    layer_inputs: tuple[torch.Tensor, ...] | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    cross_attentions: tuple[torch.Tensor, ...] | None = None


class MemoryBankQFormerEmbeddings(nn.Module):
    """Queries, which have no positions, and behind them the text with its positions, normalised."""

    def __init__(self, config: MemoryBankQFormerConfig):
        super().__init__()
        qformer = config.qformer_config
        self.word_embeddings: Any = None
        self.position_embeddings: Any = None
        if config.use_qformer_text_input:
            self.word_embeddings = nn.Embedding(
                qformer.vocab_size, qformer.hidden_size, padding_idx=qformer.pad_token_id
            )
            if getattr(qformer, "position_embedding_type", "absolute") == "absolute":
                self.position_embeddings = nn.Embedding(qformer.max_position_embeddings, qformer.hidden_size)
        self.layernorm = nn.LayerNorm(qformer.hidden_size, eps=qformer.layer_norm_eps)
        self.dropout = nn.Dropout(qformer.hidden_dropout_prob)

    def forward(self, query_embeds: torch.Tensor, input_ids: torch.Tensor | None = None) -> torch.Tensor:
        embeddings = query_embeds
        if input_ids is not None:
            text = self.word_embeddings(input_ids)
            if self.position_embeddings is not None:
                text = text + self.position_embeddings(torch.arange(input_ids.shape[1], device=input_ids.device))
            embeddings = torch.cat([query_embeds, text.to(query_embeds)], dim=1)
        return self.dropout(self.layernorm(embeddings.to(self.layernorm.weight.dtype)))


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = (query * scaling) @ key.transpose(2, 3)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class MemoryBankQFormerMultiHeadAttention(nn.Module):
    """
    Attention to what a bank holds and to the frame at hand.

    With a `bank`, `states` is the frame alone, and the keys and values of the entries come from the bank. Without one
    `states` is all there is to see, and all of its keys and values are computed, with their gradients.
    """

    def __init__(self, config: MemoryBankQFormerConfig, layer_idx: int, is_cross_attention: bool):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        hidden_size = config.qformer_config.hidden_size
        self.head_dim = hidden_size // config.qformer_config.num_attention_heads
        self.dropout_prob = config.qformer_config.attention_probs_dropout_prob
        self.scaling = self.head_dim**-0.5
        self.is_causal = False
        states_size = config.qformer_config.encoder_hidden_size if is_cross_attention else hidden_size
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(states_size, hidden_size)
        self.value = nn.Linear(states_size, hidden_size)
        self.distance_embedding = None
        if uses_relative_positions(config, is_cross_attention):
            num_distances = 2 * config.qformer_config.max_position_embeddings - 1
            self.distance_embedding = nn.Embedding(num_distances, self.head_dim)

    def project(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.key(states), self.value(states)

    def forward(
        self,
        hidden_states: torch.Tensor,
        states: torch.Tensor,
        bank: Bank | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query = self.query(hidden_states)
        key, value = (
            self.project(states) if bank is None else bank.keys_and_values(self.layer_idx, self.project, states)
        )
        query, key, value = (
            tensor.to(query.dtype).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for tensor in (query, key, value)
        )
        if self.distance_embedding is not None:
            table = self.distance_embedding.weight
            attention_mask = add_relative_scores(self.config, table, query, key, self.scaling, attention_mask)
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        context, weights = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.dropout_prob if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return context.flatten(2), weights


class MemoryBankQFormerAttention(nn.Module):
    def __init__(self, config: MemoryBankQFormerConfig, layer_idx: int, is_cross_attention: bool = False):
        super().__init__()
        self.attention = MemoryBankQFormerMultiHeadAttention(config, layer_idx, is_cross_attention)
        self.output = InstructBlipQFormerSelfOutput(config.qformer_config)

    def forward(self, hidden_states: torch.Tensor, states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        context, _ = self.attention(hidden_states, states, **kwargs)
        return self.output(context, hidden_states)


class MemoryBankQFormerLayer(GradientCheckpointingLayer):
    """Post-norm transformer block. Only queries look at the frame; queries and text have their own feed-forwards."""

    def __init__(self, config: MemoryBankQFormerConfig, layer_idx: int):
        super().__init__()
        qformer = config.qformer_config
        self.num_query_tokens = config.num_query_tokens
        self.self_attention = MemoryBankQFormerAttention(config, layer_idx)
        self.cross_attention = None
        if layer_idx % qformer.cross_attention_frequency == 0:
            self.cross_attention = MemoryBankQFormerAttention(config, layer_idx, is_cross_attention=True)
        self.intermediate_query = InstructBlipQFormerIntermediate(qformer)
        self.output_query = InstructBlipQFormerOutput(qformer)
        self.intermediate = self.output = None
        if config.use_qformer_text_input:
            self.intermediate = InstructBlipQFormerIntermediate(qformer)
            self.output = InstructBlipQFormerOutput(qformer)

    def forward(
        self,
        hidden_states: torch.Tensor,
        vision_states: torch.Tensor,
        past_states: torch.Tensor | None = None,
        query_bank: Bank | None = None,
        visual_bank: Bank | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        states = hidden_states if past_states is None else torch.cat([past_states.to(hidden_states), hidden_states], 1)
        attended = self.self_attention(hidden_states, states, bank=query_bank, attention_mask=attention_mask, **kwargs)
        queries, text = attended[:, : self.num_query_tokens], attended[:, self.num_query_tokens :]
        if self.cross_attention is not None:
            queries = self.cross_attention(queries, vision_states, bank=visual_bank, **kwargs)
        queries = self.output_query(self.intermediate_query(queries), queries)
        if self.intermediate is None or self.output is None or not text.shape[1]:
            return queries
        return torch.cat([queries, self.output(self.intermediate(text), text)], dim=1)


class MemoryBankQFormerFramePositions(nn.Embedding):
    """One vector for each frame, added to all of its tokens; zeros where a checkpoint does not have them."""


class MemoryBankQFormerPreTrainedModel(PreTrainedModel):
    config: MemoryBankQFormerConfig
    config_class = MemoryBankQFormerConfig
    base_model_prefix = "memory_bank_qformer"
    main_input_name = "pixel_values"
    input_modalities = ("video", "text")
    supports_gradient_checkpointing = True
    _supports_views = True
    _no_split_modules = ["MemoryBankQFormerEmbeddings", "MemoryBankQFormerLayer", "InstructBlipEncoderLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MemoryBankQFormerModel):
            init.normal_(module.query_tokens, std=self.config.initializer_range)
        elif isinstance(module, MemoryBankQFormerFramePositions):
            init.zeros_(module.weight)

    def _set_gradient_checkpointing(self, enable: bool = True, **kwargs: Any) -> None:
        """Transformers' switch, and then that of the vision tower, which may choose among its layers."""
        super()._set_gradient_checkpointing(enable, **kwargs)
        tower = getattr(self.base_model, "vision_model", None)
        if tower is not None and tower.supports_gradient_checkpointing:
            tower._set_gradient_checkpointing(enable, **kwargs)


class MemoryBankQFormerEncoder(MemoryBankQFormerPreTrainedModel):
    """The Q-Former's pass over one frame."""

    _can_record_outputs = {
        "hidden_states": MemoryBankQFormerLayer,
        "attentions": OutputRecorder(MemoryBankQFormerMultiHeadAttention, index=1, layer_name="self_attention"),
        "cross_attentions": OutputRecorder(MemoryBankQFormerMultiHeadAttention, index=1, layer_name="cross_attention"),
    }

    def __init__(self, config: MemoryBankQFormerConfig):
        super().__init__(config)
        self.embeddings = MemoryBankQFormerEmbeddings(config)
        num_layers = config.qformer_config.num_hidden_layers
        self.layers = nn.ModuleList([MemoryBankQFormerLayer(config, i) for i in range(num_layers)])
        self.post_init()

    @capture_outputs
    def forward(
        self,
        query_embeds: torch.Tensor,
        vision_states: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        memory: MemoryBank | None = None,
        reuse_projections: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerEncoderOutput:
        """
        Args:
            query_embeds: `(batch_size, num_query_tokens, hidden_size)`.
            vision_states: the frame, `(batch_size, num_tokens, encoder_hidden_size)`.
            input_ids: the text, `(batch_size, text_length)`.
            attention_mask: 0 for padding of the text, `(batch_size, text_length)`.
            memory: read, not changed, but for kept keys and values.
            reuse_projections: whether keys and values of the memory's entries are kept between frames, which leaves
                them without gradients.
        """
        hidden_states = self.embeddings(query_embeds, input_ids)
        query_banks: list[Bank] = memory.query if memory is not None else []
        visual_bank = memory.visual if memory is not None else None
        num_entries = query_banks[0].entries_of_each if query_banks else 0
        if attention_mask is not None:
            mask = F.pad(attention_mask, (self.config.num_query_tokens, 0), value=1).repeat(1, num_entries + 1)
            attention_mask = create_bidirectional_mask(
                config=self.config,
                inputs_embeds=hidden_states,
                attention_mask=mask,
                encoder_hidden_states=mask[..., None].to(hidden_states),
            )
        if visual_bank is not None and not reuse_projections:
            past = visual_bank.states.flatten(1, 2).to(vision_states)
            vision_states, visual_bank = torch.cat([past, vision_states], dim=1), None

        layer_inputs = []
        for i, layer in enumerate(self.layers):
            layer_inputs.append(hidden_states)
            query_bank = query_banks[i] if query_banks else None
            past_states = None
            if query_bank is not None and not reuse_projections:
                past_states, query_bank = query_bank.states.flatten(1, 2), None
            hidden_states = layer(
                hidden_states,
                vision_states,
                past_states,
                query_bank=query_bank,
                visual_bank=visual_bank,
                attention_mask=attention_mask,
                **kwargs,
            )
        return MemoryBankQFormerEncoderOutput(last_hidden_state=hidden_states, layer_inputs=tuple(layer_inputs))


class MemoryBankQFormerModel(MemoryBankQFormerPreTrainedModel):
    """
    Vision tower, Q-Former with memory banks, and the projection to a language model where there is one.

    Args:
        config ([`MemoryBankQFormerConfig`]): the architecture.
    """

    def __init__(self, config: MemoryBankQFormerConfig):
        super().__init__(config)
        width, hidden_size = config.qformer_config.encoder_hidden_size, config.qformer_config.hidden_size
        self.vision_model = make_vision_model(config)
        self.vision_layernorm = None
        if self.vision_model is not None:
            self.vision_layernorm = nn.LayerNorm(width, eps=config.vision_layer_norm_eps)
        self.has_memory = config.memory_bank_length > 0 and (config.visual_memory or config.query_memory)
        self.frame_position_embeddings = None
        if self.has_memory and config.visual_memory:
            self.frame_position_embeddings = MemoryBankQFormerFramePositions(config.max_num_frames, width)
        self.query_tokens = nn.Parameter(torch.empty(1, config.num_query_tokens, hidden_size))
        self.qformer = MemoryBankQFormerEncoder(config)
        self.language_projection = None
        if config.projection_dim is not None and config.use_language_projection is not False:
            self.language_projection = nn.Linear(hidden_size, config.projection_dim)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module | None:
        return self.qformer.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.qformer.embeddings.word_embeddings = value

    def get_vision_embeds(
        self, pixel_values: torch.Tensor, interpolate_pos_encoding: bool | None = True
    ) -> torch.Tensor:
        """
        Normalised tokens of the vision tower, what `forward` takes as `vision_embeds`: `(batch_size, num_frames,
        num_tokens, hidden_size)` of `pixel_values` `(batch_size, num_frames, num_channels, height, width)`. See
        `forward` for `interpolate_pos_encoding`.
        """
        if self.vision_model is None or self.vision_layernorm is None:
            raise ValueError(
                "This model has no vision tower, its `vision_config` is null: pass `vision_embeds`, or set a "
                "`vision_config`."
            )
        states = encode_frames(self.vision_model, self.config, pixel_values, interpolate_pos_encoding)
        return self.vision_layernorm(states)

    def uses_memory(self, use_memory: bool | None) -> bool:
        """Whether frames know of each other in a call with this option."""
        return self.has_memory and (use_memory is None or bool(use_memory))

    @can_return_tuple
    def get_video_features(
        self,
        pixel_values: torch.Tensor | None = None,
        qformer_input_ids: torch.Tensor | None = None,
        qformer_attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerModelOutput:
        """
        What a language model is to read: the output of `forward`, of which all arguments are understood, with the
        projected queries in `pooler_output`: of the last frame or, without memory, of every frame in order.

        Raises:
            ValueError: if the model has no projection, besides the reasons of `forward`.
        """
        if self.language_projection is None:
            raise ValueError(
                "There is no projection: set `text_config` to a language model's, or `projection_dim`, and leave "
                "`use_language_projection` true."
            )
        if not self.uses_memory(kwargs.get("use_memory")):
            kwargs["output_frame_hidden_states"] = True
        outputs = self(
            pixel_values,
            qformer_input_ids=qformer_input_ids,
            qformer_attention_mask=qformer_attention_mask,
            return_dict=True,
            **kwargs,
        )
        tokens = outputs.last_hidden_state
        if outputs.memory is None:
            tokens = outputs.frame_hidden_states.flatten(1, 2)
        outputs.pooler_output = self.language_projection(tokens)
        return outputs

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        vision_embeds: torch.Tensor | None = None,
        qformer_input_ids: torch.Tensor | None = None,
        qformer_attention_mask: torch.Tensor | None = None,
        memory: MemoryBank | None = None,
        use_memory: bool | None = True,
        output_frame_hidden_states: bool | None = False,
        frame_attention_mask: torch.Tensor | None = None,
        interpolate_pos_encoding: bool | None = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerModelOutput:
        r"""
        Read frames one after the other. A call with several frames equals as many calls with one that hand the memory
        on, to rounding. An option that is `None` has its default.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames.
            vision_embeds (`torch.FloatTensor` of shape `(batch_size, num_frames, num_tokens, hidden_size)`):
                Instead of `pixel_values`, what [`~MemoryBankQFormerModel.get_vision_embeds`] makes of them.
            qformer_input_ids (`torch.LongTensor` of shape `(batch_size, text_length)`, *optional*):
                Text for the Q-Former, the same in every call of a video.
            qformer_attention_mask (`torch.LongTensor` of shape `(batch_size, text_length)`, *optional*):
                0 for padding.
            memory ([`MemoryBank`], *optional*):
                Of the frames before, grown in place. New videos begin without one.
            use_memory (`bool`, defaults to `True`):
                Whether frames know of each other. If not, each is encoded on its own, as with `memory_bank_length=0`.
            output_frame_hidden_states (`bool`, defaults to `False`):
                Whether to return the queries after every frame. Gradients then reach every frame's pass; otherwise
                that of the last frame alone, and memory does not grow with the number of frames.
            frame_attention_mask (`torch.BoolTensor` of shape `(batch_size, num_frames)`, *optional*):
                False for frames that a video does not have. They leave its memory as it is.
            interpolate_pos_encoding (`bool`, defaults to `True`):
                Whether the vision tower's position embeddings follow frames of another size than its own. Without, the
                tower refuses them. A tower that does not know this option does as it does.

        Returns:
            [`MemoryBankQFormerModelOutput`].

        Raises:
            ValueError: for inputs of a wrong shape, that contradict each other, or that do not fit the memory.
        """
        frames, has_frame = check_inputs(
            self.config, pixel_values, vision_embeds, frame_attention_mask, qformer_input_ids, qformer_attention_mask
        )
        use_memory = self.uses_memory(use_memory)
        if memory is not None and not use_memory:
            raise ValueError("A `memory` was passed to a model or a call that uses none: leave it out.")
        output_frame_hidden_states = bool(output_frame_hidden_states)
        if not use_memory and not output_frame_hidden_states:
            frames, has_frame = last_frames(frames, has_frame)
        if vision_embeds is None:
            every_frame = output_frame_hidden_states or not has_frame.all()
            num_constant = 0 if every_frame else frames.shape[1] - 1
            parts = []
            if num_constant:
                with torch.no_grad():
                    parts.append(self.get_vision_embeds(frames[:, :num_constant], interpolate_pos_encoding))
            parts.append(self.get_vision_embeds(frames[:, num_constant:], interpolate_pos_encoding))
            frames = torch.cat(parts, dim=1)
        text = (qformer_input_ids, qformer_attention_mask)
        if not use_memory:
            return self.read_frames_alone(frames, has_frame, *text, output_frame_hidden_states, **kwargs)
        if memory is None:
            memory = MemoryBank(self.config.memory_bank_length, self.config.memory_policy)
        return self.read_frames(frames, has_frame, *text, memory, output_frame_hidden_states, **kwargs)

    def read_frames_alone(
        self,
        vision_embeds: torch.Tensor,
        has_frame: torch.Tensor,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        output_frame_hidden_states: bool,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerModelOutput:
        """`forward` without memory: frames are a batch."""
        batch_size, num_frames = has_frame.shape
        if input_ids is not None:
            input_ids = input_ids.repeat_interleave(num_frames, 0)
        if attention_mask is not None:
            attention_mask = attention_mask.repeat_interleave(num_frames, 0)
        query_embeds = self.query_tokens.expand(batch_size * num_frames, -1, -1)
        # Whatever stands in place of a frame, a NaN too, must reach neither outputs nor gradients.
        is_missing = ~has_frame.to(vision_embeds.device)[..., None, None]
        vision_embeds = vision_embeds.masked_fill(is_missing, 0).flatten(0, 1)
        outputs = self.qformer(query_embeds, vision_embeds, input_ids, attention_mask, return_dict=True, **kwargs)
        states = outputs.last_hidden_state.unflatten(0, (batch_size, num_frames)).masked_fill(is_missing, 0)
        return self.make_output(last_frames(states, has_frame)[0][:, 0], states, output_frame_hidden_states, outputs)

    def read_frames(
        self,
        vision_embeds: torch.Tensor,
        has_frame: torch.Tensor,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        memory: MemoryBank,
        output_frame_hidden_states: bool,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerModelOutput:
        """`forward` with memory: frames are a loop."""
        batch_size, num_frames = has_frame.shape
        text_length = 0 if input_ids is None else input_ids.shape[1]
        qformer = self.config.qformer_config
        sizes = (self.config.num_query_tokens + text_length, qformer.hidden_size)
        dtype = self.qformer.embeddings.layernorm.weight.dtype
        memory.prepare(
            batch_size,
            visual_size=(vision_embeds.shape[2], vision_embeds.shape[3]) if self.config.visual_memory else None,
            query_sizes=[sizes] * (qformer.num_hidden_layers if self.config.query_memory else 0),
            dtype=dtype,
            device=vision_embeds.device,
            text_ids=visible_text(input_ids, attention_mask),
        )
        vision_embeds = vision_embeds.to(dtype)
        last = vision_embeds.new_zeros(batch_size, *sizes)
        every = vision_embeds.new_zeros(batch_size, num_frames if output_frame_hidden_states else 0, *sizes)
        # Recording every frame's pass would keep all of them in memory.
        silent = {**kwargs, "output_hidden_states": False, "output_attentions": False}
        outputs = None
        for rows, span in uniform_spans(memory, has_frame.tolist()):
            part = memory if len(rows) == batch_size else memory.take(rows)
            on_device = rows.to(vision_embeds.device)
            ids, mask = (None if tensor is None else tensor[on_device] for tensor in (input_ids, attention_mask))
            for t in span:
                is_last = not has_frame[rows, t + 1 :].any(1).all()
                with torch.set_grad_enabled(torch.is_grad_enabled() and bool(is_last or output_frame_hidden_states)):
                    options = kwargs if is_last else silent
                    outputs = self.read_frame(vision_embeds[on_device, t], ids, mask, part, **options)
                    states = cast(torch.Tensor, outputs.last_hidden_state).to(dtype)
                    if is_last:
                        last[on_device] = states
                    if output_frame_hidden_states:
                        every[on_device, t] = states
            if part is not memory:
                memory.put(rows, part)
                outputs = None
        if self.training:
            # The next call is likely to come with other weights.
            memory.drop_projections()
        return self.make_output(last, every, output_frame_hidden_states, outputs, memory)

    def read_frame(
        self,
        vision_states: torch.Tensor,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        memory: MemoryBank,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerEncoderOutput:
        """The Q-Former's pass over one frame `(batch_size, num_tokens, hidden_size)`, which then enters the memory."""
        if self.frame_position_embeddings is not None:
            positions = self.frame_positions(memory.frames_seen).to(vision_states.device)
            vision_states = vision_states + self.frame_position_embeddings(positions)[:, None].to(vision_states)
        query_embeds = self.query_tokens.expand(len(vision_states), -1, -1)
        reuse_projections = not torch.is_grad_enabled()
        if not reuse_projections:
            memory.drop_projections()
        outputs = self.qformer(
            query_embeds,
            vision_states,
            input_ids,
            attention_mask,
            memory,
            reuse_projections,
            return_dict=True,
            **kwargs,
        )
        memory.append(vision_states, outputs.layer_inputs, outputs.last_hidden_state[:, : query_embeds.shape[1]])
        return outputs

    def frame_positions(self, frames_seen: torch.Tensor) -> torch.Tensor:
        """Rows of the table of frame positions for the frames of these numbers, int64."""
        if self.config.frame_position_overflow == "scale":
            frames_seen = frames_seen * self.config.max_num_frames // cast(int, self.config.expected_num_frames)
        return frames_seen.clamp(max=self.config.max_num_frames - 1)

    def make_output(
        self,
        last: torch.Tensor,
        every: torch.Tensor,
        output_frame_hidden_states: bool,
        outputs: MemoryBankQFormerEncoderOutput | None,
        memory: MemoryBank | None = None,
    ) -> MemoryBankQFormerModelOutput:
        """Queries and text told apart, in `last` `(batch_size, length, size)` and `every`, which has frames too."""
        num_queries = self.config.num_query_tokens
        return MemoryBankQFormerModelOutput(
            last_hidden_state=last[:, :num_queries],
            text_hidden_state=last[:, num_queries:] if last.shape[1] > num_queries else None,
            frame_hidden_states=every[:, :, :num_queries] if output_frame_hidden_states else None,
            memory=memory,
            hidden_states=None if outputs is None else outputs.hidden_states,
            attentions=None if outputs is None else outputs.attentions,
            cross_attentions=None if outputs is None else outputs.cross_attentions,
        )


class MemoryBankQFormerForVideoClassification(MemoryBankQFormerPreTrainedModel):
    """A linear classifier on the mean of the queries after the last frame; `num_labels=0` gives that mean itself."""

    def __init__(self, config: MemoryBankQFormerConfig):
        config = config.with_language_projection(False)
        super().__init__(config)
        self.num_labels = config.num_labels
        self.memory_bank_qformer = MemoryBankQFormerModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        hidden_size = config.qformer_config.hidden_size
        self.classifier = nn.Linear(hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.loss_function = classification_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerForVideoClassificationOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames. These and all other arguments of [`MemoryBankQFormerModel`] are understood. Or
                `(batch_size, num_views, ...)`, clips and crops whose logits `average_views` merges; other inputs and
                the memory then have a row for each view.
            labels (`torch.Tensor`, *optional*):
                Class indices `(batch_size,)`, int64, for the cross-entropy; targets in [0, 1] `(batch_size,
                num_labels)`, float, for multi-label classification; values for regression. `config.problem_type`
                decides, or the labels' dtype the first time.

        Returns:
            [`MemoryBankQFormerForVideoClassificationOutput`] with `logits` of shape `(batch_size, num_labels)`.
        """
        clips = None if pixel_values is None else flatten_views(pixel_values)
        outputs: MemoryBankQFormerModelOutput = self.memory_bank_qformer(clips, return_dict=True, **kwargs)
        pooled = cast(torch.Tensor, outputs.last_hidden_state).mean(dim=1)
        logits = self.classifier(self.dropout(pooled))
        if pixel_values is not None:
            logits = average_views(logits, pixel_values, self.config)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return MemoryBankQFormerForVideoClassificationOutput(
            loss=loss,
            logits=logits,
            memory=outputs.memory,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
        )


__all__ = [
    "MemoryBankQFormerForVideoClassification",
    "MemoryBankQFormerForVideoClassificationOutput",
    "MemoryBankQFormerModel",
    "MemoryBankQFormerModelOutput",
    "MemoryBankQFormerPreTrainedModel",
]
