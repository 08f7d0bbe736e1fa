"""
The Q-Former of MA-LMM and its language model, as MemoryBankQFormer.

Source: boheumd/MA-LMM, `Blip2VicunaInstruct_MALMM`. The original's trainer saves only the weights that it trained. The
frozen vision tower comes from `--frozen-weights` or `--vision`; without either, the model takes precomputed
`vision_embeds`. The frozen language model comes from `--llm`; without it, the model ends with the projection to it.
"""

import argparse
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModel,
    GenerationConfig,
    InstructBlipQFormerConfig,
    InstructBlipVisionConfig,
    InstructBlipVisionModel,
    LlamaConfig,
)

from hf_video.loading.configurations import load_config
from hf_video.models.memory_bank_qformer import MemoryBankQFormerConfig, MemoryBankQFormerModel
from hf_video.processing import VideoClipProcessor

from .helpers.checkpoint import (
    ConversionError,
    count_layers,
    expect,
    find_weights,
    name_left_out,
    read_checkpoint,
    select_part,
    shape_of,
)
from .helpers.command import Converted, make_parser, run
from .helpers.fields import UNKNOWN, Part, agree, bert_fields, make_config, read_original, read_section, with_heads
from .helpers.memory_bank_qformer import (
    load_language_model,
    load_pretrained,
    load_tokenizer,
    make_processor,
    make_video_processor,
    with_language_model,
)
from .helpers.weight_rules import apply_rules, drop, load_converted, rename

LAYER = r"Qformer\.bert\.encoder\.layer\.(\d+)\."
RULES = (
    rename("query_tokens", "query_tokens"),
    rename(r"ln_vision\.(weight|bias)", r"vision_layernorm.\1"),
    rename(r"image_pe\.weight", "frame_position_embeddings.weight"),
    rename(r"llm_proj\.(weight|bias)", r"language_projection.\1"),
    rename(r"Qformer\.bert\.embeddings\.LayerNorm\.(weight|bias)", r"qformer.embeddings.layernorm.\1"),
    rename(r"Qformer\.bert\.embeddings\.((?:word|position)_embeddings)\.weight", r"qformer.embeddings.\1.weight"),
    rename(LAYER + r"attention\.self\.(.*)", r"qformer.layers.\1.self_attention.attention.\2"),
    rename(LAYER + r"attention\.output\.(.*)", r"qformer.layers.\1.self_attention.output.\2"),
    rename(LAYER + r"crossattention\.self\.(.*)", r"qformer.layers.\1.cross_attention.attention.\2"),
    rename(LAYER + r"crossattention\.output\.(.*)", r"qformer.layers.\1.cross_attention.output.\2"),
    rename(LAYER + r"((?:intermediate|output)(?:_query)?\..*)", r"qformer.layers.\1.\2"),
    drop(r"Qformer\.bert\.embeddings\.position_ids", "counts from 0; the model makes it itself"),
    drop(r"Qformer\.cls\..*", "predicts masked words, which no stage of MA-LMM does"),
    drop(r"llm_model\..*", "the frozen language model, which `--llm` brings"),
    drop(r"visual_encoder\..*", "the frozen vision tower, which `--frozen-weights` or `--vision` brings"),
)

# For tensors that some models do not have, by their names there.
UNUSED_RULES = {
    "frame_position_embeddings.weight": drop(
        r"image_pe\.weight", "the original adds it only if there is a visual bank"
    ),
    "vision_layernorm.weight": drop(r"ln_vision\..*", "`vision_embeds` are taken after this norm"),
}
BLOCK = r"blocks\.(\d+)\."
VISION_RULES = (
    rename("cls_token", "vision_model.embeddings.class_embedding"),
    rename("pos_embed", "vision_model.embeddings.position_embedding"),
    rename(r"patch_embed\.proj\.(weight|bias)", r"vision_model.embeddings.patch_embedding.\1"),
    rename(BLOCK + r"norm([12])\.(weight|bias)", r"vision_model.encoder.layers.\1.layer_norm\2.\3"),
    rename(BLOCK + r"attn\.qkv\.weight", r"vision_model.encoder.layers.\1.self_attn.qkv.weight"),
    rename(BLOCK + r"attn\.qkv\.bias", r"vision_model.encoder.layers.\1.self_attn.qkv.bias"),
    rename(BLOCK + r"attn\.proj\.(weight|bias)", r"vision_model.encoder.layers.\1.self_attn.projection.\2"),
    rename(BLOCK + r"mlp\.(fc[12])\.(weight|bias)", r"vision_model.encoder.layers.\1.mlp.\2.\3"),
)

VISION_ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "embed_dim": ("hidden_size", 1408),
    "patch_size": ("patch_size", 14),
    "img_size": ("image_size", 224),
    "depth": ("num_hidden_layers", 39),
    "mlp_hidden": ("intermediate_size", 6144),
    "qkv_bias": ("qkv_bias", True),
    "num_heads": ("num_attention_heads", UNKNOWN),
    "layer_norm_eps": ("layer_norm_eps", 1e-6),
}
MODEL_ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "num_query_token": ("num_query_tokens", 32),
    "qformer_text_input": ("use_qformer_text_input", True),
    # 10, 20 or 40 in the published recipes
    "memory_bank_length": ("memory_bank_length", UNKNOWN),
    "max_num_frames": ("max_num_frames", 120),
}
# What tensors show of the Q-Former, by the names of the original `BertConfig`.
QFORMER_NAMES = {
    **{name: name for name in ("hidden_size", "num_hidden_layers", "intermediate_size")},
    **{name: name for name in ("vocab_size", "max_position_embeddings")},
    **{"encoder_width": "encoder_hidden_size", "cross_attention_freq": "cross_attention_frequency"},
}
# The sections of the original configuration: the constructor's keyword arguments, Q-Former, vision tower and Llama.
SECTIONS = ("model_kwargs", "bert_config", "vision_config", "llm_config")


# A vision tower: its configuration, and its weights by their names in our model.
Tower = tuple[Any, dict[str, torch.Tensor]]


def convert(arguments: argparse.Namespace) -> Converted:
    """Model and processor for the files that the command line names."""
    if arguments.qformer_tokenizer and not arguments.llm:
        raise ConversionError("`--qformer-tokenizer` prepares texts, which need a language model: pass `--llm`, too.")
    weights = find_weights(read_checkpoint(arguments.checkpoint), ("model",))
    original = read_original(arguments.original_config, *SECTIONS)
    vision_config, tower = read_tower(arguments, original["vision_config"])
    fields = memory_bank_qformer_fields(original, weights, vision_config)
    config = make_config(MemoryBankQFormerConfig, fields, arguments.set)
    model = MemoryBankQFormerModel(config)
    kept = model.state_dict()
    unused = [rule for name, rule in UNUSED_RULES.items() if name not in kept]
    load_converted(model, apply_rules(weights, (*unused, *RULES)) | tower)
    image_size = getattr(config.vision_config, "image_size", original["model_kwargs"].get("img_size", 224))
    processor = make_video_processor(image_size, original["model_kwargs"].get("num_frames", 20))
    if arguments.llm:
        return add_language_model(model, processor, arguments, original["llm_config"])
    return model, processor


def memory_bank_qformer_fields(
    original: dict[str, Any], weights: dict[str, torch.Tensor], vision_config: Any
) -> dict[str, Any]:
    """Fields of our configuration for an original one and the checkpoint's tensors."""
    expect(weights, "MA-LMM's Q-Former", "query_tokens", "Qformer.bert.embeddings.LayerNorm.weight")
    has_text = "Qformer.bert.embeddings.word_embeddings.weight" in weights
    found = {"num_query_tokens": shape_of(weights, "query_tokens", 3)[1], "use_qformer_text_input": has_text}
    if "image_pe.weight" in weights:
        found["max_num_frames"] = shape_of(weights, "image_pe.weight", 2)[0]
    bert, sizes = dict(original["bert_config"]), read_qformer_sizes(weights)
    if has_text and bert.get("vocab_size") == sizes["vocab_size"] - 1:
        # The tokenizer has [DEC] besides BERT's vocabulary.
        bert["vocab_size"] = sizes["vocab_size"]
    agree(bert, {"query_length": found["num_query_tokens"]})
    kept = {name: bert[name] for name in ("vocab_size", "max_position_embeddings") if name in bert}
    qformer = kept | {"position_embedding_type": bert.get("position_embedding_type", "absolute")}
    qformer |= bert_fields(bert, sizes, QFORMER_NAMES)
    return {
        **read_section(original["model_kwargs"], MODEL_ARGUMENTS, found),
        **language_model_fields(original["llm_config"], weights),
        "vision_config": vision_config,
        "qformer_config": Part(InstructBlipQFormerConfig, qformer),
    }


def read_qformer_sizes(weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The fields of the Q-Former that tensors show."""
    depth = count_layers(weights, LAYER)
    crossed = {int(match[1]) for name in weights if (match := re.match(LAYER + "crossattention", name))}
    first = "Qformer.bert.encoder.layer.0."
    sizes = {
        "hidden_size": shape_of(weights, "query_tokens", 3)[2],
        "num_hidden_layers": depth,
        "intermediate_size": shape_of(weights, f"{first}intermediate_query.dense.weight", 2)[0],
        "encoder_hidden_size": shape_of(weights, f"{first}crossattention.self.key.weight", 2)[1],
        "cross_attention_frequency": min(crossed - {0}, default=depth),
    }
    for name, field in (("word_embeddings", "vocab_size"), ("position_embeddings", "max_position_embeddings")):
        if (table := f"Qformer.bert.embeddings.{name}.weight") in weights:
            sizes[field] = shape_of(weights, table, 2)[0]
    return sizes


def language_model_fields(original: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The width of the projection's output, and the language model's configuration if the original has one."""
    if "llm_proj.weight" not in weights:
        return {}
    width = shape_of(weights, "llm_proj.weight", 2)[0]
    known = {field.name for field in fields(LlamaConfig)}
    settings = {name: value for name, value in agree(original, {"hidden_size": width}).items() if name in known}
    return {"projection_dim": width, "text_config": LlamaConfig(**settings) if original else None}


def read_tower(arguments: argparse.Namespace, original: dict[str, Any]) -> Tower:
    """The vision tower that the command line names; without one there is neither configuration nor weights."""
    if arguments.vision:
        return load_tower(arguments.vision)
    if not arguments.frozen_weights:
        return None, {}
    weights = find_weights(read_checkpoint(arguments.frozen_weights), ("model",))
    return eva_tower(original, select_part(weights, "visual_encoder.", "only the vision tower is taken"))


def eva_tower(original: dict[str, Any], weights: dict[str, torch.Tensor]) -> Tower:
    """EVA-ViT from its tensors and the `vision_config` section."""
    expect(weights, "EVA-ViT", "patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight")
    width, _, patch_size, _ = shape_of(weights, "patch_embed.proj.weight", 4)
    found = {
        "hidden_size": width,
        "patch_size": patch_size,
        "image_size": math.isqrt(shape_of(weights, "pos_embed", 3)[1] - 1) * patch_size,
        "num_hidden_layers": count_layers(weights, BLOCK),
        "intermediate_size": shape_of(weights, "blocks.0.mlp.fc1.weight", 2)[0],
        "qkv_bias": "blocks.0.attn.q_bias" in weights,
    }
    for number in range(found["num_hidden_layers"] if found["qkv_bias"] else 0):
        # Keys have no bias.
        query, value = (weights.pop(f"blocks.{number}.attn.{letter}_bias", torch.empty(0)) for letter in "qv")
        weights[f"blocks.{number}.attn.qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])
    fields = with_heads(read_section(original, VISION_ARGUMENTS, found))
    return Part(InstructBlipVisionConfig, fields), apply_rules(weights, VISION_RULES)


def load_tower(source: str) -> Tower:
    """An image encoder from a folder or the Hub. Of InstructBLIP only the EVA-ViT is read."""
    if load_config(source).model_type in ("instructblip", "instructblip_vision_model"):
        tower = load_pretrained(InstructBlipVisionModel, source, key_mapping={r"^vision_model\.": ""})
    else:
        tower = load_pretrained(AutoModel, source)
    weights = tower.state_dict()
    if isinstance(tower, InstructBlipVisionModel):
        norm = [name for name in weights if name.startswith("post_layernorm.")]
        name_left_out(norm, "this norm was trained with the Q-Former, and is in the checkpoint")
        weights = {name: tensor for name, tensor in weights.items() if name not in norm}
    return tower.config, {f"vision_model.{name}": tensor for name, tensor in weights.items()}


def add_language_model(
    base: MemoryBankQFormerModel,
    processor: VideoClipProcessor,
    arguments: argparse.Namespace,
    llm: dict[str, Any],
) -> Converted:
    """The whole of the original: the Q-Former, followed by the language model that the command line names."""
    language_model = load_language_model(arguments.llm)
    llama, sizes = language_model.config, ("num_hidden_layers", "num_attention_heads", "intermediate_size")
    is_original = (
        llama.model_type == "llama"
        and llama.hidden_size == base.config.projection_dim
        and all(llm.get(name, getattr(llama, name)) == getattr(llama, name) for name in sizes)
    )
    # The original puts the video before the text, without tokens that hold its place.
    base.config.video_token_id = None
    model = with_language_model(base, language_model, is_original)
    tokenizer = load_tokenizer(arguments.llm)
    if tokenizer is not None and is_original:
        # The original begins and ends texts with the same token, and adds a token for padding.
        end = tokenizer.eos_token
        tokenizer.add_special_tokens({"bos_token": end, "unk_token": end, "pad_token": "[PAD]"})
        tokenizer.add_bos_token = True
    # These are the settings of the original's `generate`. Those of the language model are not used.
    model.generation_config = GenerationConfig(
        **{f"{name}_token_id": getattr(tokenizer or llama, f"{name}_token_id") for name in ("bos", "eos", "pad")},
        **{"num_beams": 5, "repetition_penalty": 1.5, "max_new_tokens": 255},
    )
    qformer_tokenizer = load_tokenizer(arguments.qformer_tokenizer) if arguments.qformer_tokenizer else None
    return model, make_processor(model, processor, tokenizer, qformer_tokenizer)


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    parser = make_parser(__file__, __doc__)
    towers = parser.add_mutually_exclusive_group()
    towers.add_argument(
        "--frozen-weights", type=Path, metavar="FILE", help="an original file with `visual_encoder.*`, EVA-ViT"
    )
    towers.add_argument(
        "--vision", metavar="HUB_ID_OR_DIR", help="a Transformers image encoder, or InstructBLIP for its EVA-ViT"
    )
    parser.add_argument("--llm", metavar="HUB_ID_OR_DIR", help="the language model, Vicuna-7B v1.1 for the published")
    parser.add_argument(
        "--qformer-tokenizer",
        metavar="HUB_ID_OR_DIR",
        help="tokenizer of the Q-Former's text, google-bert/bert-base-uncased for the published",
    )
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
