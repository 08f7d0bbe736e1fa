"""Functions that the sources of VideoViT share: rules for names of tensors, and settings of Transformers' files."""

import re
from collections.abc import Callable
from typing import Any

import torch

from hf_video.models.videovit import VideoViTConfig

from .weight_rules import Rule, rename

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


def processor_settings(config: VideoViTConfig, original: dict[str, Any]) -> dict[str, Any]:
    """Options of [`VideoClipProcessor`]: those of an image processor's file, by default one centre crop of the model's
    size."""
    height, width = config.image_shape
    settings = {"size": {"shortest_edge": min(height, width)}, "crop_size": {"height": height, "width": width}}
    return settings | {name: original[name] for name in PROCESSOR_OPTIONS if original.get(name) is not None}
