"""Reads the sizes and settings of VideoMamba: from tensors, the original arguments and the names of released files."""

import argparse
import math
import re
from typing import Any

import torch

from hf_video.models.videomamba.configuration_videomamba import PRESETS

from .checkpoint import ConversionError, agree, check_kind, count_layers, read_original_config, select_prefix, shape_of

# The arguments of all three original constructors, with their defaults.
ARGUMENTS = {
    "img_size": 224,
    "patch_size": 16,
    "stride": None,
    "depth": 24,
    "embed_dim": 192,
    "channels": 3,
    "num_classes": 1000,
    "drop_rate": 0.0,
    "drop_path_rate": 0.1,
    "ssm_cfg": None,
    "norm_epsilon": 1e-5,
    "initializer_cfg": None,
    "fused_add_norm": True,
    "rms_norm": True,
    "residual_in_fp32": True,
    "bimamba": True,
    "kernel_size": 1,
    "num_frames": 8,
    "fc_drop_rate": 0.0,
    "use_checkpoint": False,
    "checkpoint_num": 0,
    "clip_decoder_embed_dim": 576,
    "clip_output_dim": 512,
    "clip_norm_type": "l2",
    "clip_return_layer": 1,
    "clip_student_return_interval": 1,
    "pool_type": "cls+avg",
    "add_pool_norm": True,
    "device": None,
    "dtype": None,
}
PRE_TRAINING_ARGUMENTS = ARGUMENTS | {"drop_path_rate": 0.0}
# The arguments of `ssm_cfg` that decide the shapes of tensors, each with a value of its kind; and those that only
# the initialisation reads.
SSM_ARGUMENTS = {"d_state": 16, "d_conv": 4, "expand": 2, "dt_rank": 1, "bias": False, "conv_bias": True}
SSM_INITIALISATION = {"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor"}

# The released files (`MODEL_ZOO.md` of the original repository): sizes, then what follows the size and the patch size
# in a name: data set and training, frames, resolution.
_RELEASED = """
t s m b: in1k_res224
t s m: in1k_res224to448 in1k_res224to448to576
t s m: k400_f8_res224 k400_f16_res224 k400_f32_res224 k400_f64_res224 k400_f64_res224to384
m: k400_mask_pt_f8_res224 k400_mask_ft_f8_res224 k400_mask_ft_f32_res224 k400_mask_ft_f64_res224
m: k400_mask_ft_f64_res224to384
t s m: ssv2_f8_res224 ssv2_f16_res224 ssv2_f16_res224to288
m: ssv2_mask_pt_f8_res224 ssv2_mask_ft_f8_res224 ssv2_mask_ft_f16_res224to288
t s m: breakfast_f32_res224 breakfast_f64_res224 coin_f32_res224 coin_f64_res224
m: breakfast_mask_ft_f32_res224 breakfast_mask_ft_f64_res224 coin_mask_ft_f32_res224 coin_mask_ft_f64_res224
m: 5M_f8_res224 17M_f8_res224 25M_f8_res224
"""
VARIANTS = tuple(
    f"videomamba_{size}16_{name}"
    for sizes, _, names in (line.partition(": ") for line in _RELEASED.split("\n") if line)
    for size in sizes.split()
    for name in names.split()
)
SIZES = {"t": "tiny", "s": "small", "m": "middle", "b": "base"}
NUM_CLASSES = {"in1k": 1000, "k400": 400, "ssv2": 174, "breakfast": 10, "coin": 180}

# Users found a table of 32 frames in this file, although its name says 64. So its tensors decide.
MISNAMED = "videomamba_m16_breakfast_mask_ft_f64_res224"


def read_variant(name: str) -> dict[str, Any]:
    """
    The original constructor's arguments that the name of a released file, without `.pth`, states.

    Raises:
        ConversionError: if no released file has this name.
    """
    if name not in VARIANTS:
        raise ConversionError(
            f"There is no released file {name!r}. The released ones, without .pth, are: {', '.join(VARIANTS)}."
        )
    _, size, dataset, *_, resolution = name.split("_")
    preset = PRESETS[SIZES[size[0]]]
    variant: dict[str, Any] = {
        "embed_dim": preset["hidden_size"],
        "depth": preset["num_hidden_layers"],
        "patch_size": 16,
        "img_size": int(resolution.removeprefix("res").split("to")[-1]),
    }
    if (frames := re.search(r"_f(\d+)_", name)) and name != MISNAMED:
        variant["num_frames"] = int(frames[1])
    if dataset in NUM_CLASSES and "_mask_pt_" not in name:
        variant["num_classes"] = NUM_CLASSES[dataset]
    return variant


def sampling_strategy_of(name: str | None) -> str:
    """The sampling strategy of the original's evaluation: "uniform" for Something-Something V2, otherwise "sparse"."""
    return "uniform" if name is not None and "_ssv2_" in name else "sparse"


def read_config(arguments: argparse.Namespace, weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The original constructor's arguments: from the tensors, the original configuration and the variant's name."""
    config = read_original_config(arguments.original_config, ARGUMENTS)
    if arguments.variant is not None:
        config = agree(config, read_variant(arguments.variant))
    return complete_config(config, weights, is_given=arguments.original_config is not None)


def complete_config(config: dict[str, Any], weights: dict[str, torch.Tensor], is_given: bool = True) -> dict[str, Any]:
    """
    The original constructor's arguments, with those that the tensors show and the defaults.

    Args:
        config: arguments that are known.
        weights: tensors of the encoder.
        is_given: whether the arguments come from a file.

    Raises:
        ConversionError: if arguments and tensors contradict each other.
    """
    # `null` is an argument that is not given.
    config = {name: value for name, value in config.items() if value is not None}
    ssm = config.pop("ssm_cfg", {})
    check_kind("`ssm_cfg`", ssm, {})
    ssm = {name: value for name, value in ssm.items() if value is not None}
    for name, value in ssm.items():
        check_kind(f"`ssm_cfg.{name}`", None if value == "auto" else value, SSM_ARGUMENTS.get(name))
    if unknown := sorted(set(ssm) - set(SSM_ARGUMENTS) - SSM_INITIALISATION - {"use_fast_path"}):
        raise ConversionError(f"`ssm_cfg` has unknown keys {unknown}.")
    found = read_sizes(weights)
    if not ssm.pop("use_fast_path", True) and found["bimamba"]:
        raise ConversionError(
            "With `use_fast_path=False` the original runs forward only, although its backward parameters exist: this "
            "library always runs both directions that a checkpoint has. Take the entry out to convert it so."
        )
    if config.get("clip_norm_type", "l2") not in ("l2", "none"):
        raise ConversionError(f"`clip_norm_type` must be 'l2' or 'none', got {config['clip_norm_type']!r}.")
    given_ssm = {name: value for name, value in ssm.items() if name in SSM_ARGUMENTS and value != "auto"}
    inner, width = shape_of(weights, "layers.0.mixer.A_log", 2)[0], found["embed_dim"]
    if int(given_ssm.get("expand", 0) * width) == inner:
        # The original rounds the width down, so that several factors give the same width.
        found["ssm_cfg"]["expand"] = given_ssm["expand"]
    found["ssm_cfg"] = agree(given_ssm, found["ssm_cfg"])
    grid, is_image = found.pop("grid"), found.pop("is_image")
    # The constructor for images has a stride of 16 by default, for every size of a patch. That for videos has none.
    default = 16 if is_image and is_given else found["patch_size"]
    config = agree(config, found)
    config["stride"] = config.get("stride") or default
    settle_input_size(config, grid)
    defaults = PRE_TRAINING_ARGUMENTS if "clip_return_layer" in found else ARGUMENTS
    return defaults | config


def settle_input_size(config: dict[str, Any], grid: tuple[int, int]) -> None:
    """
    Set `img_size` and `num_frames` in `config` if it has none.

    Args:
        config: the arguments, with the sizes of a patch and the steps between patches.
        grid: number of token frames, and of patches in a frame.

    Raises:
        ConversionError: if the configuration's size has another number of patches, or if there is no size and the
            number of patches is not a square.
    """
    num_token_frames, num_places = grid
    patch, step = both_sides(config["patch_size"]), both_sides(config["stride"])
    if "img_size" not in config:
        side = math.isqrt(num_places)
        if side < 1 or side * side != num_places:
            raise ConversionError(
                f"`pos_embed` has rows for {num_places} patches, which form no square: give `img_size` (height and "
                "width) with `--original-config`."
            )
        config["img_size"] = [(side - 1) * s + p for s, p in zip(step, patch, strict=True)]
    # The tensors do not show frames and pixels that fill no patch: the configuration decides, if it fits.
    num_frames = config.setdefault("num_frames", num_token_frames * config["kernel_size"])
    image_size = config["img_size"] = simplest(both_sides(config["img_size"]))
    sizes = zip(both_sides(image_size), patch, step, strict=True)
    rows, columns = ((size - p) // s + 1 for size, p, s in sizes)
    if (num_frames // config["kernel_size"], rows * columns) != grid or min(rows, columns) < 1:
        raise ConversionError(
            f"The original configuration says img_size={image_size} and num_frames={num_frames}, that is {rows} x "
            f"{columns} patches of {config['patch_size']} pixels, {config['stride']} apart, in "
            f"{num_frames // config['kernel_size']} token frames; the tensors have {num_places} patches in "
            f"{num_token_frames} token frames."
        )


def both_sides(size: int | list[int]) -> list[int]:
    """Height and width of a size that may be one number; raises `ConversionError` for anything else."""
    sides = size if isinstance(size, list) else [size, size]
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ConversionError(f"Sizes are above 0: one number or height and width, got {size!r}.")
    return sides


def simplest(size: list[int]) -> int | list[int]:
    """A size as one number if it is square."""
    return size[0] if size[0] == size[1] else size


def read_sizes(weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """
    The original's arguments that tensors show, also `ssm_cfg`; and beside them `grid`, the numbers of token frames and
    of patches in a frame, and `is_image`, whether the patches are those of images.
    """
    is_image = weights["patch_embed.proj.weight"].ndim == 4
    width, channels, *kernel = shape_of(weights, "patch_embed.proj.weight", 4 if is_image else 5)
    has_frames = "temporal_pos_embedding" in weights
    num_token_frames = shape_of(weights, "temporal_pos_embedding", 3)[1] if has_frames else 1
    mixer = select_prefix(weights, "layers.0.mixer.")
    inner, state_size = shape_of(weights, "layers.0.mixer.A_log", 2)
    sizes: dict[str, Any] = {
        "embed_dim": width,
        "channels": channels,
        "patch_size": simplest(kernel[-2:]),
        "kernel_size": 1 if is_image else kernel[0],
        "depth": count_layers(weights, r"layers\.(\d+)\."),
        "bimamba": "A_b_log" in mixer,
        "rms_norm": "layers.0.norm.bias" not in weights,
        "grid": (num_token_frames, shape_of(weights, "pos_embed", 3)[1] - 1),
        "is_image": is_image,
        "ssm_cfg": {
            "d_state": state_size,
            "d_conv": shape_of(weights, "layers.0.mixer.conv1d.weight", 3)[-1],
            "expand": find_factor(inner, width),
            "dt_rank": shape_of(weights, "layers.0.mixer.dt_proj.weight", 2)[1],
            "bias": "in_proj.bias" in mixer,
            "conv_bias": "conv1d.bias" in mixer,
        },
    }
    heads = [name for name in weights if re.fullmatch(r"clip_decoder\.\d+\.head\.weight", name)]
    if heads:
        sizes |= {"clip_return_layer": len(heads), "clip_output_dim": shape_of(weights, heads[0], 2)[0]}
    else:
        sizes["num_classes"] = shape_of(weights, "head.weight", 2)[0] if "head.weight" in weights else 0
    return sizes


def find_factor(inner: int, width: int) -> int | float:
    """A number `expand` for which `int(expand * width)` is `inner`, although the quotient may be rounded down."""
    if inner % width == 0:
        return inner // width
    factor = inner / width
    return factor if int(factor * width) == inner else math.nextafter(factor, math.inf)


def encoder_config(original: dict[str, Any]) -> dict[str, Any]:
    """Fields of [`VideoMambaConfig`] that all models share."""
    ssm = original["ssm_cfg"]
    recomputed = min(original["checkpoint_num"], original["depth"]) if original["use_checkpoint"] else 0
    return {
        "image_size": original["img_size"],
        "patch_size": original["patch_size"],
        "patch_stride": None if original["stride"] == original["patch_size"] else original["stride"],
        "num_channels": original["channels"],
        "num_frames": original["num_frames"],
        "tubelet_size": original["kernel_size"],
        "hidden_size": original["embed_dim"],
        "num_hidden_layers": original["depth"],
        "state_size": ssm["d_state"],
        "conv_kernel": ssm["d_conv"],
        "expand": ssm["expand"],
        "time_step_rank": ssm["dt_rank"],
        "use_bias": ssm["bias"],
        "use_conv_bias": ssm["conv_bias"],
        "bidirectional": original["bimamba"],
        "hidden_dropout_prob": original["drop_rate"],
        "drop_path_rate": original["drop_path_rate"],
        "classifier_dropout": original["fc_drop_rate"],
        "norm_type": "rms_norm" if original["rms_norm"] else "layer_norm",
        "layer_norm_eps": original["norm_epsilon"],
        "residual_in_fp32": original["residual_in_fp32"],
        "gradient_checkpointing_layers": recomputed or None,
    }


def alignment_config(original: dict[str, Any]) -> dict[str, Any]:
    """Fields of [`VideoMambaConfig`] for masked pre-training."""
    return {
        "projection_dim": original["clip_output_dim"],
        "num_aligned_layers": original["clip_return_layer"],
        "aligned_layer_interval": original["clip_student_return_interval"],
        "normalize_features": original["clip_norm_type"] == "l2",
        "alignment_loss": "cosine" if original["clip_norm_type"] == "l2" else "mse",
        "last_aligned_feature": "unmixed" if original["fused_add_norm"] else "raw",
    }
