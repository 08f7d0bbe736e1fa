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
from transformers.utils.generic import can_return_tuple

from .configuration_memory_bank_qformer import MemoryBankQFormerConfig
from .memory_bank import MemoryBank
from .memory_replay import replay_memory
from .memory_undo import restored_on_error
from .modeling_memory_bank_qformer import (
    MemoryBankQFormerModel,
    MemoryBankQFormerModelOutput,
    MemoryBankQFormerPreTrainedModel,
)


@dataclass
class MemoryBankQFormerForConditionalGenerationModelOutput(ModelOutput):
    """
    Output of [`MemoryBankQFormerForConditionalGeneration`].

    Args:
        loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
            Of the next tokens against the labels.
        logits (`torch.FloatTensor` of shape `(batch_size, sequence_length, vocab_size)`):
            Scores of the next token: at the positions of the text and, where the configuration has no
            `video_token_id`, of the video before it; of an encoder-decoder at those of the decoder.
        past_key_values ([`Cache`], *optional*):
            Of the language model.
        video_embeds (`torch.FloatTensor` of shape `(batch_size, num_tokens, projection_dim)`, *optional*):
            What the language model read of the video. Passed back, it is not computed again.
        memory ([`MemoryBank`], *optional*):
            To be passed with the frames that follow.
        hidden_states, attentions (`tuple[torch.FloatTensor]`, *optional*):
            Of the language model, or of the decoder of an encoder-decoder.
        encoder_last_hidden_state (`torch.FloatTensor` of shape `(batch_size, sequence_length, hidden_size)`,
            *optional*): of an encoder-decoder.
        qformer_outputs ([`MemoryBankQFormerModelOutput`], *optional*):
            Outputs of the Q-Former, if it ran.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
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
            Negative log-likelihood of each candidate, in nats: the sum over its tokens.
        ranks (`torch.LongTensor` of shape `(batch_size, num_candidates)`):
            The candidates' numbers, the likeliest first.
    """

    losses: torch.Tensor | None = None
    ranks: torch.Tensor | None = None


class VideoInputs(NamedTuple):
    """
    What a language model reads of a batch of videos.

    Attributes:
        embeds: `(batch_size, num_tokens, projection_dim)`.
        mask: bool `(batch_size, num_tokens)`, False for the tokens of frames that a video does not have.
        outputs: of the Q-Former, where it made `embeds`.
    """

    embeds: torch.Tensor
    mask: torch.Tensor
    outputs: MemoryBankQFormerModelOutput | None


class MemoryBankQFormerForConditionalGeneration(MemoryBankQFormerPreTrainedModel, GenerationMixin):
    """
    A language model that answers about a video: it reads the projected queries after the last frame, and text.

    Where the configuration has a `video_token_id`, the queries take the places of this token in `input_ids`, as many
    times as there are queries; if it has none, they are put before the text, and positions skip the padding between.

    Args:
        config ([`MemoryBankQFormerConfig`]): the architecture, with a `text_config`: of a causal language model, or of
            an encoder-decoder, whose encoder then reads video and prompt.

    Raises:
        ValueError: for a configuration without `text_config`.
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
            # By the name of a loss that shifts labels `Trainer` leaves the first of each text out of its count. Here
            # it is predicted too: the video, or the decoder's start token, comes before it.
            self.loss_type, self.loss_function = None, ForCausalLMLoss
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """
        As in the base class, but for a folder whose language model is layers and adapters beside them.

        Raises:
            ValueError: for such a folder, whose layers would be left as initialised.
        """
        model, report = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        if adapted := [name for name in report["unexpected_keys"] if ".base_layer." in name]:
            raise ValueError(
                f"{model.name_or_path} is a checkpoint of training with adapters, which are not merged into the "
                f"language model ({adapted[0]}, ...): go on with its run by `hf-video train-answers ... --resume`, "
                "which writes the merged model when it ends, and load that."
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
        """As in the base class, with what the language model has for each token besides, as the bias of BART."""
        embeddings = self.language_model.resize_token_embeddings(*args, **kwargs)
        self.vocab_size = self.config.text_config.vocab_size = self.language_model.config.vocab_size
        return embeddings

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.language_model.get_encoder() if modality is None else super().get_encoder(modality=modality)

    def get_decoder(self) -> nn.Module:
        return self.language_model.get_decoder()

    def get_video_features(self, *args: Any, **kwargs: Any) -> MemoryBankQFormerModelOutput:
        """[`MemoryBankQFormerModel.get_video_features`], whose `pooler_output` `forward` takes as `video_embeds`."""
        return self.memory_bank_qformer.get_video_features(*args, **kwargs)

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
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MemoryBankQFormerForConditionalGenerationModelOutput:
        r"""
        The scores of the next tokens. An option that is `None` has its default, here and in the other calls.

        Args:
            pixel_values, vision_embeds, qformer_input_ids, qformer_attention_mask, memory, use_memory,
            frame_attention_mask, interpolate_pos_encoding (*optional*):
                As in [`MemoryBankQFormerModel`]; each video needs a frame.
            video_embeds (`torch.FloatTensor` of shape `(batch_size, num_tokens, projection_dim)`, *optional*):
                Instead of frames, the projected queries of an earlier call.
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Text for the language model, with places for the video where the configuration has a
                `video_token_id`.
            attention_mask (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                0 for padding of `input_ids`. With `past_key_values`, of all tokens so far.
            inputs_embeds (`torch.FloatTensor` of shape `(batch_size, sequence_length, projection_dim)`, *optional*):
                Instead of `input_ids`, or besides them to be looked up no more, the embedded text.
            labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Tokens to learn, -100 for the prompt and for padding. Of a causal language model in the places of
                `input_ids`, of an encoder-decoder what its decoder is to write.
            decoder_input_ids, decoder_attention_mask (*optional*):
                For the decoder of an encoder-decoder; by default made of `labels`.
            past_key_values, use_cache (*optional*):
                Of the language model. Text that continues a cache needs no video.

        Returns:
            [`MemoryBankQFormerForConditionalGenerationModelOutput`].

        Raises:
            ValueError: for inputs of a wrong shape, that contradict each other, do not fit the memory, or are longer
                than the language model reads.
        """
        kwargs = cast(Any, {name: value for name, value in kwargs.items() if value is not None})
        if labels is not None and "encoder_outputs" not in kwargs:
            self.check_labels(labels, inputs_embeds if input_ids is None else input_ids)
        video = None
        continues = past_key_values is not None or "encoder_outputs" in kwargs
        inputs: dict[str, Any] = {"past_key_values": past_key_values, "use_cache": use_cache, **kwargs}
        with restored_on_error(memory):
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
            past_key_values=outputs.get("past_key_values"),
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
        What the language model is to read of the videos.

        Args:
            video_embeds: as `forward` takes them, if they are known.
            pixel_values, vision_embeds, frame_attention_mask, kwargs: for [`MemoryBankQFormerModel`] otherwise.
            all_frames: whether it reads the queries after every frame, made without a visual bank.
        """
        given = [tensor is not None for tensor in (pixel_values, vision_embeds, video_embeds)]
        if sum(given) != 1:
            raise ValueError(
                "Pass one of `pixel_values`, `vision_embeds` and `video_embeds`: the frames, or what an earlier call "
                f"made of them. Got {sum(given)} of the three."
            )
        if video_embeds is not None:
            if kwargs.get("memory") is not None:
                raise ValueError(
                    "A `memory` was passed with `video_embeds`, which are all that is read: leave it out."
                )
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
        Video and text as one sequence for the language model, and its mask. Without a text it is the start of one.

        Args:
            video: `None` for text that continues a sequence.
            input_ids, attention_mask, inputs_embeds: as `forward` takes them.
        """
        video_token_id = self.config.video_token_id
        if inputs_embeds is None:
            input_ids = self.start_tokens(video) if input_ids is None else input_ids
            # The place of a video may be a token that the language model has no embedding of.
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
                    "every frame has its tokens, for which the processor's `num_query_tokens` is set."
                )
            inputs_embeds = inputs_embeds.masked_scatter(is_place[..., None], embeds[mask])
        self.check_length(attention_mask)
        return inputs_embeds, attention_mask

    def gather_padding(self, embeds: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        What `embed` returns with the padding of each row on one side: in front for a decoder, and behind for an
        encoder. Language models that count positions, or look a number of tokens back, then read a row of a batch as
        they do alone.
        """
        order = mask.long().argsort(dim=1, stable=True, descending=self.config.text_config.is_encoder_decoder)
        return embeds.gather(1, order[..., None].expand_as(embeds)), mask.gather(1, order)

    def check_length(self, attention_mask: torch.Tensor) -> None:
        """Raise `ValueError` for a sequence that is, without padding, longer than the language model reads."""
        longest = getattr(self.config.text_config, "max_position_embeddings", None)
        length = int(attention_mask.bool().sum(1).max())
        if longest is not None and length > longest:
            raise ValueError(
                f"Video and text have {length} tokens, and the language model reads at most {longest}: shorten the "
                "text or, without memory, the video."
            )

    def check_labels(self, labels: torch.Tensor, text: torch.Tensor | None) -> None:
        """Raise `ValueError` for labels that do not fit the text, ids or embeddings."""
        expected = None if text is None else tuple(text.shape[:2])
        if self.config.text_config.is_encoder_decoder:
            if expected is not None and len(labels) != expected[0]:
                raise ValueError(f"`labels` are of {len(labels)} texts, but there are {expected[0]}.")
        elif tuple(labels.shape) != expected:
            raise ValueError(f"`labels` must have the shape of the text, {expected}, got {tuple(labels.shape)}.")

    def start_tokens(self, video: VideoInputs | None) -> torch.Tensor:
        """Token ids of a text not yet begun: the places of the video and the first token, where there are such."""
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
        """Which tokens `(batch_size, sequence_length)` hold the place of a video: bool."""
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
        """Outputs of the language model, and its loss where there are labels. All arguments are as in `forward`."""
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
                # The decoder's input is shifted already.
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
        """Whether the language model can be told positions; others find them in the mask, or have none."""
        return "position_ids" in inspect.signature(self.language_model.forward).parameters

    @torch.no_grad()
    def generate(
        self,
        pixel_values: torch.Tensor | None = None,
        vision_embeds: torch.Tensor | None = None,
        qformer_input_ids: torch.Tensor | None = None,
        qformer_attention_mask: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        video_embeds: torch.Tensor | None = None,
        memory: MemoryBank | None = None,
        use_memory: bool | None = True,
        frame_attention_mask: torch.Tensor | None = None,
        interpolate_pos_encoding: bool | None = True,
        **kwargs: Any,
    ) -> Any:
        r"""
        Write the text that follows. The video is read once, whatever the number of beams or returned sequences.

        Args:
            pixel_values, ..., interpolate_pos_encoding (*optional*):
                As in `forward`; texts are padded on either side. A `memory` is grown in place by the frames, unless an
                error is raised. Without a text the model begins one.
            kwargs (*optional*):
                Of [`~transformers.GenerationMixin.generate`]; the defaults are those of `generation_config`, also for
                `None`. Penalties, n-grams and lengths, `max_length` and `min_length` too, are of generated tokens
                alone, as in MA-LMM, whose language model gets embeddings and no ids of the prompt. So a row of a
                batch gets what it gets alone.

        Returns:
            What the language model's `generate` returns: `torch.LongTensor` of shape `(batch_size *
            num_return_sequences, length)` by default. It has the generated tokens alone, not the prompt; of an
            encoder-decoder it has the decoder's first token, which its lengths count, too.

        Raises:
            ValueError: for the reasons of `forward`.
        """
        if hasattr(self.language_model, "_hf_hook"):
            # Accelerate's hooks must leave the tokens where `generate` looks for them.
            self.language_model._hf_hook.io_same_device = True
        # The defaults are those saved with this model, not those that its parts were made with.
        self.language_model.generation_config = self.generation_config
        with restored_on_error(memory):
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
            )
            embeds, mask = self.gather_padding(*self.embed(video, input_ids, attention_mask, inputs_embeds))
            kwargs = {name: value for name, value in kwargs.items() if value is not None}
            if not self.config.text_config.is_encoder_decoder:
                kwargs = self.count_generated_tokens(embeds.shape[1], **kwargs)
            return self.language_model.generate(inputs_embeds=embeds, attention_mask=mask, **kwargs)

    def count_generated_tokens(
        self, num_before: int, generation_config: GenerationConfig | None = None, **options: Any
    ) -> dict[str, Any]:
        """
        Options with which a causal language model's `generate`, given `num_before` embeddings, padding among them,
        counts generated tokens alone.

        Transformers takes embeddings, with their padding, off `max_length` and `min_length`. And its repetition
        penalty leaves out as many tokens as the mask has zeros in front, which are no tokens of the ids that it sees.
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
            # As in Transformers, one that was passed takes the place of that which the setting makes.
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
        Answer a question about videos that a memory holds, whatever was asked while it was filled. Without merged
        frames the answer is that of having asked from the start, later an approximation: see [`replay_memory`].

        Args:
            memory ([`MemoryBank`]):
                Left as it is. Of one video it answers any number of questions.
            qformer_input_ids, qformer_attention_mask (*optional*):
                The question for the Q-Former, `(batch_size, text_length)`.
            kwargs (*optional*):
                Of `generate`: `input_ids` and `attention_mask` of the prompts, and how to generate.

        Returns:
            What `generate` returns.

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
        How likely the model is to continue with each of some given texts (`predict_class` of LAVIS and MA-LMM). The
        video is read once.

        Args:
            candidate_input_ids (`torch.LongTensor` of shape `(num_candidates, length)` or `(batch_size,
                num_candidates, length)`):
                The same candidates for all videos, or different ones. They follow the text without a token between;
                the end-of-sequence token counts where it is given.
            candidate_attention_mask (`torch.LongTensor` of the same shape, *optional*):
                0 for padding on the right.
            input_ids, attention_mask, inputs_embeds (*optional*):
                The text before, as in `forward`, padded on either side.
            candidates_per_pass (`int`, defaults to 16):
                How many candidates of a video to try at once; bounds the memory it takes.
            original_protocol (`bool`, defaults to `False`):
                Whether to rank as the original, on other tokens than it generates from: all frames' queries, read
                without a visual bank and the frames' positions. Its losses are divided by the tokens of the longest
                sequence, padding included, less one.
            memory ([`MemoryBank`], *optional*):
                Grown in place by the frames, unless an error is raised; none for the original's protocol.
            kwargs (*optional*):
                Frames and what else `forward` takes to read them, or `video_embeds`.

        Returns:
            [`MemoryBankQFormerRankingOutput`].

        Raises:
            ValueError: for candidates of another shape or without a token, besides the reasons of `forward`.
        """
        candidates_per_pass = 16 if candidates_per_pass is None else candidates_per_pass
        if candidates_per_pass < 1:
            raise ValueError(f"`candidates_per_pass` must be at least 1, got {candidates_per_pass}.")
        if original_protocol and memory is not None:
            raise ValueError("The original ranks on all frames at once: leave `memory` out, or `original_protocol`.")
        with restored_on_error(memory):
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
        """Candidates of each video `(batch_size, num_candidates, length)`, and bool which of their tokens are real."""
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
        What a causal language model expects at each token of a text that follows another one: `(batch_size, length,
        vocab_size)`. The first is foreseen at the last token before, which padding may follow.
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
        """What a decoder expects at each token of a text, given the encoder's states."""
        labels = input_ids.masked_fill(~is_token, -100)
        decoder_input_ids = self.language_model.prepare_decoder_input_ids_from_labels(labels=labels)
        encoder_outputs = BaseModelOutput(last_hidden_state=states)
        return self.run_language_model(None, mask, decoder_input_ids, encoder_outputs=encoder_outputs)[0].logits


__all__ = [
    "MemoryBankQFormerForConditionalGeneration",
    "MemoryBankQFormerForConditionalGenerationModelOutput",
    "MemoryBankQFormerRankingOutput",
]
