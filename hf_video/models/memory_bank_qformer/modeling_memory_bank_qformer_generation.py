"""PyTorch MemoryBankQFormer with a language model: frames and text in, text out."""

import copy
import inspect
from dataclasses import dataclass
from typing import Any, cast

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

# Keyword arguments of `generate` that do not go to the language model.
VIDEO_INPUTS = (
    *("video_embeds", "vision_embeds", "frame_attention_mask", "interpolate_pos_encoding"),
    *("memory", "use_memory", "qformer_input_ids", "qformer_attention_mask"),
)


@dataclass
class MemoryBankQFormerForConditionalGenerationModelOutput(ModelOutput):
    """
    Output of [`MemoryBankQFormerForConditionalGeneration`].

    Args:
        loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
            Loss of the logits against the labels.
        logits (`torch.FloatTensor` of shape `(batch_size, sequence_length, vocab_size)`):
            Scores of the next token at each position of the text; for an encoder-decoder, of the decoder's.
        cache ([`Cache`], *optional*):
            Cache of the language model.
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
    cache: Cache | None = None
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


class MemoryBankQFormerForConditionalGeneration(MemoryBankQFormerPreTrainedModel, GenerationMixin):
    """
    A language model that answers about a video. A text holds the token `config.video_token_id` once for each token of
    the video, and the projected queries after the last frame replace them.

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
        if config.text_config.is_encoder_decoder:
            # `Trainer` knows by the loss's name whether labels are shifted, and then does not count the first label of
            # a text. Here that label counts: the decoder's start token comes before it.
            self.loss_type, self.loss_function = None, ForCausalLMLoss
        self.post_init()

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
                Text for the language model, with a place for each token of the video.
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
            ValueError: if inputs have a wrong shape, contradict each other, or do not fit the memory, or if a text has
                more or fewer places than its video has tokens.
        """
        kwargs = cast(Any, {name: value for name, value in kwargs.items() if value is not None})
        has_token = outputs = None
        with unfinished_on_error(memory):
            if cache is None or any(each is not None for each in (pixel_values, vision_embeds, video_embeds)):
                video_embeds, has_token, outputs = self.read_video(
                    video_embeds,
                    pixel_values=pixel_values,
                    vision_embeds=vision_embeds,
                    qformer_input_ids=qformer_input_ids,
                    qformer_attention_mask=qformer_attention_mask,
                    memory=memory,
                    use_memory=use_memory,
                    frame_attention_mask=frame_attention_mask,
                    interpolate_pos_encoding=interpolate_pos_encoding,
                    **{name: kwargs[name] for name in ("output_attentions", "output_hidden_states") if name in kwargs},
                )
            inputs_embeds, attention_mask = self.embed(
                video_embeds, has_token, input_ids, attention_mask, inputs_embeds
            )
            if self.config.text_config.is_encoder_decoder:
                kwargs |= {"decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask}
            text_outputs, loss = self.run_language_model(
                attention_mask, labels, inputs_embeds=inputs_embeds, cache=cache, use_cache=use_cache, **kwargs
            )
        return MemoryBankQFormerForConditionalGenerationModelOutput(
            loss=loss,
            logits=text_outputs.logits,
            cache=text_outputs.get("cache"),
            video_embeds=video_embeds,
            memory=None if outputs is None else outputs.memory,
            hidden_states=text_outputs.get("decoder_hidden_states", text_outputs.get("hidden_states")),
            attentions=text_outputs.get("decoder_attentions", text_outputs.get("attentions")),
            encoder_last_hidden_state=text_outputs.get("encoder_last_hidden_state"),
            qformer_outputs=outputs,
        )

    def read_video(
        self,
        video_embeds: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        vision_embeds: torch.Tensor | None = None,
        frame_attention_mask: torch.Tensor | None = None,
        all_frames: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, MemoryBankQFormerModelOutput | None]:
        """
        The videos as the language model reads them, `(batch_size, num_tokens, projection_dim)`; bool `(batch_size,
        num_tokens)`, False for tokens of frames that a video does not have; and outputs of the Q-Former, if it ran.
        With `all_frames` they are the queries after every frame, made without a visual bank.
        """
        if sum(each is not None for each in (pixel_values, vision_embeds, video_embeds)) != 1:
            raise ValueError(
                "Pass one of `pixel_values`, `vision_embeds` and `video_embeds`: the frames, or what an earlier call "
                "made of them."
            )
        if video_embeds is not None:
            return video_embeds, torch.ones_like(video_embeds[..., 0], dtype=torch.bool), None
        if frame_attention_mask is not None and not frame_attention_mask.any(dim=-1).all():
            raise ValueError(
                "Each video needs a frame, but `frame_attention_mask` leaves one without any: pass the `video_embeds` "
                "of an earlier call instead of frames."
            )
        outputs = self.get_video_features(
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
            embeds = projection(cast(torch.Tensor, outputs.frame_hidden_states).flatten(1, 2))
        has_token = torch.ones_like(embeds[..., 0], dtype=torch.bool)
        if (all_frames or outputs.memory is None) and frame_attention_mask is not None:
            has_token = frame_attention_mask.to(has_token).repeat_interleave(self.config.num_query_tokens, dim=1)
        return embeds, has_token, outputs

    def embed(
        self,
        video_embeds: torch.Tensor | None,
        has_token: torch.Tensor | None,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Any]:
        """
        The embedded text with the video in its places, and its mask.

        Args:
            video_embeds, has_token: from `read_video`; `None` for text that continues a sequence.
            input_ids, attention_mask, inputs_embeds: see `forward`. Without a text there are the places of the video
                and the first token of a text, if the language model has one.
        """
        video_token_id = cast(int, self.config.video_token_id)
        if input_ids is None and inputs_embeds is None and video_embeds is not None:
            first = getattr(self.config.text_config, "bos_token_id", None)
            ids = [video_token_id] * video_embeds.shape[1] + ([] if first is None else [first])
            input_ids = torch.tensor([ids] * len(video_embeds), device=video_embeds.device)
        if inputs_embeds is None:
            # The language model may have no embedding of the token that holds the place of a video.
            words = cast(torch.Tensor, input_ids)
            inputs_embeds = self.get_input_embeddings()(words.masked_fill(words.eq(video_token_id), 0))
        if video_embeds is None or has_token is None:
            return inputs_embeds, attention_mask
        if input_ids is None:
            place = self.get_input_embeddings()(torch.tensor(video_token_id, device=inputs_embeds.device))
            is_place = inputs_embeds.eq(place).all(dim=-1)
        else:
            is_place = input_ids.eq(video_token_id)
        if not torch.equal(places := is_place.sum(1), numbers := has_token.sum(1).to(is_place.device)):
            raise ValueError(
                f"The texts have {places.tolist()} times the token {video_token_id} that holds the place of a video, "
                f"the videos {numbers.tolist()} tokens: these numbers must be the same. Without memory every frame "
                "has tokens: set the processor's `num_query_tokens` to the tokens of all frames."
            )
        tokens = video_embeds[has_token].to(inputs_embeds)
        if attention_mask is None:
            attention_mask = torch.ones_like(is_place, dtype=torch.long)
        return inputs_embeds.masked_scatter(is_place[..., None], tokens), attention_mask

    def gather_padding(self, embeds: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Move the padding in the result of `embed` to one side of each row: before the tokens for a decoder, after them
        for an encoder. Some language models count positions, or attend to a fixed number of tokens; they then read a
        row of a batch as they read it alone.
        """
        order = mask.long().argsort(dim=1, stable=True, descending=self.config.text_config.is_encoder_decoder)
        return embeds.gather(1, order[..., None].expand_as(embeds)), mask.gather(1, order)

    def run_language_model(
        self, attention_mask: torch.Tensor | None, labels: torch.Tensor | None = None, **kwargs: Any
    ) -> tuple[Any, torch.Tensor | None]:
        """Outputs of the language model, and the loss if there are labels. See `forward` for the arguments."""
        options = {name: kwargs.pop(name) for name in ("num_items_in_batch", "shift_labels") if name in kwargs}
        if self.config.text_config.is_encoder_decoder:
            if labels is not None and kwargs.get("decoder_input_ids") is None:
                kwargs["decoder_input_ids"] = self.language_model.prepare_decoder_input_ids_from_labels(labels=labels)
            # The input of the decoder is already shifted.
            options["shift_labels"] = None if labels is None else labels.contiguous()
        elif (
            attention_mask is not None and "position_ids" in inspect.signature(self.language_model.forward).parameters
        ):
            positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            kwargs.setdefault("position_ids", positions[:, -kwargs["inputs_embeds"].shape[1] :])
        outputs = self.language_model(attention_mask=attention_mask, return_dict=True, **kwargs)
        if labels is None:
            return outputs, None
        vocab_size = self.config.text_config.vocab_size
        return outputs, self.loss_function(outputs.logits, labels, vocab_size=vocab_size, **options)

    @torch.no_grad()
    def generate(
        self,
        pixel_values: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        r"""
        Write the text that follows. The video is read once, for any number of beams and returned sequences.

        Args:
            pixel_values, input_ids, attention_mask, inputs_embeds (*optional*):
                See `forward`. Texts may be padded on either side; without a text the model begins one.
            generation_config, kwargs (*optional*):
                The other video inputs of `forward`; frames are added to the `memory` in place, unless an error is
                raised. And options of [`~transformers.GenerationMixin.generate`], which have the defaults of
                the model's `generation_config`, also if they are `None`. Penalties, n-grams and lengths, including
                `max_length` and `min_length`, count generated tokens alone. So it is in MA-LMM, whose language model
                gets embeddings and no ids of the prompt, and so the answer for a row does not depend on the batch.

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
        inputs: dict[str, Any] = {name: kwargs.pop(name) for name in VIDEO_INPUTS if name in kwargs}
        with unfinished_on_error(inputs.get("memory")):
            video_embeds, has_token, _ = self.read_video(pixel_values=pixel_values, **inputs)
            embeds, mask = self.embed(video_embeds, has_token, input_ids, attention_mask, inputs_embeds)
            embeds, mask = self.gather_padding(embeds, mask)
            kwargs = self.generation_options(generation_config, **kwargs)
            return self.language_model.generate(inputs_embeds=embeds, attention_mask=mask, **kwargs)

    def generation_options(self, generation_config: GenerationConfig | None, **kwargs: Any) -> dict[str, Any]:
        """
        Options for `generate` of the language model: those given, before those that were saved with this model. Those
        of the language model itself do not count.
        """
        self.language_model.generation_config = GenerationConfig()
        config = GenerationConfig() if generation_config is None else copy.deepcopy(generation_config)
        config.update(**self.generation_config.to_dict(), defaults_only=True, allow_custom_entries=True)
        options = config.update(**{name: value for name, value in kwargs.items() if value is not None})
        if not self.config.text_config.is_encoder_decoder:
            # Transformers subtracts the prompt's embeddings from lengths, and its penalty skips as many generated ids
            # as there are paddings before the prompt.
            if config.max_new_tokens is None:
                config.max_new_tokens = config.max_length
            config.min_new_tokens = config.min_new_tokens or config.min_length
            config.max_length = config.min_length = None
            if penalty := config.repetition_penalty:
                processor = RepetitionPenaltyLogitsProcessor(float(penalty))
                options["logits_processor"] = LogitsProcessorList([processor, *options.get("logits_processor", ())])
                config.repetition_penalty = None
        return {**options, "generation_config": config}

    @torch.no_grad()
    def ask(
        self,
        memory: MemoryBank,
        qformer_input_ids: torch.Tensor | None = None,
        qformer_attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        r"""
        Answer a question about the videos of a memory, whatever text it was filled with. Once frames were merged, the
        answer is an approximation, see [`replay_memory`].

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
        candidates_per_pass: int = 16,
        original_protocol: bool = False,
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
                The text before the candidates, see `forward`. It may be padded on either side. With
                `original_protocol` it has places for the queries of all frames.
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
        mask = candidate_attention_mask
        mask = (torch.ones_like(candidate_input_ids) if mask is None else mask).bool()
        if not mask[..., 0].all() or (mask[..., 1:] > mask[..., :-1]).any():
            raise ValueError("Candidates need at least one token each, and padding on the right alone.")
        with unfinished_on_error(memory):
            video_embeds, has_token, _ = self.read_video(memory=memory, all_frames=original_protocol, **kwargs)
            states, before = self.embed(video_embeds, has_token, input_ids, attention_mask, inputs_embeds)
            states, before = self.gather_padding(states, before)
            sequence_length = states.shape[1] + candidate_input_ids.shape[-1]
            logits_of = self.logits_of_continuation
            if self.config.text_config.is_encoder_decoder:
                logits_of = self.logits_of_decoder
                encoder = self.get_encoder()
                states = encoder(inputs_embeds=states, attention_mask=before, return_dict=True).last_hidden_state
            sizes = (len(states), *candidate_input_ids.shape[-2:])
            passes = (each.expand(sizes).split(candidates_per_pass, 1) for each in (candidate_input_ids, mask))
            losses = []
            for ids, is_token in zip(*passes, strict=True):
                count, ids, is_token = ids.shape[1], ids.flatten(0, 1), is_token.flatten(0, 1)
                repeated = states.repeat_interleave(count, 0), before.repeat_interleave(count, 0)
                logits = logits_of(*repeated, ids, is_token)
                loss = F.cross_entropy(logits.float().transpose(1, 2), ids, reduction="none")
                losses.append((loss * is_token).sum(1).unflatten(0, (-1, count)))
        all_losses = torch.cat(losses, dim=1)
        if original_protocol:
            all_losses = all_losses / (sequence_length - 1)
        return MemoryBankQFormerRankingOutput(losses=all_losses, ranks=all_losses.argsort(dim=1, stable=True))

    def logits_of_continuation(
        self, states: torch.Tensor, mask: torch.Tensor, input_ids: torch.Tensor, is_token: torch.Tensor
    ) -> torch.Tensor:
        """
        Scores of a causal language model for each token of a text that follows a sequence, `(batch_size, length,
        vocab_size)`. The padding of the sequence comes first, see `gather_padding`.
        """
        sequence = torch.cat([states, self.get_input_embeddings()(input_ids)], dim=1)
        mask = torch.cat([mask, is_token.to(mask)], dim=1)
        logits = self.run_language_model(mask, inputs_embeds=sequence, use_cache=False)[0].logits
        return logits[:, states.shape[1] - 1 : -1]

    def logits_of_decoder(
        self, states: torch.Tensor, mask: torch.Tensor, input_ids: torch.Tensor, is_token: torch.Tensor
    ) -> torch.Tensor:
        """Scores of a decoder for each token of a text `(batch_size, length, vocab_size)`, given encoder states."""
        labels = input_ids.masked_fill(~is_token, -100)
        decoder_input_ids = self.language_model.prepare_decoder_input_ids_from_labels(labels=labels)
        encoder_outputs = BaseModelOutput(last_hidden_state=states)
        return self.run_language_model(mask, decoder_input_ids=decoder_input_ids, encoder_outputs=encoder_outputs)[
            0
        ].logits


__all__ = [
    "MemoryBankQFormerForConditionalGeneration",
    "MemoryBankQFormerForConditionalGenerationModelOutput",
    "MemoryBankQFormerRankingOutput",
]
