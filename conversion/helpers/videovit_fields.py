"""Reads the sizes and settings of VideoMAE-like ViTs: from tensors and the original arguments."""

import re
from collections.abc import Mapping
from typing import Any

import torch

from .checkpoint import ConversionError, count_layers, preview, shape_of
from .fields import UNKNOWN, Arguments, read_fields

# Attention heads of the published sizes, by width.
ENCODER_HEADS = {384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16}
DECODER_HEADS = {192: 3, 384: 6, 512: 8, 640: 8}

# What the constructors of all classes take.
ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "img_size": ("image_size", 224),
    "patch_size": ("patch_size", 16),
    "tubelet_size": ("tubelet_size", 2),
    "all_frames": ("num_frames", 16),
    "qkv_bias": ("qkv_bias", False),
    "qk_scale": ("qk_scale", None),
    "drop_rate": ("hidden_dropout_prob", 0.0),
    "attn_drop_rate": ("attention_probs_dropout_prob", 0.0),
    "drop_path_rate": ("drop_path_rate", 0.0),
    "cos_attn": ("use_cosine_attention", False),
    "mlp_ratio": (None, 4),
    "init_values": (None, 0.0),
    "use_learnable_pos_emb": (None, False),
    # Recompute all layers. Here training decides whether layers are recomputed.
    "use_checkpoint": (None, False),
    "with_cp": (None, False),
}
ENCODER_ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "in_chans": ("num_channels", 3),
    "embed_dim": ("hidden_size", 768),
    "depth": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
}


def original_fields(
    given: Mapping[str, Any], arguments: Arguments, weights: dict[str, torch.Tensor], prefix: str = "", **others: Any
) -> dict[str, Any]:
    """Fields of [`VideoViTConfig`] from the tensors of an encoder under a prefix, other tensors, and the original's
    arguments."""
    found = read_patch_sizes(weights, prefix) | read_block_sizes(weights, prefix) | others
    is_learned = f"{prefix}pos_embed" in weights
    tells = {
        "mlp_ratio": lambda ratio: int(found["hidden_size"] * ratio) == found["intermediate_size"],
        "init_values": lambda value: bool(value) == bool(found["layer_scale_init_value"]),
        "use_learnable_pos_emb": lambda value: bool(value) == is_learned,
    }
    fields = read_fields(given, arguments, found)
    said = {name.lower(): value for name, value in given.items()}
    for name, fits in tells.items():
        if said.get(name) is not None and not fits(said[name]):
            raise ConversionError(f"The original configuration says {name}={said[name]!r}, the tensors say otherwise.")
    if not {"num_heads", "encoder_num_heads"} & said.keys() | found.keys() & {"num_attention_heads"}:
        fields["num_attention_heads"] = ENCODER_HEADS.get(fields["hidden_size"], UNKNOWN)
    if fields["layer_scale_init_value"] and said.get("init_values"):
        fields["layer_scale_init_value"] = said["init_values"]
    # The originals take 0 for "not given": `qk_scale or head_dim ** -0.5`.
    return fields | {"qk_scale": fields["qk_scale"] or None, "gradient_checkpointing_layers": None}


def position_fields(weights: dict[str, torch.Tensor], resize: str) -> dict[str, Any]:
    """The fields for the positions of a classifier: learned ones are a table, others are computed, and `resize`d."""
    is_learned = "pos_embed" in weights
    return {
        "position_embedding_type": "learned" if is_learned else "sinusoidal",
        "position_embedding_resize": resize,
        "detach_position_embeddings": is_learned,
    }


def read_patch_sizes(weights: dict[str, torch.Tensor], prefix: str = "") -> dict[str, Any]:
    """The fields that the patch embedding of videos under a prefix shows; without one it is a `ConversionError`."""
    name = f"{prefix}patch_embed.proj.weight"
    if name not in weights:
        raise ConversionError(
            f"These are not the weights of a VideoMAE-like ViT, which has {name}. Found: {preview(weights)}."
        )
    width, channels, tubelet_size, height, patch_width = shape_of(weights, name, 5)
    patch_size = height if height == patch_width else [height, patch_width]
    sizes = {"num_channels": channels, "tubelet_size": tubelet_size, "patch_size": patch_size}
    return {"hidden_size": width, **sizes}


def read_block_sizes(weights: dict[str, torch.Tensor], prefix: str = "") -> dict[str, Any]:
    """The fields that the transformer blocks under a prefix show, with cosine attention also the number of heads."""
    block = f"{prefix}blocks.0."
    sizes = {
        "num_hidden_layers": count_layers(weights, rf"{re.escape(prefix)}blocks\.(\d+)\."),
        "intermediate_size": shape_of(weights, f"{block}mlp.fc1.weight", 2)[0],
        "qkv_bias": f"{block}attn.q_bias" in weights,
        "use_cosine_attention": f"{block}attn.scale" in weights,
        # Any value above 0 makes layer scale a part of the model; its weights come from the checkpoint.
        "layer_scale_init_value": 0.1 if f"{block}gamma_1" in weights else 0.0,
    }
    if sizes["use_cosine_attention"]:
        sizes["num_attention_heads"] = shape_of(weights, f"{block}attn.scale", 3)[0]
    return sizes
