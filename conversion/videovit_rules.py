"""What the checkpoints of VideoMAE, VideoMAE V2 and STMixer have in common: names, and sizes read from tensors."""

import re
from typing import Any

import torch

from .checkpoint import ConversionError, preview
from .weight_rules import Rule, rename

# Attention heads of the published sizes, by width; tensors do not tell.
KNOWN_NUM_HEADS = {384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16}


def patch_embedding_rules(source: str = "") -> list[Rule]:
    """The `Conv3d` of the patch embedding as the matrix of a linear layer."""
    target = "videovit.embeddings.patch_embeddings.projection"
    return [
        rename(rf"{source}patch_embed\.proj\.weight", f"{target}.weight", lambda kernel: kernel.flatten(1)),
        rename(rf"{source}patch_embed\.proj\.bias", f"{target}.bias"),
    ]


def block_rules(source: str, target: str) -> list[Rule]:
    """
    The transformer blocks under a prefix. Queries and values have a bias of their own, keys have none: as one vector
    of the fused projection, the keys' part is zero.
    """
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
        rename(block + r"attn\.qkv\.weight", rf"{target}layers.\1.attention.qkv.weight"),
        Rule(
            (block + r"attn\.q_bias", block + r"attn\.v_bias"),
            rf"{target}layers.\1.attention.qkv.bias",
            lambda query, value: torch.cat([query, torch.zeros_like(query), value]),
        ),
        rename(block + r"attn\.scale", rf"{target}layers.\1.attention.logit_scale"),
        rename(block + r"gamma_([12])", rf"{target}layers.\1.layer_scale\2"),
    ]


def read_patch_sizes(weights: dict[str, torch.Tensor], prefix: str = "") -> dict[str, Any]:
    """
    The arguments that the patch embedding under a prefix tells: `embed_dim`, `in_chans`, `tubelet_size`, `patch_size`.

    Raises:
        ConversionError: if these are not the weights of such a model.
    """
    kernel = weights.get(f"{prefix}patch_embed.proj.weight")
    if kernel is None or kernel.ndim != 5:
        raise ConversionError(
            f"These are not the weights of a VideoMAE-like ViT, which has {prefix}patch_embed.proj.weight with five "
            f"dimensions. Found: {preview(weights)}."
        )
    width, in_chans, tubelet_size, patch_height, patch_width = kernel.shape
    return {
        "embed_dim": width,
        "in_chans": in_chans,
        "tubelet_size": tubelet_size,
        "patch_size": patch_height if patch_height == patch_width else [patch_height, patch_width],
    }


def read_block_sizes(weights: dict[str, torch.Tensor], prefix: str = "") -> dict[str, Any]:
    """
    What the transformer blocks under a prefix tell: the arguments `depth`, `qkv_bias`, `cos_attn` (and then
    `num_heads`), and beside them `mlp_hidden` (width) and `layer_scale` (bool).

    Raises:
        ConversionError: if there are no blocks.
    """
    blocks = [int(match[1]) for name in weights if (match := re.match(rf"{prefix}blocks\.(\d+)\.", name))]
    if not blocks or f"{prefix}blocks.0.mlp.fc1.weight" not in weights:
        raise ConversionError(f"There is no {prefix}blocks.0.mlp.fc1.weight. Found: {preview(weights)}.")
    sizes = {
        "depth": max(blocks) + 1,
        "qkv_bias": f"{prefix}blocks.0.attn.q_bias" in weights,
        "cos_attn": f"{prefix}blocks.0.attn.scale" in weights,
        "mlp_hidden": weights[f"{prefix}blocks.0.mlp.fc1.weight"].shape[0],
        "layer_scale": f"{prefix}blocks.0.gamma_1" in weights,
    }
    if sizes["cos_attn"]:
        sizes["num_heads"] = weights[f"{prefix}blocks.0.attn.scale"].shape[0]
    return sizes


def num_heads_of(config: dict[str, Any], width: int, name: str = "num_heads") -> int:
    """
    Attention heads from the configuration, or of the published model of this width.

    Raises:
        ConversionError: if neither tells.
    """
    heads = config.get(name, KNOWN_NUM_HEADS.get(width))
    if heads is None:
        raise ConversionError(
            f"No published model has width {width}, so the number of attention heads is unknown: pass "
            f"`--original-config FILE.json` with {name}."
        )
    return heads


def check_blocks(config: dict[str, Any], width: int, blocks: dict[str, Any]) -> None:
    """Raise `ConversionError` if the configuration's `mlp_ratio` or `init_values` contradict the blocks."""
    if "mlp_ratio" in config and int(width * config["mlp_ratio"]) != blocks["mlp_hidden"]:
        ratio = blocks["mlp_hidden"] / width
        raise ConversionError(
            f"The original configuration says mlp_ratio={config['mlp_ratio']!r}, the tensors say {ratio:g}."
        )
    if "init_values" in config and bool(config["init_values"]) != blocks["layer_scale"]:
        has = "has" if blocks["layer_scale"] else "has no"
        raise ConversionError(
            f"The original configuration says init_values={config['init_values']!r}, the checkpoint {has} `gamma_1`."
        )
