"""Functions that the sources of MemoryBankQFormer share: for the language model, and for the processors."""

import copy
import warnings
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD, PILImageResampling
from transformers.utils import cached_file

from hf_video.loading.configurations import load_config, load_weights, refuse_missing
from hf_video.models.memory_bank_qformer import (
    MemoryBankQFormerConfig,
    MemoryBankQFormerForConditionalGeneration,
    MemoryBankQFormerModel,
)
from hf_video.models.memory_bank_qformer.processing_memory_bank_qformer import MemoryBankQFormerProcessor
from hf_video.processing import VideoClipProcessor

from .checkpoint import name_left_out
from .weight_rules import check_values


def load_pretrained(
    model_class: Any,
    source: str,
    may_be_missing: tuple[str, ...] = (),
    other_parts: tuple[str, ...] = (),
    **options: Any,
) -> PreTrainedModel:
    """A model from a folder or Hub repository, which may hold more than this model: what is left over is named, unless
    its name begins with one of `other_parts`, which another call reads. Weights in `may_be_missing` then stay as
    initialised."""
    model, report = load_weights(model_class, source, **options)
    refuse_missing(source, model, [name for name in report["missing_keys"] if name not in may_be_missing])
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():  # quantised ones are not checked
            check_values(f"{name} of {source}", parameter)
    unused = (name for name in report["unexpected_keys"] if not name.startswith(other_parts))
    name_left_out(unused, f"{type(model).__name__} has no place for it")
    return model


def load_language_model(source: str, **options: Any) -> PreTrainedModel:
    """A causal language model or an encoder-decoder from a folder or Hub repository, in its own precision."""
    config = options.get("config") or load_config(source)
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return load_pretrained(auto_class, source, **options)


def with_language_model(
    base: MemoryBankQFormerModel, language_model: PreTrainedModel, is_original: bool
) -> MemoryBankQFormerForConditionalGeneration:
    """Join a Q-Former and a language model without copying weights. If the projection was trained for another one, it
    is initialised again, with a warning."""
    width = cast(torch.Tensor, language_model.get_input_embeddings().weight).shape[1]
    config: MemoryBankQFormerConfig = copy.deepcopy(base.config)
    config.text_config, config.projection_dim = language_model.config, width
    if config.video_token_id is None:
        config.video_token_id = language_model.config.vocab_size
    # Configurations remember the folder that they were read from. A saved model must not name it.
    config.name_or_path = config.text_config.name_or_path = ""
    if not is_original:
        warnings.warn(
            f"{type(language_model).__name__} of width {width} is not the language model that this Q-Former was "
            "trained for: its projection begins anew, and the model has to be fine-tuned before its answers mean "
            "anything.",
            stacklevel=2,
        )
        projection = nn.Linear(config.qformer_config.hidden_size, width, dtype=base.dtype)
        nn.init.normal_(projection.weight, std=config.initializer_range)
        nn.init.zeros_(projection.bias)
        base.language_projection = projection
    with torch.device("meta"):
        model = MemoryBankQFormerForConditionalGeneration(config)
    base.config = config
    model.memory_bank_qformer, model.language_model = base, language_model
    model.generation_config = language_model.generation_config
    return model


def load_tokenizer(source: str, subfolder: str = "") -> Any:
    """The tokenizer of a folder or Hub repository, or `None` if there is none."""
    found = cached_file(
        source, "tokenizer_config.json", subfolder=subfolder, _raise_exceptions_for_missing_entries=False
    )
    return None if found is None else AutoTokenizer.from_pretrained(source, subfolder=subfolder)


def make_video_processor(image_size: Any, num_frames: int, **settings: Any) -> VideoClipProcessor:
    """The evaluation recipe, with other `settings`: frames spread over the video, squeezed to a square, mean and
    deviation of CLIP."""
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    recipe = {
        "sampling_strategy": "linspace",
        "size": {"height": height, "width": width},
        "resample": PILImageResampling.BICUBIC,
        "do_center_crop": False,
        "image_mean": list(OPENAI_CLIP_MEAN),
        "image_std": list(OPENAI_CLIP_STD),
    }
    return VideoClipProcessor(num_frames=num_frames, **(recipe | settings))


def make_processor(
    model: MemoryBankQFormerForConditionalGeneration,
    video_processor: VideoClipProcessor,
    tokenizer: Any,
    qformer_tokenizer: Any,
) -> VideoClipProcessor | MemoryBankQFormerProcessor:
    """The processor of videos and texts, or of videos alone if there is no tokenizer. For tokens beyond its embeddings
    the language model gets more."""
    if tokenizer is None:
        return video_processor
    config = model.config
    if config.use_qformer_text_input and qformer_tokenizer is None:
        warnings.warn(
            "This Q-Former was trained to read the question, for which there is no tokenizer: it will read videos "
            "alone. Put its tokenizer into the folder `qformer_tokenizer`, or name it by `--qformer-tokenizer`.",
            stacklevel=2,
        )
    video_token = "<video>"
    if config.video_token_id < config.text_config.vocab_size:
        # The language model was trained with this token.
        video_token = tokenizer.convert_ids_to_tokens(config.video_token_id)
    # A placeholder that is added needs no embedding: the video takes its place.
    num_words = len(tokenizer)
    # Without memory the language model reads every frame's queries.
    has_memory = model.memory_bank_qformer.has_memory
    processor = MemoryBankQFormerProcessor(
        video_processor,
        tokenizer,
        qformer_tokenizer,
        num_query_tokens=config.num_query_tokens * (1 if has_memory else cast(int, video_processor.num_frames)),
        video_token=video_token,
        is_encoder_decoder=config.text_config.is_encoder_decoder,
    )
    config.video_token_id = processor.video_token_id
    if num_words > config.text_config.vocab_size:
        model.resize_token_embeddings(num_words, mean_resizing=False)
    return processor
