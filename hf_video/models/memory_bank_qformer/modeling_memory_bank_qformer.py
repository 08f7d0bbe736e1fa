"""PyTorch MemoryBankQFormer: the Q-Former of MA-LMM, which reads a video frame by frame with an explicit memory."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModel, InstructBlipVisionConfig, InstructBlipVisionModel
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.instructblip.modeling_instructblip import (
    InstructBlipQFormerIntermediate,
    InstructBlipQFormerOutput,
    InstructBlipQFormerSelfOutput,
)
from transformers.models.videomae.modeling_videomae import eager_attention_forward
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ..shared_video import VideoClassifierMixin, VideoPreTrainedModel
from .configuration_memory_bank_qformer import MemoryBankQFormerConfig
from .memory_bank import MemoryBank, unfinished_on_error
from .token_bank import TokenBank

# Number of frames in one pass of the vision tower. It bounds the tower's use of memory in long videos.
FRAMES_PER_TOWER_PASS = 32


@dataclass
class MemoryBankQFormerModelOutput(ModelOutput):
    """
    Output of [`MemoryBankQFormerModel`].

    Args:
        last_hidden_state (`torch.FloatTensor` of shape `(batch_size, num_query_tokens, hidden_size)`):
            The queries after the last frame of each video; zeros for a video that has no frame in this call.
        pooler_output (`torch.FloatTensor` of shape `(batch_size, num_tokens, projection_dim)`, *optional*):
            Tokens for the language model, from [`~MemoryBankQFormerModel.get_video_features`].
        text_hidden_state (`torch.FloatTensor` of shape `(batch_size, text_length, hidden_size)`, *optional*):
            The text after the last frame.
        frame_hidden_states (`torch.FloatTensor` of shape `(batch_size, num_frames, num_query_tokens, hidden_size)`,
            *optional*): the queries after every frame; zeros for frames that a video does not have.
        memory ([`MemoryBank`], *optional*):
            The memory to pass with the next frames.
        hidden_states, attentions, cross_attentions (`tuple[torch.FloatTensor]`, *optional*):
            States and weights of the pass over the last frame, if that is one pass for all videos. The keys of the
            attentions are those of the bank and of the frame itself.
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
            Loss of the logits against the labels.
        logits (`torch.FloatTensor` of shape `(batch_size, num_labels)`):
            Scores after the last frame.
        memory, hidden_states, attentions, cross_attentions (*optional*):
            See [`MemoryBankQFormerModelOutput`].
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
    Output of one pass over one frame: `last_hidden_state` of queries and text, and in `layer_inputs` the input of each
    layer, which its query bank stores.
    """

    last_hidden_state: torch.Tensor | None = None
    layer_inputs: tuple[torch.Tensor, ...] | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    cross_attentions: tuple[torch.Tensor, ...] | None = None


class MemoryBankQFormerEmbeddings(nn.Module):
    """Input of the first layer: queries, which have no positions, followed by the text with its positions."""

    def __init__(self, config: MemoryBankQFormerConfig):
        super().__init__()
        qformer = config.qformer_config
        self.word_embeddings: Any = None
        self.position_embeddings: Any = None
        if config.use_qformer_text_input:
            self.word_embeddings = nn.Embedding(
                qformer.vocab_size, qformer.hidden_size, padding_idx=qformer.pad_token_id
            )
            self.position_embeddings = nn.Embedding(qformer.max_position_embeddings, qformer.hidden_size)
        self.layernorm = nn.LayerNorm(qformer.hidden_size, eps=qformer.layer_norm_eps)
        self.dropout = nn.Dropout(qformer.hidden_dropout_prob)

    def forward(self, query_embeds: torch.Tensor, input_ids: torch.Tensor | None = None) -> torch.Tensor:
        embeddings = query_embeds
        if input_ids is not None:
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            text = self.word_embeddings(input_ids) + self.position_embeddings(positions)
            embeddings = torch.cat([query_embeds, text.to(query_embeds)], dim=1)
        return self.dropout(self.layernorm(embeddings.to(self.layernorm.weight.dtype)))


class MemoryBankQFormerFramePositions(nn.Embedding):
    """One vector for each frame, added to all of its tokens. It starts as zeros, also if a checkpoint has none."""


class MemoryBankQFormerMultiHeadAttention(nn.Module):
    """
    Attention to the entries of a bank and to the current frame.

    With a `bank`, `states` are the current frame, and the bank has keys and values of its entries. Without one,
    `states` are all states to attend to: their keys and values are computed, and get gradients.
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

    def project(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.key(states), self.value(states)

    def forward(
        self,
        hidden_states: torch.Tensor,
        states: torch.Tensor,
        bank: TokenBank | None = None,
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
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        kwargs |= {"dropout": self.dropout_prob if self.training else 0.0, "scaling": self.scaling}
        context, weights = attention_interface(self, query, key, value, attention_mask, **kwargs)
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
    """
    Post-norm transformer block. Only the queries attend to the frame. Queries and text have a feed-forward network
    each.
    """

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
        query_bank: TokenBank | None = None,
        visual_bank: TokenBank | None = None,
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


class MemoryBankQFormerPreTrainedModel(VideoPreTrainedModel):
    config: MemoryBankQFormerConfig
    base_model_prefix = "memory_bank_qformer"
    input_modalities = ("video", "text")
    _supports_views = True
    _no_split_modules = ["MemoryBankQFormerEmbeddings", "MemoryBankQFormerLayer", "InstructBlipEncoderLayer"]
    _skip_keys_device_placement = ["cache", "memory"]
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


class MemoryBankQFormerEncoder(MemoryBankQFormerPreTrainedModel):
    """The Q-Former. One call is one pass over one frame."""

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
            vision_states: tokens of the frame, `(batch_size, num_tokens, encoder_hidden_size)`.
            input_ids: the text, `(batch_size, text_length)`.
            attention_mask: 0 for padding of the text, `(batch_size, text_length)`.
            memory: the frames before. It is read but not changed, except for its keys and values.
            reuse_projections: whether the memory keeps keys and values of its entries between frames. They get no
                gradients then.
        """
        hidden_states = self.embeddings(query_embeds, input_ids)
        query_banks: list[TokenBank] = memory.query if memory is not None else []
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


def make_vision_model(config: MemoryBankQFormerConfig) -> PreTrainedModel | None:
    """The vision tower of the configuration, if it has one. The model's own norm replaces the last norm of EVA-ViT."""
    if isinstance(config.vision_config, InstructBlipVisionConfig):
        vision_model = InstructBlipVisionModel._from_config(config.vision_config)
        vision_model.post_layernorm = nn.Identity()
        return vision_model
    return None if config.vision_config is None else AutoModel.from_config(config.vision_config)


def last_frames(frames: torch.Tensor, has_frame: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The last frame of each video, `(batch_size, 1, ...)`, and whether the video has any frame, `(batch_size, 1)`.

    Args:
        frames: `(batch_size, num_frames, ...)`.
        has_frame: bool `(batch_size, num_frames)`, on the CPU.
    """
    time = torch.arange(has_frame.shape[1], device="cpu")
    index = torch.where(has_frame, time, 0).amax(1).to(frames.device)
    return frames[torch.arange(len(frames), device=frames.device), index][:, None], has_frame.any(1, keepdim=True)


def uniform_spans(memory: MemoryBank, frames_of_video: list[list[bool]]) -> Iterator[tuple[torch.Tensor, range]]:
    """
    Divide a batch into parts that can be read together. Within a part all videos have the same frames, and all banks
    have the same number of entries.

    Args:
        memory: the memory of the batch. Its numbers of entries are read when a span of frames begins.
        frames_of_video: for each video, which frames it has.

    Yields:
        Rows of the batch, int64, and the span of frames.
    """
    start, num_frames = 0, len(frames_of_video[0])
    while start < num_frames:
        present = [frames[start] for frames in frames_of_video]
        stop = start + 1
        while stop < num_frames and [frames[stop] for frames in frames_of_video] == present:
            stop += 1
        rows_of_length: dict[int, list[int]] = {}
        banks = memory.banks()
        for row in (row for row, has_frame in enumerate(present) if has_frame):
            rows_of_length.setdefault(banks[0].num_entries[row] if banks else 0, []).append(row)
        for rows in rows_of_length.values():
            yield torch.tensor(rows, device="cpu"), range(start, stop)
        start = stop


class MemoryBankQFormerModel(MemoryBankQFormerPreTrainedModel):
    """
    Vision tower, Q-Former with memory banks, and projection to a language model, if the configuration has one.

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
        Normalised tokens of the vision tower, which `forward` takes as `vision_embeds`.

        Args:
            pixel_values: `(batch_size, num_frames, num_channels, height, width)`.
            interpolate_pos_encoding: see `forward`.

        Returns:
            `(batch_size, num_frames, num_tokens, hidden_size)`.

        Raises:
            ValueError: if the model has no vision tower, or the pixels have a wrong shape, size or dtype.
        """
        if self.vision_model is None or self.vision_layernorm is None:
            raise ValueError("This model has no vision tower: pass `vision_embeds`, or set a `vision_config`.")
        if not pixel_values.is_floating_point():
            raise ValueError(
                f"`pixel_values` must be floating-point numbers, got {pixel_values.dtype}: prepare frames with the "
                "processor of the model."
            )
        if pixel_values.ndim != 5:
            raise ValueError(
                "`pixel_values` must be (batch_size, num_frames, num_channels, height, width), got "
                f"{tuple(pixel_values.shape)}."
            )
        options: dict[str, Any] = {"return_dict": True}
        if "interpolate_pos_encoding" in inspect.signature(self.vision_model.forward).parameters:
            options["interpolate_pos_encoding"] = interpolate_pos_encoding is not False
            expected = getattr(self.config.vision_config, "image_size", None)
            expected, size = (expected, expected) if isinstance(expected, int) else expected, pixel_values.shape[-2:]
            if interpolate_pos_encoding is False and expected is not None and tuple(size) != tuple(expected):
                # EVA-ViT would add wrong positions.
                raise ValueError(
                    f"The frames have the size {tuple(size)}, the vision tower has positions for {tuple(expected)}: "
                    "resize them, or leave `interpolate_pos_encoding` true."
                )
        is_video_encoder = hasattr(self.config.vision_config, "tubelet_size")
        states = [
            self.vision_model(chunk[:, None] if is_video_encoder else chunk, **options).last_hidden_state
            for chunk in pixel_values.flatten(0, 1).split(FRAMES_PER_TOWER_PASS)
        ]
        return self.vision_layernorm(torch.cat(states).unflatten(0, pixel_values.shape[:2]))

    def uses_memory(self, use_memory: bool | None, use_visual_memory: bool | None = True) -> bool:
        """Whether a call with these options has a memory. `None` stands for the default, `True`."""
        has_bank = self.config.query_memory or (self.config.visual_memory and use_visual_memory is not False)
        return self.has_memory and use_memory is not False and has_bank

    @can_return_tuple
    def get_video_features(
        self,
        pixel_values: torch.Tensor | None = None,
        qformer_input_ids: torch.Tensor | None = None,
        qformer_attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerModelOutput:
        """
        What a language model reads of a video. Takes all arguments of `forward`.

        Returns:
            The output of `forward`, with projected queries in `pooler_output`: the queries of the last frame or,
            without memory, of every frame in order.

        Raises:
            ValueError: if the model has no projection, or for the reasons of `forward`.
        """
        if self.language_projection is None:
            raise ValueError("There is no projection: set `text_config` to a language model's, or `projection_dim`.")
        if not self.uses_memory(kwargs.get("use_memory"), kwargs.get("use_visual_memory")):
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
        use_visual_memory: bool | None = True,
        output_frame_hidden_states: bool | None = False,
        frame_attention_mask: torch.Tensor | None = None,
        interpolate_pos_encoding: bool | None = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerModelOutput:
        r"""
        Read frames one after the other. One call with several frames gives the same, up to rounding, as several calls
        with one frame each that pass the memory on. An option that is `None` has its default.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames.
            vision_embeds (`torch.FloatTensor` of shape `(batch_size, num_frames, num_tokens, hidden_size)`):
                Output of [`~MemoryBankQFormerModel.get_vision_embeds`], instead of `pixel_values`.
            qformer_input_ids (`torch.LongTensor` of shape `(batch_size, text_length)`, *optional*):
                Text for the Q-Former, the same in every call of a video.
            qformer_attention_mask (`torch.LongTensor` of shape `(batch_size, text_length)`, *optional*):
                0 for padding.
            memory ([`MemoryBank`], *optional*):
                Memory of the frames before; it grows in place. New videos begin without one.
            use_memory (`bool`, defaults to `True`):
                Whether frames are read with a memory. If not, each frame is encoded on its own, as with
                `memory_bank_length=0`.
            use_visual_memory (`bool`, defaults to `True`):
                Whether the memory has a visual bank. If not, the call reads as with `visual_memory=False`.
            output_frame_hidden_states (`bool`, defaults to `False`):
                Whether to return the queries after every frame. Gradients then reach the pass over every frame.
                Otherwise they reach only the last one, and the use of memory does not grow with the number of frames.
            frame_attention_mask (`torch.BoolTensor` of shape `(batch_size, num_frames)`, *optional*):
                False for frames that a video does not have. They leave its memory as it is.
            interpolate_pos_encoding (`bool`, defaults to `True`):
                Whether the position embeddings of the vision tower are interpolated if frames have another size than
                the tower. If not, such frames are refused. A tower without this option decides for itself.

        Returns:
            [`MemoryBankQFormerModelOutput`].

        Raises:
            ValueError: if inputs have a wrong shape, contradict each other, or do not fit the memory.
        """
        frames, has_frame = self.check_inputs(pixel_values, vision_embeds, frame_attention_mask, qformer_input_ids)
        use_memory = self.uses_memory(use_memory, use_visual_memory)
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
        self.prepare_memory(memory, frames, *text, use_visual_memory)
        with unfinished_on_error(memory):
            return self.read_frames(frames, has_frame, *text, memory, output_frame_hidden_states, **kwargs)

    def check_inputs(
        self,
        pixel_values: torch.Tensor | None,
        vision_embeds: torch.Tensor | None,
        frame_attention_mask: torch.Tensor | None,
        input_ids: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        The frames, as pixels or embedded, and which of them each video has: bool `(batch_size, num_frames)`, on the
        CPU. Raises `ValueError` if inputs have a wrong shape, or contradict each other.
        """
        frames = vision_embeds if pixel_values is None else pixel_values
        if frames is None or (pixel_values is not None and vision_embeds is not None):
            raise ValueError("Pass either `pixel_values` or `vision_embeds`.")
        width = self.config.qformer_config.encoder_hidden_size
        if vision_embeds is not None and (vision_embeds.ndim != 4 or vision_embeds.shape[-1] != width):
            raise ValueError(
                f"`vision_embeds` must be (batch_size, num_frames, num_tokens, {width}), got "
                f"{tuple(vision_embeds.shape)}."
            )
        batch_size, num_frames = sizes = tuple(frames.shape[:2])
        if not batch_size or not num_frames:
            raise ValueError(f"There are {batch_size} videos of {num_frames} frames: pass at least one of each.")
        has_frame = torch.ones(sizes, device="cpu") if frame_attention_mask is None else frame_attention_mask
        if has_frame.shape != sizes:
            raise ValueError(
                f"`frame_attention_mask` must be (batch_size, num_frames), here {sizes}, got {tuple(has_frame.shape)}."
            )
        longest = self.config.qformer_config.max_position_embeddings
        if input_ids is not None and not self.config.use_qformer_text_input:
            raise ValueError("This Q-Former reads no text: pass no `qformer_input_ids`.")
        if input_ids is not None and (len(input_ids) != batch_size or input_ids.shape[1] > longest):
            raise ValueError(
                f"`qformer_input_ids` must be (batch_size, text_length), here {batch_size} texts of at most {longest} "
                f"tokens, got {tuple(input_ids.shape)}."
            )
        return frames, has_frame.bool().cpu()

    def prepare_memory(
        self,
        memory: MemoryBank,
        vision_embeds: torch.Tensor,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        use_visual_memory: bool | None = True,
    ) -> None:
        """[`MemoryBank.prepare`] for frames `(batch_size, num_frames, num_tokens, hidden_size)` and their text."""
        config, text_ids = self.config, input_ids
        num_tokens, num_channels = vision_embeds.shape[2:]
        has_visual_bank = config.visual_memory and use_visual_memory is not False
        if input_ids is not None and attention_mask is not None:
            # Texts are compared, and the ids of padding have no meaning.
            text_ids = input_ids.masked_fill(attention_mask == 0, -1)
        length = config.num_query_tokens + (0 if input_ids is None else input_ids.shape[1])
        query_sizes = [(length, config.qformer_config.hidden_size)] * config.qformer_config.num_hidden_layers
        memory.prepare(
            len(vision_embeds),
            visual_size=(num_tokens, num_channels) if has_visual_bank else None,
            query_sizes=query_sizes if config.query_memory else [],
            dtype=self.qformer.embeddings.layernorm.weight.dtype,
            device=vision_embeds.device,
            text_ids=text_ids,
        )

    def read_frames_alone(
        self,
        vision_embeds: torch.Tensor,
        has_frame: torch.Tensor,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        output_frame_hidden_states: bool,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerModelOutput:
        """`forward` without memory: all frames are one batch."""
        batch_size, num_frames = has_frame.shape
        if input_ids is not None:
            input_ids = input_ids.repeat_interleave(num_frames, 0)
        if attention_mask is not None:
            attention_mask = attention_mask.repeat_interleave(num_frames, 0)
        query_embeds = self.query_tokens.expand(batch_size * num_frames, -1, -1)
        # The values of a missing frame, which may be NaN, must reach neither outputs nor gradients.
        is_missing = ~has_frame.to(vision_embeds.device)[..., None, None]
        vision_embeds = vision_embeds.masked_fill(is_missing, 0).flatten(0, 1)
        outputs = self.qformer(query_embeds, vision_embeds, input_ids, attention_mask, return_dict=True, **kwargs)
        states = outputs.last_hidden_state.unflatten(0, (batch_size, num_frames)).masked_fill(is_missing, 0)
        every = states if output_frame_hidden_states else None
        return self.make_output(last_frames(states, has_frame)[0][:, 0], every, outputs)

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
        """`forward` with a prepared memory: one frame after the other."""
        batch_size, num_frames = has_frame.shape
        text_length = 0 if input_ids is None else input_ids.shape[1]
        sizes = (self.config.num_query_tokens + text_length, self.config.qformer_config.hidden_size)
        dtype = self.qformer.embeddings.layernorm.weight.dtype
        vision_embeds = vision_embeds.to(dtype)
        last = vision_embeds.new_zeros(batch_size, *sizes)
        every = vision_embeds.new_zeros(batch_size, num_frames, *sizes) if output_frame_hidden_states else None
        # Recorded passes stay in memory, so only the last one is recorded.
        silent = {**kwargs, "output_hidden_states": False, "output_attentions": False}
        outputs = None
        for rows, span in uniform_spans(memory, has_frame.tolist()):
            part = memory if len(rows) == batch_size else memory.take(rows)
            on_device = rows.to(vision_embeds.device)
            ids, mask = (None if tensor is None else tensor[on_device] for tensor in (input_ids, attention_mask))
            for t in span:
                is_last = not has_frame[rows, t + 1 :].any(1).all()
                with torch.set_grad_enabled(torch.is_grad_enabled() and bool(is_last or every is not None)):
                    options = kwargs if is_last else silent
                    outputs = self.read_frame(vision_embeds[on_device, t], ids, mask, part, **options)
                    states = cast(torch.Tensor, outputs.last_hidden_state).to(dtype)
                    if is_last:
                        last[on_device] = states
                    if every is not None:
                        every[on_device, t] = states
            if part is not memory:
                memory.put(rows, part)
                outputs = None
        if self.training:
            # The weights are likely to change before the next call.
            memory.drop_projections()
        return self.make_output(last, every, outputs, memory)

    def read_frame(
        self,
        vision_states: torch.Tensor,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        memory: MemoryBank,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerEncoderOutput:
        """Run the Q-Former over one frame `(batch_size, num_tokens, hidden_size)` and add the frame to the memory."""
        if self.frame_position_embeddings is not None and memory.visual is not None:
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
            # By name, so that Accelerate leaves it where it is.
            memory=memory,
            reuse_projections=reuse_projections,
            return_dict=True,
            **kwargs,
        )
        memory.append(vision_states, outputs.layer_inputs, outputs.last_hidden_state[:, : query_embeds.shape[1]])
        return outputs

    def frame_positions(self, frames_seen: torch.Tensor) -> torch.Tensor:
        """Rows of the table of frame positions, int64, for frames that follow `frames_seen` others."""
        if self.config.frame_position_overflow == "scale":
            frames_seen = frames_seen * self.config.max_num_frames // cast(int, self.config.expected_num_frames)
        return frames_seen.clamp(max=self.config.max_num_frames - 1)

    def make_output(
        self,
        last: torch.Tensor,
        every: torch.Tensor | None,
        outputs: MemoryBankQFormerEncoderOutput | None,
        memory: MemoryBank | None = None,
    ) -> MemoryBankQFormerModelOutput:
        """The output of `forward`, with queries and text apart, from the states after the last frame and every frame,
        and from the output of the last pass, if it is one pass for all videos."""
        num_queries = self.config.num_query_tokens
        return MemoryBankQFormerModelOutput(
            last_hidden_state=last[:, :num_queries],
            text_hidden_state=last[:, num_queries:] if last.shape[1] > num_queries else None,
            frame_hidden_states=None if every is None else every[:, :, :num_queries],
            memory=memory,
            hidden_states=None if outputs is None else outputs.hidden_states,
            attentions=None if outputs is None else outputs.attentions,
            cross_attentions=None if outputs is None else outputs.cross_attentions,
        )


class MemoryBankQFormerForVideoClassification(VideoClassifierMixin, MemoryBankQFormerPreTrainedModel):
    """A linear classifier on the mean of the queries after the last frame. With `num_labels=0` it returns the mean."""

    _output_class = MemoryBankQFormerForVideoClassificationOutput

    def __init__(self, config: MemoryBankQFormerConfig):
        config = config.with_language_projection(False)
        super().__init__(config)
        self.num_labels = config.num_labels
        self.memory_bank_qformer = MemoryBankQFormerModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        hidden_size = config.qformer_config.hidden_size
        self.classifier = nn.Linear(hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.post_init()

    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerForVideoClassificationOutput:
        """
        Classify videos, with the arguments of [`MemoryBankQFormerModel`] and the `labels` of [`VideoClassifierMixin`].
        If `pixel_values` are several views of each video, other inputs and the memory have one row for each view.
        """
        return super().forward(pixel_values, labels, **kwargs)

    def read_clips(
        self, pixel_values: torch.Tensor | None, num_views: int, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple[MemoryBankQFormerModelOutput, torch.Tensor]:
        """The outputs of the Q-Former, and the features `(batch_size, hidden_size)`."""
        outputs: Any = self.memory_bank_qformer(pixel_values, return_dict=True, **kwargs)
        return outputs, outputs.last_hidden_state.mean(dim=1)


__all__ = [
    "MemoryBankQFormerForVideoClassification",
    "MemoryBankQFormerForVideoClassificationOutput",
    "MemoryBankQFormerModel",
    "MemoryBankQFormerModelOutput",
    "MemoryBankQFormerPreTrainedModel",
]
