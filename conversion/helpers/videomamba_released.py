"""The released VideoMamba files, and what their names say about them (`MODEL_ZOO.md` of the original repository)."""

import re
from typing import Any

from hf_video.models.videomamba.configuration_videomamba import PRESETS

from .checkpoint import ConversionError

SIZES = {"t": "tiny", "s": "small", "m": "middle", "b": "base"}
NUM_CLASSES = {"in1k": 1000, "k400": 400, "ssv2": 174, "breakfast": 10, "coin": 180}

# In each name: size, data set and training, frames, resolution.
RELEASED = """
t16_in1k_res224  t16_in1k_res224to448  t16_in1k_res224to448to576
s16_in1k_res224  s16_in1k_res224to448  s16_in1k_res224to448to576
m16_in1k_res224  m16_in1k_res224to448  m16_in1k_res224to448to576
b16_in1k_res224

t16_k400_f8_res224  t16_k400_f16_res224  t16_k400_f32_res224  t16_k400_f64_res224  t16_k400_f64_res224to384
s16_k400_f8_res224  s16_k400_f16_res224  s16_k400_f32_res224  s16_k400_f64_res224  s16_k400_f64_res224to384
m16_k400_f8_res224  m16_k400_f16_res224  m16_k400_f32_res224  m16_k400_f64_res224  m16_k400_f64_res224to384
m16_k400_mask_pt_f8_res224  m16_k400_mask_ft_f8_res224  m16_k400_mask_ft_f32_res224  m16_k400_mask_ft_f64_res224
m16_k400_mask_ft_f64_res224to384

t16_ssv2_f8_res224  t16_ssv2_f16_res224  t16_ssv2_f16_res224to288
s16_ssv2_f8_res224  s16_ssv2_f16_res224  s16_ssv2_f16_res224to288
m16_ssv2_f8_res224  m16_ssv2_f16_res224  m16_ssv2_f16_res224to288
m16_ssv2_mask_pt_f8_res224  m16_ssv2_mask_ft_f8_res224  m16_ssv2_mask_ft_f16_res224to288

t16_breakfast_f32_res224  t16_breakfast_f64_res224  s16_breakfast_f32_res224  s16_breakfast_f64_res224
m16_breakfast_f32_res224  m16_breakfast_f64_res224
m16_breakfast_mask_ft_f32_res224  m16_breakfast_mask_ft_f64_res224

t16_coin_f32_res224  t16_coin_f64_res224  s16_coin_f32_res224  s16_coin_f64_res224
m16_coin_f32_res224  m16_coin_f64_res224  m16_coin_mask_ft_f32_res224  m16_coin_mask_ft_f64_res224

m16_5M_f8_res224  m16_17M_f8_res224  m16_25M_f8_res224
"""
VARIANTS = tuple(f"videomamba_{name}" for name in RELEASED.split())

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
