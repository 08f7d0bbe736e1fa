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
from hf_video.processing import VideoClipProcessor

from .helpers.checkpoint import (
    ConversionError,
    agree,
    find_weights,
    num_heads_of,
    preview,
    read_checkpoint,
    read_original_config,
    shape_of,
    strip_prefixes,
)
from .helpers.command import Converted, make_parser, num_labels_of_new_head, positive_int, run
from .helpers.videovit import (
    DECODER_HEADS,
    ENCODER_HEADS,
    block_rules,
    check_blocks,
    encoder_config,
    patch_embedding_rules,
    processor_settings,
    read_block_sizes,
    read_patch_sizes,
)
from .helpers.weight_rules import apply_rules, drop, load_converted, rename

CLASSIFICATION, PRE_TRAINING = "video-classification", "pre-training"

SHARED_ARGUMENTS = {
    "img_size": 224,
    "patch_size": 16,
    "mlp_ratio": 4,
    "qkv_bias": False,
    "qk_scale": None,
    "drop_rate": 0.0,
    "attn_drop_rate": 0.0,
    "drop_path_rate": 0.0,
    "init_values": 0.0,
    "use_learnable_pos_emb": False,
    "all_frames": 16,
    "tubelet_size": 2,
    "cos_attn": False,
    "in_chans": 3,
    "num_classes": None,
    "use_checkpoint": False,
    "with_cp": False,
}
CLASSIFICATION_ARGUMENTS = SHARED_ARGUMENTS | {
    "embed_dim": 768,
    "depth": 12,
    "num_heads": 12,
    "fc_drop_rate": 0.0,
    "head_drop_rate": 0.0,
    "init_scale": 0.0,
    "use_mean_pooling": True,
}
PRE_TRAINING_ARGUMENTS = SHARED_ARGUMENTS | {
    "encoder_in_chans": 3,
    "encoder_num_classes": 0,
    "encoder_embed_dim": 768,
    "encoder_depth": 12,
    "encoder_num_heads": 12,
    "decoder_num_classes": 1536,
    "decoder_embed_dim": 512,
    "decoder_depth": 8,
    "decoder_num_heads": 8,
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
    if arguments.num_labels is not None and not (is_pretrained and task == CLASSIFICATION):
        raise ConversionError("`--num-labels` is for the new head that turns a pre-trained model into a classifier.")

    if is_pretrained:
        original = read_pre_training_config(arguments, weights)
        config = encoder_config(original, "encoder_") | {"position_embedding_resize": "rebuild"}
    else:
        weights = strip_prefixes(weights, ("encoder.",))
        original = read_classification_config(arguments, weights)
        config = encoder_config(original) | classifier_settings(original)

    if task == PRE_TRAINING:
        model = VideoViTForPreTraining(VideoViTConfig(**config, **decoder_config(original)))
        load_converted(model, apply_rules(weights, PRE_TRAINING_RULES))
    elif is_pretrained:
        num_labels = num_labels_of_new_head(arguments)
        model = VideoViTForVideoClassification(
            VideoViTConfig(**config, use_mean_pooling=True, classifier_init_scale=0.001, num_labels=num_labels)
        )
        load_converted(
            model, apply_rules(weights, FINE_TUNING_RULES), keep_initial=[r"fc_norm\..*", r"classifier\..*"]
        )
    else:
        model = VideoViTForVideoClassification(VideoViTConfig(**config))
        load_converted(model, apply_rules(weights, CLASSIFICATION_RULES))
    # The evaluation recipe of Kinetics: frames at stride 4, short side to the model's size, one centre crop.
    return model, VideoClipProcessor(
        num_frames=model.config.num_frames,
        frame_sampling_rate=4,
        sampling_strategy="dense",
        **processor_settings(model.config, {}),
    )


def read_classification_config(arguments: argparse.Namespace, weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The classifier's constructor arguments, from the tensors and the original configuration."""
    config = read_original_config(arguments.original_config, CLASSIFICATION_ARGUMENTS)
    patches, blocks = read_patch_sizes(weights), read_block_sizes(weights)
    found = patches | blocks
    found["num_classes"] = shape_of(weights, "head.weight", 2)[0] if "head.weight" in weights else 0
    found["use_mean_pooling"] = "fc_norm.weight" in weights
    found["use_learnable_pos_emb"] = "pos_embed" in weights
    check_blocks(config, found["embed_dim"], blocks)
    config = agree(config, found)
    return (
        CLASSIFICATION_ARGUMENTS
        | config
        | {"num_heads": num_heads_of(config, "num_heads", config["embed_dim"], ENCODER_HEADS)}
    )


def read_pre_training_config(arguments: argparse.Namespace, weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The masked autoencoder's constructor arguments, from the tensors and the original configuration."""
    config = read_original_config(arguments.original_config, PRE_TRAINING_ARGUMENTS)
    if "encoder.pos_embed" in weights or config.get("use_learnable_pos_emb"):
        raise ConversionError(
            "Learned positions never worked in the original pre-training model (its table has one row too many), so "
            "there is no behaviour to convert."
        )
    patches = read_patch_sizes(weights, "encoder.")
    blocks, decoder = read_block_sizes(weights, "encoder."), read_block_sizes(weights, "decoder.")
    width, decoder_width = patches.pop("embed_dim"), shape_of(weights, "mask_token", 3)[-1]
    check_blocks(config, width, blocks)
    # The original takes `in_chans` as well and ignores it.
    found = (
        {"encoder_in_chans": patches.pop("in_chans")}
        | patches
        | {
            "encoder_embed_dim": width,
            "encoder_depth": blocks.pop("depth"),
            "decoder_embed_dim": decoder_width,
            "decoder_depth": decoder["depth"],
        }
    )
    if blocks["cos_attn"]:
        found |= {"encoder_num_heads": blocks.pop("num_heads"), "decoder_num_heads": decoder["num_heads"]}
    config = agree(config, found | blocks) | {"decoder_mlp_hidden": decoder["mlp_hidden"]}
    heads = {
        "encoder_num_heads": num_heads_of(config, "encoder_num_heads", width, ENCODER_HEADS),
        "decoder_num_heads": num_heads_of(config, "decoder_num_heads", decoder_width, DECODER_HEADS),
    }
    return PRE_TRAINING_ARGUMENTS | config | heads


def classifier_settings(original: dict[str, Any]) -> dict[str, Any]:
    """Fields of [`VideoViTConfig`] that only the fine-tuned classifier has."""
    learned = original["use_learnable_pos_emb"]
    return {
        "position_embedding_type": "learned" if learned else "sinusoidal",
        "position_embedding_resize": "interpolate" if learned else "rebuild",
        "detach_position_embeddings": learned,
        "use_mean_pooling": original["use_mean_pooling"],
        "classifier_dropout": original["fc_drop_rate"] or original["head_drop_rate"],
        "num_labels": original["num_classes"],
    }


def decoder_config(original: dict[str, Any]) -> dict[str, Any]:
    """Fields of [`VideoViTConfig`] for the decoder."""
    return {
        "decoder_hidden_size": original["decoder_embed_dim"],
        "decoder_num_hidden_layers": original["decoder_depth"],
        "decoder_num_attention_heads": original["decoder_num_heads"],
        "decoder_intermediate_size": original["decoder_mlp_hidden"],
    }


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument(
        "--task",
        choices=(CLASSIFICATION, PRE_TRAINING),
        help="what to make of a pre-trained checkpoint (default: what it was saved for)",
    )
    parser.add_argument(
        "--num-labels",
        type=positive_int,
        metavar="N",
        help="classes of the new head of `--task video-classification` (default: as --labels, or 2)",
    )
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
