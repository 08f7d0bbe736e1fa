"""PyTorch MemoryBankQFormer with a language model: frames and text in, text out."""

import copy
import inspect
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin, LogitsProcessorList, RepetitionPenaltyLogitsProcessor
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import BaseModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from .configuration_memory_bank_qformer import MemoryBankQFormerConfig
from .memory_bank import MemoryBank, replay_memory, unfinished_on_error
from .modeling_memory_bank_qformer import (
    MemoryBankQFormerModel,
    MemoryBankQFormerModelOutput,
    MemoryBankQFormerPreTrainedModel,
)

# Transformers 5.24 calls the cache of a language model `cache`; outputs then know its earlier name, too.
CACHE_NAME = "cache" if hasattr(ModelOutput, "past_key_values") else "past_key_values"


@dataclass
class MemoryBankQFormerForConditionalGenerationModelOutput(ModelOutput):
    """
    Output of [`MemoryBankQFormerForConditionalGeneration`].

    Args:
        loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
            Loss of the logits against the labels.
        logits (`torch.FloatTensor` of shape `(batch_size, sequence_length, vocab_size)`):
            Scores of the next token at each position of the text. If the configuration has no `video_token_id`, the
            positions of the video come before those of the text. For an encoder-decoder, the positions are the
            decoder's.
        cache ([`Cache`], *optional*):
            Cache of the language model; before Transformers 5.24 it is called `past_key_values`.
        video_embeds (`torch.FloatTensor` of shape `(batch_size, num_tokens, projection_dim)`, *optional*):
            The video as the language model reads it. A call that gets it back does not compute it again.
        memory ([`MemoryBank`], *optional*):
            The memory to pass with the next frames.
        hidden_states, attentions (`tuple[torch.FloatTensor]`, *optional*):
            States and weights of the language model; for an encoder-decoder, those of the decoder.
        encoder_last_hidden_state (`torch.FloatTensor` of shape `(batch_size, sequence_length, hidden_size)`,
            *optional*): output of the encoder, for an encoder-decoder.
        qformer_outputs ([`MemoryBankQFormerModelOutput`], *optional*):
            Outputs of the Q-Former, if it ran.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    if CACHE_NAME == "cache":
        cache: Any = None
    else:
        past_key_values: Any = None
    video_embeds: torch.Tensor | None = None
    memory: MemoryBank | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    encoder_last_hidden_state: torch.Tensor | None = None
    qformer_outputs: MemoryBankQFormerModelOutput | None = None

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(value.to_tuple() if isinstance(value, ModelOutput) else value for value in self.values())


@dataclass
class MemoryBankQFormerRankingOutput(ModelOutput):
    """
    Output of [`~MemoryBankQFormerForConditionalGeneration.rank_candidates`].

    Args:
        losses (`torch.FloatTensor` of shape `(batch_size, num_candidates)`):
            Negative log-likelihood of each candidate, in nats, summed over its tokens.
        ranks (`torch.LongTensor` of shape `(batch_size, num_candidates)`):
            Numbers of the candidates, the likeliest first.
    """

    losses: torch.Tensor | None = None
    ranks: torch.Tensor | None = None


# Keyword arguments of `generate` that do not go to the language model.
VIDEO_INPUTS = (
    *("video_embeds", "vision_embeds", "frame_attention_mask", "interpolate_pos_encoding"),
    *("memory", "use_memory", "qformer_input_ids", "qformer_attention_mask"),
)


class VideoInputs(NamedTuple):
    """
    A batch of videos as a language model reads it.

    Attributes:
        embeds: `(batch_size, num_tokens, projection_dim)`.
        mask: bool `(batch_size, num_tokens)`, False for tokens of frames that a video does not have.
        outputs: outputs of the Q-Former, if it made `embeds` in this call.
    """

    embeds: torch.Tensor
    mask: torch.Tensor
    outputs: MemoryBankQFormerModelOutput | None


class MemoryBankQFormerForConditionalGeneration(MemoryBankQFormerPreTrainedModel, GenerationMixin):
    """
    A language model that answers about a video. It reads the projected queries after the last frame, and text.

    If the configuration has a `video_token_id`, `input_ids` hold this token once for each query, and the queries
    replace it. If not, the queries are put before the text, and positions skip the padding between them.

    Args:
        config ([`MemoryBankQFormerConfig`]): the architecture. Its `text_config` belongs to a causal language model,
            or to an encoder-decoder, whose encoder reads video and prompt.

    Raises:
        ValueError: if the configuration has no `text_config`.
    """

    def __init__(self, config: MemoryBankQFormerConfig):
        config = config.with_language_projection(True)
        super().__init__(config)
        if config.text_config is None:
            raise ValueError("There is no language model: set `text_config` to the configuration of one.")
        self.memory_bank_qformer = MemoryBankQFormerModel(config)
        auto_class = AutoModelForSeq2SeqLM if config.text_config.is_encoder_decoder else AutoModelForCausalLM
        self.language_model = auto_class.from_config(config.text_config)
        if config.video_token_id is None or config.text_config.is_encoder_decoder:
            # `Trainer` knows by the loss's name whether labels are shifted, and then does not count the first label of
            # a text. Here that label counts: the video, or the decoder's start token, comes before it.
            self.loss_type, self.loss_function = None, ForCausalLMLoss
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """
        Does what the base class does, and checks that adapters are merged into the language model.

        Raises:
            ValueError: if the folder has layers and adapters apart. The layers would keep their initial weights.
        """
        model, report = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        if adapted := [name for name in report["unexpected_keys"] if ".base_layer." in name]:
            raise ValueError(
                f"{model.name_or_path} is a checkpoint of training with adapters, which are not merged into the "
                f"language model ({adapted[0]}, ...): finish its run with `hf-video train-answers ... --resume`, "
                "which writes the merged model, and load that."
            )
        return (model, report) if output_loading_info else model

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module | None:
        return self.language_model.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.language_model.set_output_embeddings(new_embeddings)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Does what the base class does, also for what else has one row for each token, such as the bias of BART."""
        embeddings = self.language_model.resize_token_embeddings(*args, **kwargs)
        self.vocab_size = self.config.text_config.vocab_size = self.language_model.config.vocab_size
        return embeddings

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.language_model.get_encoder() if modality is None else super().get_encoder(modality=modality)

    def get_decoder(self) -> nn.Module:
        return self.language_model.get_decoder()

    def get_video_features(self, *args: Any, **kwargs: Any) -> MemoryBankQFormerModelOutput:
        """Call [`MemoryBankQFormerModel.get_video_features`]. Its `pooler_output` is `video_embeds` of `forward`."""
        return self.memory_bank_qformer.get_video_features(*args, **kwargs)

    @deprecate_kwarg("past_key_values", "6.0.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        vision_embeds: torch.Tensor | None = None,
        qformer_input_ids: torch.Tensor | None = None,
        qformer_attention_mask: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        video_embeds: torch.Tensor | None = None,
        memory: MemoryBank | None = None,
        use_memory: bool | None = True,
        frame_attention_mask: torch.Tensor | None = None,
        interpolate_pos_encoding: bool | None = True,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerForConditionalGenerationModelOutput:
        r"""
        Scores of the next tokens. An option that is `None` has its default, here and in the other calls.

        Args:
            pixel_values, vision_embeds, qformer_input_ids, qformer_attention_mask, memory, use_memory,
            frame_attention_mask, interpolate_pos_encoding (*optional*):
                See [`MemoryBankQFormerModel`]. Each video needs at least one frame.
            video_embeds (`torch.FloatTensor` of shape `(batch_size, num_tokens, projection_dim)`, *optional*):
                The projected queries of an earlier call, instead of frames.
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Text for the language model. It has places for the video if the configuration has a `video_token_id`.
            attention_mask (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                0 for padding of `input_ids`. With a `cache` it covers all tokens so far.
            inputs_embeds (`torch.FloatTensor` of shape `(batch_size, sequence_length, projection_dim)`, *optional*):
                The embedded text. If `input_ids` are passed as well, they only tell where the video's places are.
            labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Tokens to learn, -100 for the prompt and for padding. For a causal language model they have the places
                of `input_ids`. For an encoder-decoder they are the output of the decoder.
            decoder_input_ids, decoder_attention_mask (*optional*):
                Input of the decoder of an encoder-decoder; by default it is made of `labels`.
            cache, use_cache (*optional*):
                Cache of the language model. Text that continues a cache needs no video.

        Returns:
            [`MemoryBankQFormerForConditionalGenerationModelOutput`].

        Raises:
            ValueError: if inputs have a wrong shape, contradict each other, do not fit the memory, or are longer than
                the language model reads.
        """
        kwargs = cast(Any, {name: value for name, value in kwargs.items() if value is not None})
        if labels is not None and "encoder_outputs" not in kwargs:
            self.check_labels(labels, inputs_embeds if input_ids is None else input_ids)
        video = None
        continues = cache is not None or "encoder_outputs" in kwargs
        inputs: dict[str, Any] = {CACHE_NAME: cache, "use_cache": use_cache, **kwargs}
        with unfinished_on_error(memory):
            if not continues or any(given is not None for given in (pixel_values, vision_embeds, video_embeds)):
                recorded = {
                    name: kwargs[name] for name in ("output_attentions", "output_hidden_states") if name in kwargs
                }
                video = self.read_video(
                    video_embeds,
                    pixel_values=pixel_values,
                    vision_embeds=vision_embeds,
                    qformer_input_ids=qformer_input_ids,
                    qformer_attention_mask=qformer_attention_mask,
                    memory=memory,
                    use_memory=use_memory,
                    frame_attention_mask=frame_attention_mask,
                    interpolate_pos_encoding=interpolate_pos_encoding,
                    **recorded,
                )
            if "encoder_outputs" not in kwargs:
                inputs_embeds, attention_mask = self.embed(video, input_ids, attention_mask, inputs_embeds)
                inputs["inputs_embeds"] = inputs_embeds
            outputs, loss = self.run_language_model(
                labels, attention_mask, decoder_input_ids, decoder_attention_mask, **inputs
            )
        return MemoryBankQFormerForConditionalGenerationModelOutput(
            loss=loss,
            logits=outputs.logits,
            **{CACHE_NAME: outputs.get(CACHE_NAME)},
            video_embeds=None if video is None else video.embeds,
            memory=None if video is None or video.outputs is None else video.outputs.memory,
            hidden_states=outputs.get("decoder_hidden_states", outputs.get("hidden_states")),
            attentions=outputs.get("decoder_attentions", outputs.get("attentions")),
            encoder_last_hidden_state=outputs.get("encoder_last_hidden_state"),
            qformer_outputs=None if video is None else video.outputs,
        )

    def read_video(
        self,
        video_embeds: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        vision_embeds: torch.Tensor | None = None,
        frame_attention_mask: torch.Tensor | None = None,
        all_frames: bool = False,
        **kwargs: Any,
    ) -> VideoInputs:
        """
        The videos as the language model reads them.

        Args:
            video_embeds: see `forward`. If they are not given, they are computed from the frames.
            pixel_values, vision_embeds, frame_attention_mask, kwargs: inputs of [`MemoryBankQFormerModel`].
            all_frames: whether the language model reads the queries after every frame, made without a visual bank.
        """
        given = [tensor is not None for tensor in (pixel_values, vision_embeds, video_embeds)]
        if sum(given) != 1:
            raise ValueError(
                "Pass one of `pixel_values`, `vision_embeds` and `video_embeds`: the frames, or what an earlier call "
                f"made of them. Got {sum(given)} of the three."
            )
        if video_embeds is not None:
            if kwargs.get("memory") is not None:
                raise ValueError("A `memory` was passed with `video_embeds`, which need none: leave it out.")
            width = self.config.projection_dim
            if video_embeds.ndim != 3 or video_embeds.shape[-1] != width:
                raise ValueError(
                    f"`video_embeds` must be (batch_size, num_tokens, {width}), got {tuple(video_embeds.shape)}."
                )
            mask = torch.ones(video_embeds.shape[:2], dtype=torch.bool, device=video_embeds.device)
            return VideoInputs(video_embeds, mask, None)
        if frame_attention_mask is not None and not frame_attention_mask.any(dim=-1).all():
            without = (~frame_attention_mask.bool().any(dim=-1)).nonzero().flatten().tolist()
            raise ValueError(
                f"Each video needs a frame, but `frame_attention_mask` leaves none to number {without}: pass the "
                "`video_embeds` of an earlier call instead of frames."
            )
        outputs = self.memory_bank_qformer.get_video_features(
            pixel_values,
            vision_embeds=vision_embeds,
            frame_attention_mask=frame_attention_mask,
            use_visual_memory=not all_frames,
            output_frame_hidden_states=all_frames,
            return_dict=True,
            **kwargs,
        )
        embeds = cast(torch.Tensor, outputs.pooler_output)
        if all_frames:
            projection = cast(nn.Module, self.memory_bank_qformer.language_projection)
            embeds = projection(outputs.frame_hidden_states.flatten(1, 2))
        mask = torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
        if (all_frames or outputs.memory is None) and frame_attention_mask is not None:
            of_frames = frame_attention_mask.to(mask)
            mask = of_frames.repeat_interleave(self.config.num_query_tokens, dim=1)
        return VideoInputs(embeds, mask, outputs)

    def embed(
        self,
        video: VideoInputs | None,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Any]:
        """
        Video and text as one embedded sequence for the language model, and its mask.

        Args:
            video: the videos, or `None` for text that continues a sequence.
            input_ids, attention_mask, inputs_embeds: see `forward`. Without a text, `start_tokens` are the text.
        """
        video_token_id = self.config.video_token_id
        if inputs_embeds is None:
            input_ids = self.start_tokens(video) if input_ids is None else input_ids
            # The language model may have no embedding of the token that holds the place of a video.
            known_ids = input_ids if video_token_id is None else input_ids.masked_fill(input_ids.eq(video_token_id), 0)
            inputs_embeds = self.get_input_embeddings()(known_ids)
        if video is None:
            return inputs_embeds, attention_mask
        batch_size, text_length = inputs_embeds.shape[:2]
        if len(video.embeds) != batch_size:
            raise ValueError(f"There are {len(video.embeds)} videos and {batch_size} texts: pass one text a video.")
        if attention_mask is None:
            attention_mask = torch.ones(batch_size, text_length, dtype=torch.long, device=inputs_embeds.device)
        elif attention_mask.shape != (batch_size, text_length):
            raise ValueError(
                f"`attention_mask` must have the shape of the text, {(batch_size, text_length)}, got "
                f"{tuple(attention_mask.shape)}."
            )
        if video.embeds.shape[-1] != inputs_embeds.shape[-1]:
            raise ValueError(
                f"The video's tokens have the width {video.embeds.shape[-1]}, those of the text "
                f"{inputs_embeds.shape[-1]}: `projection_dim` must be the width of the language model's embeddings."
            )
        embeds, mask = video.embeds.to(inputs_embeds), video.mask.to(inputs_embeds.device)
        if video_token_id is None:
            inputs_embeds = torch.cat([embeds, inputs_embeds], dim=1)
            attention_mask = torch.cat([mask.to(attention_mask), attention_mask], dim=1)
        else:
            is_place = self.find_places(input_ids, inputs_embeds)
            places, tokens = is_place.sum(1), mask.sum(1)
            if not torch.equal(places, tokens):
                raise ValueError(
                    f"The texts have {places.tolist()} times the token {video_token_id} that holds the place of a "
                    f"video, the videos {tokens.tolist()} tokens: these numbers must be the same. Without memory "
                    "every frame has tokens: set the processor's `num_query_tokens` to the tokens of all frames."
                )
            inputs_embeds = inputs_embeds.masked_scatter(is_place[..., None], embeds[mask])
        self.check_length(attention_mask)
        return inputs_embeds, attention_mask

    def gather_padding(self, embeds: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Move the padding in the result of `embed` to one side of each row: before the tokens for a decoder, after them
        for an encoder. Some language models count positions, or attend to a fixed number of tokens; they then read a
        row of a batch as they read it alone.
        """
        order = mask.long().argsort(dim=1, stable=True, descending=self.config.text_config.is_encoder_decoder)
        return embeds.gather(1, order[..., None].expand_as(embeds)), mask.gather(1, order)

    def check_length(self, attention_mask: torch.Tensor) -> None:
        """Raise `ValueError` if a sequence, without its padding, is longer than the language model reads."""
        longest = getattr(self.config.text_config, "max_position_embeddings", None)
        length = int(attention_mask.bool().sum(1).max())
        if longest is not None and length > longest:
            raise ValueError(
                f"Video and text have {length} tokens, and the language model reads at most {longest}: shorten the "
                "text or, without memory, the video."
            )

    def check_labels(self, labels: torch.Tensor, text: torch.Tensor | None) -> None:
        """Raise `ValueError` if labels do not fit the text, which is ids or embeddings."""
        expected = None if text is None else tuple(text.shape[:2])
        if self.config.text_config.is_encoder_decoder:
            if expected is not None and len(labels) != expected[0]:
                raise ValueError(f"`labels` are of {len(labels)} texts, but there are {expected[0]}.")
        elif tuple(labels.shape) != expected:
            raise ValueError(f"`labels` must have the shape of the text, {expected}, got {tuple(labels.shape)}.")

    def start_tokens(self, video: VideoInputs | None) -> torch.Tensor:
        """Token ids of an empty text: the places of the video and the first token, as far as the model has them."""
        if video is None:
            raise ValueError("Pass `input_ids` or `inputs_embeds`: there is nothing to read.")
        bos_token_id = getattr(self.config.text_config, "bos_token_id", None)
        start = [] if bos_token_id is None else [bos_token_id]
        if self.config.video_token_id is not None:
            if not video.mask.all():
                raise ValueError("The videos have different numbers of tokens: pass `input_ids` with their places.")
            start = [self.config.video_token_id] * video.embeds.shape[1] + start
        return torch.tensor([start] * len(video.embeds), dtype=torch.long, device=video.embeds.device)

    def find_places(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor) -> torch.Tensor:
        """Bool `(batch_size, sequence_length)`: True for the tokens that hold the place of a video."""
        video_token_id = cast(int, self.config.video_token_id)
        if input_ids is not None:
            return input_ids.eq(video_token_id)
        if video_token_id >= len(cast(torch.Tensor, self.get_input_embeddings().weight)):
            raise ValueError(
                f"The language model has no embedding of the token {video_token_id} that holds the place of a video: "
                "pass `input_ids`, or resize its embeddings."
            )
        token = torch.tensor(video_token_id, device=inputs_embeds.device)
        return inputs_embeds.eq(self.get_input_embeddings()(token)).all(dim=-1)

    def run_language_model(
        self,
        labels: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Any, torch.Tensor | None]:
        """Outputs of the language model, and the loss if there are labels. See `forward` for the arguments."""
        options = {name: kwargs.pop(name) for name in ("num_items_in_batch", "shift_labels") if name in kwargs}
        if self.config.text_config.is_encoder_decoder:
            if decoder_input_ids is None and labels is not None:
                decoder_input_ids = self.language_model.prepare_decoder_input_ids_from_labels(labels=labels)
            outputs = self.language_model(
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                return_dict=True,
                **kwargs,
            )
            if labels is not None:
                # The input of the decoder is already shifted.
                options["shift_labels"] = labels.contiguous()
        else:
            if attention_mask is not None and "position_ids" not in kwargs and self.takes_positions():
                positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
                kwargs["position_ids"] = positions[:, -kwargs["inputs_embeds"].shape[1] :]
            outputs = self.language_model(attention_mask=attention_mask, return_dict=True, **kwargs)
            labels, options["shift_labels"] = (
                None if each is None else F.pad(each, (outputs.logits.shape[1] - each.shape[1], 0), value=-100)
                for each in (labels, options.get("shift_labels"))
            )
        if labels is None:
            return outputs, None
        vocab_size = self.config.text_config.vocab_size
        return outputs, self.loss_function(outputs.logits, labels, vocab_size=vocab_size, **options)

    def takes_positions(self) -> bool:
        """Whether the language model takes `position_ids`. Others compute them from the mask, or have none."""
        return "position_ids" in inspect.signature(self.language_model.forward).parameters

    @torch.no_grad()
    def generate(
        self,
        pixel_values: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        r"""
        Write the text that follows. The video is read once, for any number of beams and returned sequences.

        Args:
            pixel_values, input_ids, attention_mask, inputs_embeds (*optional*):
                See `forward`. Texts may be padded on either side; without a text the model begins one.
            kwargs (*optional*):
                The other video inputs of `forward`; frames are added to the `memory` in place, unless an error is
                raised. And options of [`~transformers.GenerationMixin.generate`], which have the defaults of
                `generation_config`, also if they are `None`. Penalties, n-grams and lengths, including `max_length`
                and `min_length`, count generated tokens alone. So it is in MA-LMM, whose language model gets
                embeddings and no ids of the prompt, and so the answer for a row does not depend on the batch.

        Returns:
            The result of the language model's `generate`, by default `torch.LongTensor` of shape `(batch_size *
            num_return_sequences, length)`. It has the generated tokens without the prompt. For an encoder-decoder it
            begins with the decoder's first token, which lengths count.

        Raises:
            ValueError: for the reasons of `forward`.
        """
        if hasattr(self.language_model, "_hf_hook"):
            # Accelerate's hook then returns outputs on the device of the inputs, where `generate` needs them.
            self.language_model._hf_hook.io_same_device = True
        # The defaults were saved with this model. Those of its parts may be others.
        self.language_model.generation_config = self.generation_config
        inputs: dict[str, Any] = {name: kwargs.pop(name) for name in VIDEO_INPUTS if name in kwargs}
        with unfinished_on_error(inputs.get("memory")):
            video = self.read_video(pixel_values=pixel_values, **inputs)
            embeds, mask = self.gather_padding(*self.embed(video, input_ids, attention_mask, inputs_embeds))
            kwargs = {name: value for name, value in kwargs.items() if value is not None}
            if not self.config.text_config.is_encoder_decoder:
                kwargs = self.count_generated_tokens(embeds.shape[1], **kwargs)
            return self.language_model.generate(inputs_embeds=embeds, attention_mask=mask, **kwargs)

    def count_generated_tokens(
        self, num_before: int, generation_config: GenerationConfig | None = None, **options: Any
    ) -> dict[str, Any]:
        """
        Options with which `generate` of a causal language model counts generated tokens alone, if its input is
        `num_before` embeddings, including padding.

        Transformers subtracts the number of embeddings from `max_length` and `min_length`. Its repetition penalty
        skips as many ids as the mask has zeros in front, although none of the ids it sees are padding.
        """
        changes: dict[str, Any] = {}

        def setting(name: str) -> Any:
            given = (options.get(name), getattr(generation_config, name, None), getattr(self.generation_config, name))
            return next((value for value in given if value is not None), None)

        for name in ("max_length", "min_length"):
            if setting(name):
                changes[name] = setting(name) + num_before
        penalty, processors = setting("repetition_penalty"), list(options.get("logits_processor", ()))
        if penalty not in (None, 1.0):
            changes["repetition_penalty"] = 1.0
            # As in Transformers, a processor that the caller passes replaces the one of the setting.
            if not any(type(processor) is RepetitionPenaltyLogitsProcessor for processor in processors):
                processors = [RepetitionPenaltyLogitsProcessor(float(penalty)), *processors]
                options["logits_processor"] = LogitsProcessorList(processors)
        if generation_config is None:
            return options | changes
        generation_config = copy.deepcopy(generation_config)
        for name, value in changes.items():
            options.pop(name, None)
            setattr(generation_config, name, value)
        return {**options, "generation_config": generation_config}

    @torch.no_grad()
    def ask(
        self,
        memory: MemoryBank,
        qformer_input_ids: torch.Tensor | None = None,
        qformer_attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        r"""
        Answer a question about the videos of a memory, whatever text it was filled with. As long as no frames were
        merged, the answer is the same as if the question had been asked from the start. After that it is an
        approximation, see [`replay_memory`].

        Args:
            memory ([`MemoryBank`]):
                The memory, which is not changed. If it has one video, it answers any number of questions.
            qformer_input_ids, qformer_attention_mask (*optional*):
                The question for the Q-Former, `(batch_size, text_length)`.
            kwargs (*optional*):
                Inputs and options of `generate`, such as `input_ids` and `attention_mask` of the prompts.

        Returns:
            The result of `generate`.

        Raises:
            ValueError: for the reasons of [`replay_memory`] and `generate`.
        """
        base = self.memory_bank_qformer
        _, queries = replay_memory(base, memory, qformer_input_ids, qformer_attention_mask)
        projection = cast(nn.Module, base.language_projection)
        return self.generate(video_embeds=projection(queries), **kwargs)

    @torch.no_grad()
    @can_return_tuple
    def rank_candidates(
        self,
        candidate_input_ids: torch.Tensor,
        candidate_attention_mask: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        candidates_per_pass: int | None = 16,
        original_protocol: bool | None = False,
        memory: MemoryBank | None = None,
        **kwargs: Any,
    ) -> MemoryBankQFormerRankingOutput:
        r"""
        Rank given texts by how likely the model is to continue with them (`predict_class` of LAVIS and MA-LMM). The
        video is read once.

        Args:
            candidate_input_ids (`torch.LongTensor` of shape `(num_candidates, length)` or `(batch_size,
                num_candidates, length)`):
                The same candidates for all videos, or different ones. They follow the text directly. A candidate's
                end-of-sequence token counts if it is given.
            candidate_attention_mask (`torch.LongTensor` of the same shape, *optional*):
                0 for padding on the right.
            input_ids, attention_mask, inputs_embeds (*optional*):
                The text before the candidates, see `forward`. It may be padded on either side.
            candidates_per_pass (`int`, defaults to 16):
                Number of candidates of a video in one pass. It bounds the use of memory.
            original_protocol (`bool`, defaults to `False`):
                Whether to rank as the original does. It ranks on other tokens than it generates from: the queries of
                all frames, read without a visual bank and without positions of frames. It divides the losses by the
                number of tokens of the longest sequence, including padding, minus one.
            memory ([`MemoryBank`], *optional*):
                Memory of the frames before. The frames are added in place, unless an error is raised. The original
                protocol takes none.
            kwargs (*optional*):
                Frames and other inputs of `forward`, or `video_embeds`.

        Returns:
            [`MemoryBankQFormerRankingOutput`].

        Raises:
            ValueError: if candidates have a wrong shape or no token, or for the reasons of `forward`.
        """
        candidates_per_pass = 16 if candidates_per_pass is None else candidates_per_pass
        if candidates_per_pass < 1:
            raise ValueError(f"`candidates_per_pass` must be at least 1, got {candidates_per_pass}.")
        if original_protocol and memory is not None:
            raise ValueError("The original ranks on all frames at once: leave `memory` out, or `original_protocol`.")
        with unfinished_on_error(memory):
            video = self.read_video(memory=memory, all_frames=bool(original_protocol), **kwargs)
            ids, is_token = self.check_candidates(len(video.embeds), candidate_input_ids, candidate_attention_mask)
            embeds, mask = self.gather_padding(*self.embed(video, input_ids, attention_mask, inputs_embeds))
            states, logits_of = embeds, self.logits_of_continuation
            if self.config.text_config.is_encoder_decoder:
                encoder = self.get_encoder()
                states = encoder(inputs_embeds=embeds, attention_mask=mask, return_dict=True).last_hidden_state
                logits_of = self.logits_of_decoder
            losses = []
            for some_ids, some_tokens in zip(
                ids.split(candidates_per_pass, 1), is_token.split(candidates_per_pass, 1), strict=True
            ):
                count = some_ids.shape[1]
                flat_ids, flat_tokens = some_ids.flatten(0, 1), some_tokens.flatten(0, 1)
                before = (states.repeat_interleave(count, 0), mask.repeat_interleave(count, 0))
                logits = logits_of(*before, flat_ids, flat_tokens)
                loss = F.cross_entropy(logits.float().transpose(1, 2), flat_ids, reduction="none")
                losses.append((loss * flat_tokens).sum(1).unflatten(0, (-1, count)))
        all_losses = torch.cat(losses, dim=1)
        if original_protocol:
            all_losses = all_losses / (embeds.shape[1] + ids.shape[2] - 1)
        return MemoryBankQFormerRankingOutput(losses=all_losses, ranks=all_losses.argsort(dim=1, stable=True))

    def check_candidates(
        self, batch_size: int, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Candidates of each video `(batch_size, num_candidates, length)`, and bool: False for their padding."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if input_ids.ndim not in (2, 3) or (input_ids.ndim == 3 and len(input_ids) != batch_size):
            raise ValueError(
                f"`candidate_input_ids` must be (num_candidates, length), or ({batch_size}, num_candidates, length) "
                f"for {batch_size} videos, got {tuple(input_ids.shape)}."
            )
        if mask.shape != input_ids.shape:
            raise ValueError(
                f"`candidate_attention_mask` must have the shape of `candidate_input_ids`, {tuple(input_ids.shape)}, "
                f"got {tuple(mask.shape)}."
            )
        mask = mask.bool()
        if not input_ids.numel() or not mask[..., 0].all() or (mask[..., 1:] > mask[..., :-1]).any():
            raise ValueError("Candidates need at least one token each, and padding on the right alone.")
        sizes = (batch_size, *input_ids.shape[-2:])
        return input_ids.expand(sizes), mask.expand(sizes)

    def logits_of_continuation(
        self, states: torch.Tensor, mask: torch.Tensor, input_ids: torch.Tensor, is_token: torch.Tensor
    ) -> torch.Tensor:
        """
        Scores of a causal language model for each token of a text that follows a sequence, `(batch_size, length,
        vocab_size)`. The scores of the first token are those at the last token of the sequence, which may be followed
        by padding.
        """
        before, length = states.shape[1], input_ids.shape[1]
        sequence = torch.cat([states, self.get_input_embeddings()(input_ids)], dim=1)
        mask = torch.cat([mask, is_token.to(mask)], dim=1)
        self.check_length(mask)
        logits = self.run_language_model(None, mask, inputs_embeds=sequence, use_cache=False)[0].logits
        time = torch.arange(before, device=mask.device)
        last = torch.where(mask[:, :before].bool(), time, 0).amax(1, keepdim=True)
        rest = torch.arange(before, before + length - 1, device=mask.device).expand(len(last), -1)
        index = torch.cat([last, rest], dim=1)
        return logits[torch.arange(len(logits), device=mask.device)[:, None], index]

    def logits_of_decoder(
        self, states: torch.Tensor, mask: torch.Tensor, input_ids: torch.Tensor, is_token: torch.Tensor
    ) -> torch.Tensor:
        """Scores of a decoder for each token of a text `(batch_size, length, vocab_size)`, given encoder states."""
        labels = input_ids.masked_fill(~is_token, -100)
        decoder_input_ids = self.language_model.prepare_decoder_input_ids_from_labels(labels=labels)
        encoder_outputs = BaseModelOutput(last_hidden_state=states)
        return self.run_language_model(None, mask, decoder_input_ids, encoder_outputs=encoder_outputs)[0].logits


__all__ = [
    "MemoryBankQFormerForConditionalGeneration",
    "MemoryBankQFormerForConditionalGenerationModelOutput",
    "MemoryBankQFormerRankingOutput",
]
