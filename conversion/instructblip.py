"""
InstructBLIP and BLIP-2 of Transformers, as MemoryBankQFormer.

MA-LMM starts from these weights, and from those of InstructBlipVideo. The Q-Former reads a video frame by frame into a
memory, where the original reads one image. For a video of one frame the output is that of the original for an image.
"""

import argparse
from dataclasses import fields
from typing import Any

from torch import nn
from transformers import InstructBlipQFormerConfig, InstructBlipVisionConfig

from hf_video.loading.configurations import load_config
from hf_video.loading.processors import read_options
from hf_video.models.memory_bank_qformer import MemoryBankQFormerConfig, MemoryBankQFormerModel

from .helpers.checkpoint import ConversionError
from .helpers.command import Converted, make_parser, run
from .helpers.fields import Part, make_config
from .helpers.memory_bank_qformer import (
    load_language_model,
    load_pretrained,
    load_tokenizer,
    make_processor,
    make_video_processor,
    with_language_model,
)
from .helpers.videovit import PROCESSOR_OPTIONS

MODEL_TYPES = ("instructblip", "instructblipvideo", "blip-2")

# Applied one after the other. `vision_layernorm` is the norm after the vision tower, in BLIP a part of the tower.
KEY_MAPPING = {
    r"^vision_model\.post_layernorm\.": "vision_layernorm.",
    r"^qformer\.layernorm\.": "qformer.embeddings.layernorm.",
    r"^qformer\.encoder\.layer\.(\d+)\.": r"qformer.layers.\1.",
    r"\.crossattention\.": ".cross_attention.",
    r"(layers\.\d+)\.attention\.": r"\1.self_attention.",
}
LANGUAGE_MODEL_KEY_MAPPING = {r"^(?!language_model\.)": "other.", r"^language_model\.": ""}
# Frames that each bank holds; `--set memory_bank_length=N` has others.
MEMORY_BANK_LENGTH = 20
OF_VIDEOS_ALONE = ("frame_position_embeddings.weight",)


def convert(arguments: argparse.Namespace) -> Converted:
    """Model and processor for the folder or Hub id that the command line names."""
    source = arguments.checkpoint
    original = load_config(source)
    config = make_config(MemoryBankQFormerConfig, memory_bank_qformer_fields(original), arguments.set)
    base = load_pretrained(
        MemoryBankQFormerModel,
        source,
        OF_VIDEOS_ALONE,
        other_parts=() if arguments.llm else ("language_model.",),
        config=config,
        key_mapping=KEY_MAPPING,
        dtype=original.dtype or "auto",
    )
    # Images have no place in time: the table begins with zeros, as in MA-LMM.
    nn.init.zeros_(base.frame_position_embeddings.weight)
    if arguments.llm:
        # The place of a video was a token of the original vocabulary.
        base.config.video_token_id = None
        language_model = load_language_model(arguments.llm)
    else:
        language_model = load_language_model(
            source,
            other_parts=("other.",),
            config=original.text_config,
            key_mapping=LANGUAGE_MODEL_KEY_MAPPING,
            dtype=base.dtype,
        )
    model = with_language_model(base, language_model, is_original=not arguments.llm)
    qformer_tokenizer = load_tokenizer(source, "qformer_tokenizer") if config.use_qformer_text_input else None
    # The options of the original's processor that also apply to frames.
    shared = {*PROCESSOR_OPTIONS} - {"do_center_crop", "crop_size"}
    settings = {name: value for name, value in read_options(source).items() if name in shared}
    video_processor = make_video_processor(config.vision_config.image_size, arguments.num_frames, **settings)
    tokenizer = load_tokenizer(arguments.llm or source)
    return model, make_processor(model, video_processor, tokenizer, qformer_tokenizer)


def memory_bank_qformer_fields(original: Any) -> dict[str, Any]:
    """Fields of our configuration for that of an original model, which may be of a type that cannot be converted."""
    if original.model_type not in MODEL_TYPES:
        raise ConversionError(f"Expected a model of type {', '.join(MODEL_TYPES)}, got {original.model_type!r}.")
    vision, qformer = original.vision_config, original.qformer_config
    is_video = original.model_type == "instructblipvideo"
    return {
        "vision_config": Part(InstructBlipVisionConfig, shared_fields(vision, InstructBlipVisionConfig)),
        "qformer_config": Part(InstructBlipQFormerConfig, shared_fields(qformer, InstructBlipQFormerConfig)),
        "text_config": original.text_config,
        "num_query_tokens": original.num_query_tokens,
        "use_qformer_text_input": original.model_type != "blip-2",
        "memory_bank_length": MEMORY_BANK_LENGTH,
        "vision_layer_norm_eps": vision.layer_norm_eps,
        "initializer_range": original.initializer_range,
        "video_token_id": original.video_token_id if is_video else original.image_token_id,
    }


def shared_fields(config: Any, config_class: Any) -> dict[str, Any]:
    """What a configuration has in the fields that `config_class` itself defines; inherited fields are left out."""
    inherited = {field.name for field in fields(config_class.__base__)}
    return {field.name: getattr(config, field.name) for field in fields(config_class) if field.name not in inherited}


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    parser = make_parser(__file__, __doc__, from_hub=True)
    parser.add_argument(
        "--num-frames", type=int, default=20, help="frames that the processor takes of a video (default: 20)"
    )
    parser.add_argument(
        "--llm", metavar="HUB_ID_OR_DIR", help="another language model; the projection to it is initialised again"
    )
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
