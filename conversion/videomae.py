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

from .helpers.checkpoint import expect, find_weights, read_checkpoint, shape_of, strip_prefixes
from .helpers.command import Converted, make_parser, new_head, run
from .helpers.fields import UNKNOWN, UNREAD, make_config, read_original
from .helpers.videovit import (
    ARGUMENTS,
    ENCODER_ARGUMENTS,
    ENCODER_RULES,
    block_rules,
    make_processor,
    original_fields,
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
        "use_mean_pooling": ("use_mean_pooling", True),
        **dict.fromkeys(("head_drop_rate", "init_scale"), UNREAD),
    }
)
PRE_TRAINING_ARGUMENTS = ARGUMENTS | {
    **{f"encoder_{name}": row for name, row in ENCODER_ARGUMENTS.items()},
    "decoder_embed_dim": ("decoder_hidden_size", 512),
    "decoder_depth": ("decoder_num_hidden_layers", 8),
    "decoder_num_heads": ("decoder_num_attention_heads", UNKNOWN),
    # The original ignores these.
    **dict.fromkeys(("encoder_num_classes", "decoder_num_classes", "in_chans", "num_classes"), UNREAD),
}

RULES = (
    *ENCODER_RULES,
    *block_rules(r"decoder\.", "decoder."),
    rename(r"head\.(weight|bias)", r"classifier.\1"),
    rename(r"(fc_norm|decoder\.norm|decoder\.head)\.(weight|bias)", r"\1.\2"),
    rename(r"(encoder_to_decoder\.weight|mask_token)", r"\1"),
)
FINE_TUNING_RULES = (
    drop(r"norm\..*", "a classifier normalises the mean token instead, from scratch"),
    drop(r"(decoder\..*|encoder_to_decoder\..*|mask_token)", "the decoder serves pre-training alone"),
)


def convert(arguments: argparse.Namespace) -> Converted:
    """Model and processor for the checkpoint and the task that the command line names."""
    weights = find_weights(read_checkpoint(arguments.checkpoint), ("model", "module"))
    weights = strip_prefixes(weights, ("_orig_mod.", "module.", "backbone.", "encoder."))
    is_pretrained = "mask_token" in weights
    task = arguments.task or (PRE_TRAINING if is_pretrained else CLASSIFICATION)
    if task == PRE_TRAINING:
        expect(weights, "a pre-training model with its decoder", "mask_token")
    original, rules, keep_initial = read_original(arguments.original_config), RULES, list[str]()
    fields = (pre_training_fields if is_pretrained else classifier_fields)(original, weights)
    if is_pretrained and task == CLASSIFICATION:
        rules, keep_initial = (*FINE_TUNING_RULES, *RULES), [r"fc_norm\..*", r"classifier\..*"]
        fields = {name: value for name, value in fields.items() if not name.startswith("decoder_")}
        fields |= {"use_mean_pooling": True, "classifier_init_scale": 0.001} | new_head(arguments)
    model_class = VideoViTForPreTraining if task == PRE_TRAINING else VideoViTForVideoClassification
    model = model_class(make_config(VideoViTConfig, fields, arguments.set))
    load_converted(model, apply_rules(weights, rules), keep_initial)
    return model, make_processor(model.config, {})


def classifier_fields(original: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Fields of our configuration for a fine-tuned classifier."""
    num_labels = shape_of(weights, "head.weight", 2)[0] if "head.weight" in weights else 0
    found: dict[str, Any] = {"num_labels": num_labels, "use_mean_pooling": "fc_norm.weight" in weights}
    resize = "interpolate" if "pos_embed" in weights else "rebuild"
    fields = original_fields(original, CLASSIFICATION_ARGUMENTS, weights, resize, **found)
    return fields | {"classifier_dropout": fields["classifier_dropout"] or original.get("head_drop_rate", 0.0)}


def pre_training_fields(original: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Fields of our configuration for a masked autoencoder."""
    decoder = read_block_sizes(weights, "decoder.") | {"hidden_size": shape_of(weights, "mask_token", 3)[-1]}
    names = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
    found = {f"decoder_{name}": decoder[name] for name in names if name in decoder}
    return original_fields(original, PRE_TRAINING_ARGUMENTS, weights, "rebuild", **found)


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
