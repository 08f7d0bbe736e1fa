"""
VideoMamba with text: the multimodal models, as VideoTextDualEncoder.

Reads files of pre-training and of retrieval, with or without the CLIP teacher. Source: OpenGVLab/VideoMamba,
`UMT_VIDEOMAMBA` of `videomamba/video_mm/models/umt_videomamba.py`. FILE.json has the objects `config` and
`bert_config` of the original; without it the settings are those of the released models. The tokenizer is not in the
file: it comes from `--tokenizer`, for the released models "bert-base-uncased".
"""

import argparse
import re
from typing import Any

import torch
from transformers import BertConfig
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from hf_video.models.video_text import (
    VideoTextDualEncoderConfig,
    VideoTextDualEncoderModel,
    VideoTextDualEncoderProcessor,
)
from hf_video.models.videomamba import VideoMambaConfig

from .helpers.checkpoint import (
    ConversionError,
    count_layers,
    expect,
    find_weights,
    read_checkpoint,
    select_prefix,
    shape_of,
    strip_prefixes,
)
from .helpers.command import Converted, make_parser, run
from .helpers.fields import Part, agree, bert_fields, make_config, read_original, read_section
from .helpers.memory_bank_qformer import load_tokenizer, make_video_processor
from .helpers.videomamba import (
    ARGUMENTS,
    ENCODER_RULES,
    PRE_TRAINING_RULES,
    TELLING_TENSORS,
    encoder_fields,
    patch_rule,
)
from .helpers.weight_rules import Rule, apply_rules, drop, inside, load_converted, rename

BERT = r"text_encoder\.(?:bert\.)?"
LAYER = BERT + r"encoder\.layer\.(\d+)\."
PREDICTIONS = r"text_encoder\.cls\.predictions\."
HEAD_RULES = (
    rename("temp", "temperature"),
    rename(r"vision_proj\.(weight|bias)", r"video_projection.\1"),
    rename(r"text_proj\.(weight|bias)", r"text_projection.\1"),
    rename(r"itm_head\.(weight|bias)", r"match_head.\1"),
    rename(r"vision_encoder\.pool_norm\.(weight|bias)", r"pool_norm.\1"),
    rename(PREDICTIONS + r"bias", "mlm_head.decoder.bias"),
    rename(PREDICTIONS + r"transform\.dense\.(weight|bias)", r"mlm_head.dense.\1"),
    rename(PREDICTIONS + r"transform\.LayerNorm\.(weight|bias)", r"mlm_head.layer_norm.\1"),
    rename(PREDICTIONS + r"decoder\.weight", "mlm_head.decoder.weight"),
    drop(PREDICTIONS + r"decoder\.bias", "the original has this bias under two names"),
    drop(BERT + r"embeddings\.position_ids", "counts from 0; the model makes it itself"),
    drop(r"clip_teacher\..*", "the teacher of pre-training, CLIP ViT-B/16, which has a repository of its own"),
)

# What the released models were trained with (`configs/config_pretrain.py` and the scripts in `exp_pt`).
VISION_ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "pool_type": ("pooling", "cls+avg"),
    "keep_temporal": ("keep_temporal", True),
    "video_mask_type": ("video_mask_type", "attention"),
    "video_mask_ratio": ("video_mask_ratio", 0.8),
    "image_mask_type": ("image_mask_type", "attention"),
    "image_mask_ratio": ("image_mask_ratio", 0.5),
}
CRITERION_ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "loss_weight": ("loss_weights", {"vtc": 1.0, "mlm": 1.0, "vtm": 1.0, "uta": 1.0}),
    "vtm_hard_neg": ("vtm_hard_negatives", True),
    "mlm_masking_prob": ("mlm_probability", 0.5),
    "uta_image_only": ("align_images_only", False),
}


def convert(arguments: argparse.Namespace) -> Converted:
    """Model and processor for the checkpoint that the command line names."""
    weights = strip_prefixes(find_weights(read_checkpoint(arguments.checkpoint), ("model", "module")), ("module.",))
    tokenizer = None if arguments.tokenizer is None else load_tokenizer(arguments.tokenizer)
    original = read_original(arguments.original_config, "config", "bert_config")
    config = make_config(VideoTextDualEncoderConfig, dual_encoder_fields(original, weights), arguments.set)
    if tokenizer is None:
        print(
            "Warning: there is no tokenizer, so the processor takes videos alone: convert with `--tokenizer "
            'DIR_OR_ID`, for the released models "bert-base-uncased".'
        )
    elif len(tokenizer) > config.text_config.vocab_size:
        raise ConversionError(
            f"The tokenizer has {len(tokenizer)} tokens, the model {config.text_config.vocab_size} word embeddings: "
            'pass the tokenizer that it was trained with, for the released models "bert-base-uncased".'
        )
    else:
        config.cls_token_id, config.mask_token_id = tokenizer.cls_token_id, tokenizer.mask_token_id
    model = VideoTextDualEncoderModel(config)
    load_converted(model, apply_rules(weights, rules_for(config)))
    # The middle frames of equal segments, squeezed to a square, as in the original's evaluation.
    video_processor = make_video_processor(
        config.vision_config.image_shape,
        config.vision_config.num_frames,
        sampling_strategy="middle",
        round_resized=True,
        image_mean=IMAGENET_DEFAULT_MEAN,
        image_std=IMAGENET_DEFAULT_STD,
    )
    return model, VideoTextDualEncoderProcessor(video_processor, tokenizer)


def dual_encoder_fields(original: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Fields of our configuration for an original one and the checkpoint's tensors."""
    telling = (f"vision_encoder.{name}" for name in TELLING_TENSORS)
    expect(weights, "a multimodal VideoMamba", *telling, "vision_proj.weight", "text_proj.weight")
    model, criterion = (original["config"].get(name) or {} for name in ("model", "criterion"))
    vision = model.get("vision_encoder") or {}
    has_mlm_head = "text_encoder.cls.predictions.bias" in weights
    has_alignment_heads = any(name.startswith("vision_encoder.clip_decoder.") for name in weights)
    text_fields, fusion_layer = read_text_fields(original["bert_config"], weights)
    agree(model.get("text_encoder") or {}, {"fusion_layer": fusion_layer})
    sizes = agree(model, {"embed_dim": shape_of(weights, "vision_proj.weight", 2)[0]})
    fields = read_section(vision, VISION_ARGUMENTS, {}) | read_section(criterion, CRITERION_ARGUMENTS, {})
    head = weights.get("text_encoder.cls.predictions.decoder.weight")
    embeddings = weights.get("text_encoder.bert.embeddings.word_embeddings.weight")
    is_absent = {"mlm": not has_mlm_head, "uta": not has_alignment_heads}
    losses = fields["loss_weights"].items()
    fields |= {
        "vision_config": vision_part(vision, criterion, select_prefix(weights, "vision_encoder.")),
        "text_config": Part(BertConfig, text_fields),
        "fusion_layer": fusion_layer,
        "projection_dim": sizes["embed_dim"],
        "split_by_input_frames": True,
        "temperature": sizes.get("temp", 0.07),
        "use_mlm_head": has_mlm_head,
        "use_alignment_heads": has_alignment_heads,
        "loss_weights": {name: 0.0 if is_absent.get(name) else float(weight) for name, weight in losses},
        "tie_word_embeddings": head is None or embeddings is None or head.is_meta or torch.equal(head, embeddings),
    }
    if text_fields["vocab_size"] <= 103:
        fields |= {"cls_token_id": None, "mask_token_id": None}
    return fields


def vision_part(vision: dict[str, Any], criterion: dict[str, Any], weights: dict[str, torch.Tensor]) -> Part:
    """The configuration of the video encoder. The loss of the alignment stands in the original's `criterion`."""
    known = {name: value for name, value in vision.items() if name in ARGUMENTS}
    fields, alignment = encoder_fields(known | {"clip_norm_type": criterion.get("uta_norm_type", "l2")}, weights)
    fields |= {
        "use_temporal_position_embeddings": "temporal_pos_embedding" in weights,
        "use_single_frame_position": False,
    }
    if alignment:
        loss = criterion.get("uta_loss_type", "l2")
        alignment["alignment_loss"] = "cosine" if loss == "l2" else loss
    return Part(VideoMambaConfig, fields | alignment)


def read_text_fields(original: dict[str, Any], weights: dict[str, torch.Tensor]) -> tuple[dict[str, Any], int]:
    """Fields of the configuration of text and fusion encoder, and the index of the first fusion layer."""
    text = {re.sub(BERT, "", name): tensor for name, tensor in weights.items() if re.match(BERT, name)}
    fusing = [int(match[1]) for name in text if (match := re.match(r"encoder\.layer\.(\d+)\.crossattention\.", name))]
    if not fusing:
        raise ConversionError("There is no layer with cross-attention, in which words attend to the video.")
    embeddings, first = "embeddings.{}_embeddings.weight", f"encoder.layer.{min(fusing)}."
    vocab_size, width = shape_of(text, embeddings.format("word"), 2)
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": count_layers(text, r"encoder\.layer\.(\d+)\."),
        "intermediate_size": shape_of(text, "encoder.layer.0.intermediate.dense.weight", 2)[0],
        "max_position_embeddings": shape_of(text, embeddings.format("position"), 2)[0],
        "type_vocab_size": shape_of(text, embeddings.format("token_type"), 2)[0],
    }
    encoder_width = shape_of(text, f"{first}crossattention.self.key.weight", 2)[1]
    agree(original, {"fusion_layer": min(fusing), "encoder_width": encoder_width})
    return bert_fields(original, sizes, {name: name for name in sizes}), min(fusing)


def rules_for(config: VideoTextDualEncoderConfig) -> tuple[Rule, ...]:
    """What becomes of every tensor. The rules of the video encoder are those of a VideoMamba of its own."""
    # With heads for an alignment the tower is a model of pre-training, which holds the encoder.
    tower, encoder = ("vision_model.", "") if config.use_alignment_heads else ("vision_model", "videomamba")
    rules = (patch_rule(1, "centre"), *ENCODER_RULES, *PRE_TRAINING_RULES)
    vision = inside(r"vision_encoder\.", rules, lambda target: tower + target.removeprefix(encoder))
    text, fusion = [], []
    for number in range(config.text_config.num_hidden_layers):
        layer = BERT + rf"encoder\.layer\.{number}\."
        if number < config.fusion_layer:
            text.append(rename(layer + "(.*)", rf"text_model.encoder.layer.{number}.\1"))
            continue
        target = f"fusion_layers.{number - config.fusion_layer}."
        for source, ours in (("attention", "self_attention"), ("crossattention", "cross_attention")):
            fusion.append(rename(rf"{layer}{source}\.self\.(.*)", rf"{target}{ours}.\1"))
            fusion.append(rename(rf"{layer}{source}\.output\.(.*)", rf"{target}{ours}.output.\1"))
        fusion.append(rename(layer + r"((?:intermediate|output)\..*)", rf"{target}\1"))
    embeddings = rename(BERT + r"embeddings\.(.*)", r"text_model.embeddings.\1")
    return (*HEAD_RULES, *vision, *text, *fusion, embeddings)


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument(
        "--tokenizer",
        metavar="DIR_OR_ID",
        help="folder or Hub id of the tokenizer of the texts (default: none; the processor then takes videos alone)",
    )
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
