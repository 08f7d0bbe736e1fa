"""Functions that the sources of VideoViT share: rules for names of tensors, sizes read from tensors, and settings."""

import re
from collections.abc import Callable
from typing import Any

import torch

from hf_video.models.videovit import VideoViTConfig

from .checkpoint import ConversionError, count_layers, preview, shape_of
from .weight_rules import Rule, rename

# Attention heads of the published sizes, by width.
ENCODER_HEADS = {384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16}
DECODER_HEADS = {192: 3, 384: 6, 512: 8, 640: 8}
PROJECTIONS = ("query", "key", "value")

# What the processors of images and of videos have in common.
PROCESSOR_OPTIONS = (
    *("do_resize", "size", "resample", "do_center_crop", "crop_size"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
)


def patch_embedding_rules(
    source: str, inflate: Callable[[torch.Tensor], torch.Tensor] = lambda kernel: kernel
) -> list[Rule]:
    """The convolution of the patch embedding, inflated over time, as the matrix of a linear layer."""
    target = "videovit.embeddings.patch_embeddings.projection"
    return [
        rename(rf"{source}\.weight", f"{target}.weight", lambda kernel: inflate(kernel).flatten(1)),
        rename(rf"{source}\.bias", f"{target}.bias"),
    ]


def block_rules(source: str, target: str) -> list[Rule]:
    """The transformer blocks under a prefix; the matrix of all queries, keys and values becomes three."""
    block = rf"{source}blocks\.(\d+)\."
    pairs = {
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.proj": "attention.o_proj",
        "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
    }
    rules = [
        rename(block + re.escape(old) + r"\.(weight|bias)", rf"{target}layers.\1.{new}.\2")
        for old, new in pairs.items()
    ]
    return rules + [
        rename(block + r"attn\.qkv\.weight", rf"{target}layers.\1.attention.*.weight", split_projection),
        rename(block + r"attn\.q_bias", rf"{target}layers.\1.attention.query.bias"),
        rename(block + r"attn\.v_bias", rf"{target}layers.\1.attention.value.bias"),
        rename(block + r"attn\.scale", rf"{target}layers.\1.attention.logit_scale"),
        rename(block + r"gamma_([12])", rf"{target}layers.\1.layer_scale\2"),
    ]


def transformers_block_rules(source: str, target: str) -> list[Rule]:
    """
    The transformer blocks of Transformers' VideoMAE and ViT. The names are those of all versions of Transformers.
    """
    block = rf"{source}\.(\d+)\."
    attention = block + r"attention\.(?:attention\.)?"
    pairs = {
        r"(layernorm_before|layernorm_after)": r"\2",
        r"attention\.(output\.dense|o_proj)": "attention.o_proj",
        r"(intermediate\.dense|mlp\.fc1)": "mlp.fc1",
        r"(output\.dense|mlp\.fc2)": "mlp.fc2",
    }
    rules = [rename(block + old + r"\.(weight|bias)", rf"{target}.\1.{new}.\3") for old, new in pairs.items()]
    for name in PROJECTIONS:
        ours, letter = rf"{target}.\1.attention.{name}", name[0]
        rules += [
            rename(attention + rf"(?:{name}|{letter}_proj)\.(weight|bias)", ours + r".\2"),
            rename(attention + f"{letter}_bias", ours + ".bias"),
        ]
    return rules


def encoder_fields(original: dict[str, Any], *others: str) -> dict[str, Any]:
    """Fields of [`VideoViTConfig`] from the `config.json` of Transformers' VideoMAE or ViT."""
    names = (
        *("image_size", "patch_size", "num_channels", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        *("intermediate_size", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"),
        *("initializer_range", "layer_norm_eps", *others),
    )
    # All other defaults are equal.
    return {"layer_norm_eps": 1e-12} | {name: original[name] for name in names if name in original}


def has_key_bias(weights: dict[str, torch.Tensor]) -> bool:
    """Whether the keys of a model of Transformers have a bias."""
    return any(name.endswith((".key.bias", ".k_proj.bias")) for name in weights)


def split_projection(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The rows of one projection for queries, keys and values."""
    return dict(zip(PROJECTIONS, weight.chunk(3), strict=True))


def read_patch_sizes(weights: dict[str, torch.Tensor], prefix: str = "") -> dict[str, Any]:
    """
    The original's arguments that the patch embedding under a prefix shows: `embed_dim`, `in_chans`, `tubelet_size` and
    `patch_size`.

    Raises:
        ConversionError: if there is no such patch embedding, or it is not one of videos.
    """
    name = f"{prefix}patch_embed.proj.weight"
    if name not in weights:
        raise ConversionError(
            f"These are not the weights of a VideoMAE-like ViT, which has {name}. Found: {preview(weights)}."
        )
    width, in_chans, tubelet_size, patch_height, patch_width = shape_of(weights, name, 5)
    return {
        "embed_dim": width,
        "in_chans": in_chans,
        "tubelet_size": tubelet_size,
        "patch_size": patch_height if patch_height == patch_width else [patch_height, patch_width],
    }


def read_block_sizes(weights: dict[str, torch.Tensor], prefix: str = "") -> dict[str, Any]:
    """
    What the transformer blocks under a prefix show: the original's arguments `depth`, `qkv_bias`, `cos_attn` and, with
    cosine attention, `num_heads`; and beside them `mlp_hidden`, a width, and `layer_scale`, a switch.

    Raises:
        ConversionError: if there are no blocks, or the tensors have other dimensions.
    """
    sizes = {
        "depth": count_layers(weights, rf"{re.escape(prefix)}blocks\.(\d+)\."),
        "qkv_bias": f"{prefix}blocks.0.attn.q_bias" in weights,
        "cos_attn": f"{prefix}blocks.0.attn.scale" in weights,
        "mlp_hidden": shape_of(weights, f"{prefix}blocks.0.mlp.fc1.weight", 2)[0],
        "layer_scale": f"{prefix}blocks.0.gamma_1" in weights,
    }
    if sizes["cos_attn"]:
        sizes["num_heads"] = shape_of(weights, f"{prefix}blocks.0.attn.scale", 3)[0]
    return sizes


def check_blocks(config: dict[str, Any], width: int, blocks: dict[str, Any]) -> None:
    """Raise `ConversionError` if the configuration's `mlp_ratio` or `init_values` contradict the blocks."""
    if config.get("mlp_ratio") is not None and int(width * config["mlp_ratio"]) != blocks["mlp_hidden"]:
        ratio = blocks["mlp_hidden"] / width
        raise ConversionError(
            f"The original configuration says mlp_ratio={config['mlp_ratio']!r}, the tensors say {ratio:g}."
        )
    if "init_values" in config and bool(config["init_values"]) != blocks["layer_scale"]:
        has = "has" if blocks["layer_scale"] else "has no"
        raise ConversionError(
            f"The original configuration says init_values={config['init_values']!r}, the checkpoint {has} `gamma_1`."
        )


def encoder_config(original: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields of [`VideoViTConfig`] for the encoder, whose arguments in `original` begin with `prefix`."""
    return {
        "image_size": original["img_size"],
        "patch_size": original["patch_size"],
        "num_channels": original[f"{prefix}in_chans"],
        "num_frames": original["all_frames"],
        "tubelet_size": original["tubelet_size"],
        "hidden_size": original[f"{prefix}embed_dim"],
        "num_hidden_layers": original[f"{prefix}depth"],
        "num_attention_heads": original[f"{prefix}num_heads"],
        "intermediate_size": original["mlp_hidden"],
        "hidden_dropout_prob": original["drop_rate"],
        "attention_probs_dropout_prob": original["attn_drop_rate"],
        "drop_path_rate": original["drop_path_rate"],
        "qkv_bias": original["qkv_bias"],
        # The originals take 0 for "not given": `qk_scale or head_dim ** -0.5`.
        "qk_scale": original["qk_scale"] or None,
        "use_cosine_attention": original["cos_attn"],
        # `use_checkpoint` and `with_cp` recompute all layers. Here training decides whether layers are recomputed.
        "gradient_checkpointing_layers": None,
        # Any value above 0 makes layer scale a part of the model; its weights come from the checkpoint.
        "layer_scale_init_value": (original["init_values"] or 0.1) if original["layer_scale"] else 0.0,
    }


def processor_settings(config: VideoViTConfig, original: dict[str, Any]) -> dict[str, Any]:
    """
    Options of [`VideoClipProcessor`]: those in `original`, the content of an image processor's file, and by default
    resizing and one centre crop to the model's size.
    """
    height, width = config.image_shape
    settings = {"size": {"shortest_edge": min(height, width)}, "crop_size": {"height": height, "width": width}}
    return settings | {name: original[name] for name in PROCESSOR_OPTIONS if original.get(name) is not None}
