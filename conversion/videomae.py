"""
VideoMAE and VideoMAE V2, as VideoViT.

Reads fine-tuned classifiers and pre-trained masked autoencoders. Sources: MCG-NJU/VideoMAE,
`modeling_finetune.VisionTransformer` and `modeling_pretrain.PretrainVisionTransformer`; OpenGVLab/VideoMAEv2, the
files of the same names.
"""

import argparse
from typing import Any

import torch

from hf_video.models.videovit import VideoViTConfig, VideoViTForPreTraining, VideoViTForVideoClassification

from .helpers.checkpoint import (
    ConversionError,
    find_weights,
    preview,
    read_checkpoint,
    shape_of,
    strip_prefixes,
)
from .helpers.command import Converted, make_parser, new_head, run
from .helpers.fields import UNKNOWN, make_config, read_original
from .helpers.videovit import (
    ARGUMENTS,
    ENCODER_ARGUMENTS,
    block_rules,
    make_processor,
    original_fields,
    patch_embedding_rules,
    position_fields,
    read_block_sizes,
)
from .helpers.weight_rules import apply_rules, drop, load_converted, rename

CLASSIFICATION, PRE_TRAINING = "video-classification", "pre-training"

CLASSIFICATION_ARGUMENTS = (
    ARGUMENTS
    | ENCODER_ARGUMENTS
    | {
        "num_classes": ("num_labels", 1000),
        "fc_drop_rate": ("classifier_dropout", 0.0),
        "head_drop_rate": (None, 0.0),
        "init_scale": (None, 0.0),
        "use_mean_pooling": ("use_mean_pooling", True),
    }
)
PRE_TRAINING_ARGUMENTS = ARGUMENTS | {
    **{f"encoder_{name}": row for name, row in ENCODER_ARGUMENTS.items()},
    "encoder_num_classes": (None, 0),
    "decoder_num_classes": (None, 1536),
    "decoder_embed_dim": ("decoder_hidden_size", 512),
    "decoder_depth": ("decoder_num_hidden_layers", 8),
    "decoder_num_heads": ("decoder_num_attention_heads", UNKNOWN),
    # The original takes these as well and ignores them.
    "in_chans": (None, 3),
    "num_classes": (None, None),
}

CLASSIFICATION_RULES = (
    *patch_embedding_rules(r"patch_embed\.proj"),
    *block_rules("", "videovit."),
    rename("pos_embed", "videovit.embeddings.position_embeddings.weight"),
    rename(r"norm\.(weight|bias)", r"videovit.layernorm.\1"),
    rename(r"fc_norm\.(weight|bias)", r"fc_norm.\1"),
    rename(r"head\.(weight|bias)", r"classifier.\1"),
)
ENCODER_RULES = (*patch_embedding_rules(r"encoder\.patch_embed\.proj"), *block_rules(r"encoder\.", "videovit."))
PRE_TRAINING_RULES = (
    *ENCODER_RULES,
    *block_rules(r"decoder\.", "decoder."),
    rename(r"encoder\.norm\.(weight|bias)", r"videovit.layernorm.\1"),
    rename(r"decoder\.(norm|head)\.(weight|bias)", r"decoder.\1.\2"),
    rename("encoder_to_decoder.weight", "encoder_to_decoder.weight"),
    rename("mask_token", "mask_token"),
)
FINE_TUNING_RULES = (
    *ENCODER_RULES,
    drop(r"encoder\.norm\..*", "a classifier normalises the mean token instead, from scratch"),
    drop(r"(decoder\..*|encoder_to_decoder\..*|mask_token)", "the decoder serves pre-training alone"),
)


def convert(arguments: argparse.Namespace) -> Converted:
    """Model and processor for the checkpoint and the task that the command line names."""
    weights = find_weights(read_checkpoint(arguments.checkpoint), ("model", "module"))
    weights = strip_prefixes(weights, ("_orig_mod.", "module.", "backbone."))
    is_pretrained = "encoder.patch_embed.proj.weight" in weights and "mask_token" in weights
    task = arguments.task or (PRE_TRAINING if is_pretrained else CLASSIFICATION)
    if task == PRE_TRAINING and not is_pretrained:
        raise ConversionError(
            f"Pre-training needs the decoder, which this checkpoint lacks. It has {preview(weights)}."
        )
    original, keep_initial = read_original(arguments.original_config), list[str]()
    if not is_pretrained:
        weights = strip_prefixes(weights, ("encoder.",))
        model_class, rules = VideoViTForVideoClassification, CLASSIFICATION_RULES
        fields = classifier_fields(original, weights)
    elif task == PRE_TRAINING:
        model_class, rules = VideoViTForPreTraining, PRE_TRAINING_RULES
        fields = pre_training_fields(original, weights)
    else:
        model_class, rules = VideoViTForVideoClassification, FINE_TUNING_RULES
        keep_initial = [r"fc_norm\..*", r"classifier\..*"]
        fields = pre_training_fields(original, weights)
        fields = {name: value for name, value in fields.items() if not name.startswith("decoder_")}
        fields |= {"use_mean_pooling": True, "classifier_init_scale": 0.001} | new_head(arguments)
    model = model_class(make_config(VideoViTConfig, fields, arguments.set))
    load_converted(model, apply_rules(weights, rules), keep_initial)
    return model, make_processor(model.config, {})


def classifier_fields(original: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Fields of our configuration for a fine-tuned classifier."""
    num_labels = shape_of(weights, "head.weight", 2)[0] if "head.weight" in weights else 0
    found: dict[str, Any] = {"num_labels": num_labels, "use_mean_pooling": "fc_norm.weight" in weights}
    fields = original_fields(original, CLASSIFICATION_ARGUMENTS, weights, **found)
    fields["classifier_dropout"] = fields["classifier_dropout"] or original.get("head_drop_rate", 0.0)
    return fields | position_fields(weights, "interpolate" if "pos_embed" in weights else "rebuild")


def pre_training_fields(original: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Fields of our configuration for a masked autoencoder."""
    if "encoder.pos_embed" in weights or original.get("use_learnable_pos_emb"):
        raise ConversionError(
            "Learned positions never worked in the original pre-training model (its table has one row too many), so "
            "there is no behaviour to convert."
        )
    decoder, width = read_block_sizes(weights, "decoder."), shape_of(weights, "mask_token", 3)[-1]
    found: dict[str, Any] = {
        "decoder_hidden_size": width,
        "decoder_num_hidden_layers": decoder["num_hidden_layers"],
        "decoder_intermediate_size": decoder["intermediate_size"],
    }
    if decoder["use_cosine_attention"]:
        found["decoder_num_attention_heads"] = decoder["num_attention_heads"]
    fields = original_fields(original, PRE_TRAINING_ARGUMENTS, weights, "encoder.", **found)
    return fields | {"position_embedding_resize": "rebuild"}


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument(
        "--task",
        choices=(CLASSIFICATION, PRE_TRAINING),
        help="what to make of a pre-trained checkpoint (default: what it was saved for)",
    )
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
