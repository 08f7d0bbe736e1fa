"""What the sources of VideoViT share: names of tensors, and the sizes and settings of VideoMAE-like ViTs."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from hf_video.models.videovit import VideoViTConfig
from hf_video.processing import VideoClipProcessor

from .checkpoint import ConversionError, count_layers, expect, shape_of
from .fields import UNKNOWN, UNREAD, Arguments, read_fields, with_heads
from .weight_rules import Rule, rename

PROJECTIONS = ("query", "key", "value")
# What the processors of images and of videos have in common.
PROCESSOR_OPTIONS = (
    *("do_resize", "size", "resample", "do_center_crop", "crop_size"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
)

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
    # The last two recompute all layers. Here training decides that.
    **dict.fromkeys(("mlp_ratio", "init_values", "use_learnable_pos_emb", "use_checkpoint", "with_cp"), UNREAD),
}
ENCODER_ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "in_chans": ("num_channels", 3),
    "embed_dim": ("hidden_size", 768),
    "depth": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", UNKNOWN),
}


def patch_embedding_rules(
    source: str, inflate: Callable[[torch.Tensor], torch.Tensor] = lambda kernel: kernel
) -> list[Rule]:
    """The convolution of the patch embedding, inflated over time, as the matrix of a linear layer."""
    target = "videovit.embeddings.patch_embeddings.projection"
    return [
        rename(rf"{source}\.weight", f"{target}.weight", lambda kernel: inflate(kernel).flatten(1)),
        rename(rf"{source}\.bias", f"{target}.bias"),
    ]


def split_projection(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The rows of one projection for queries, keys and values."""
    return dict(zip(PROJECTIONS, weight.chunk(3), strict=True))


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


ENCODER_RULES = (
    *patch_embedding_rules(r"patch_embed\.proj"),
    *block_rules("", "videovit."),
    rename("pos_embed", "videovit.embeddings.position_embeddings.weight"),
    rename(r"norm\.(weight|bias)", r"videovit.layernorm.\1"),
)


def transformers_block_rules(source: str, target: str) -> list[Rule]:
    """The transformer blocks of VideoMAE and ViT, by their names in all versions of Transformers."""
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


def encoder_fields(original: dict[str, Any], weights: Iterable[str], *others: str) -> dict[str, Any]:
    """Fields of [`VideoViTConfig`] from the `config.json` and tensors of Transformers' VideoMAE or ViT."""
    names = (
        *("image_size", "patch_size", "num_channels", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        *("intermediate_size", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"),
        *("initializer_range", "layer_norm_eps", *others),
    )
    key_bias = any(name.endswith((".key.bias", ".k_proj.bias")) for name in weights)
    # All other defaults are equal.
    return {"layer_norm_eps": 1e-12, "key_bias": key_bias} | {
        name: original[name] for name in names if name in original
    }


def make_processor(config: VideoViTConfig, original: dict[str, Any], **options: Any) -> VideoClipProcessor:
    """A processor with the options of an image processor's file, by default the evaluation recipe of Kinetics: frames
    at stride 4, short side to the model's size, one centre crop."""
    height, width = config.image_shape
    recipe: dict[str, Any] = {
        "size": {"shortest_edge": min(height, width)},
        "crop_size": {"height": height, "width": width},
    }
    recipe |= {name: original[name] for name in PROCESSOR_OPTIONS if original.get(name) is not None}
    recipe |= {"sampling_strategy": "dense", "frame_sampling_rate": 4} | options
    return VideoClipProcessor(num_frames=config.num_frames, **recipe)


def original_fields(
    given: Mapping[str, Any], arguments: Arguments, weights: dict[str, torch.Tensor], resize: str, **others: Any
) -> dict[str, Any]:
    """Fields of [`VideoViTConfig`] from the tensors of an encoder, `others`, and the original's arguments. Learned
    positions are a table, others are computed; both are `resize`d for clips of other sizes."""
    found = read_patch_sizes(weights) | read_block_sizes(weights) | others
    is_learned = "pos_embed" in weights
    tells = {
        "mlp_ratio": lambda ratio: int(found["hidden_size"] * ratio) == found["intermediate_size"],
        "init_values": lambda value: bool(value) == bool(found["layer_scale_init_value"]),
        "use_learnable_pos_emb": lambda value: bool(value) == is_learned,
    }
    fields = with_heads(read_fields(given, arguments, found))
    said = {name.lower(): value for name, value in given.items()}
    for name, fits in tells.items():
        if said.get(name) is not None and not fits(said[name]):
            raise ConversionError(f"The original configuration says {name}={said[name]!r}, the tensors say otherwise.")
    if fields["layer_scale_init_value"] and said.get("init_values"):
        fields["layer_scale_init_value"] = said["init_values"]
    return fields | {
        # The originals take 0 for "not given": `qk_scale or head_dim ** -0.5`.
        "qk_scale": fields["qk_scale"] or None,
        "gradient_checkpointing_layers": None,
        "position_embedding_type": "learned" if is_learned else "sinusoidal",
        "position_embedding_resize": resize,
        "detach_position_embeddings": is_learned,
    }


def read_patch_sizes(weights: dict[str, torch.Tensor], prefix: str = "") -> dict[str, Any]:
    """The fields that the patch embedding of videos under a prefix shows; without one it is a `ConversionError`."""
    name = f"{prefix}patch_embed.proj.weight"
    expect(weights, "a VideoMAE-like ViT", name)
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
