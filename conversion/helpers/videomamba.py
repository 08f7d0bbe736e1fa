"""What the sources of VideoMamba share: names of tensors, and sizes and settings from tensors, arguments and names."""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from hf_video.loading.released import released_models
from hf_video.models.videomamba.configuration_videomamba import PRESETS

from .checkpoint import ConversionError, count_layers, select_prefix, shape_of
from .fields import UNKNOWN, UNREAD, read_fields, without_null
from .weight_rules import Rule, inflate_patches, rename

# The arguments of all three original constructors, those of `ssm_cfg` after a dot.
ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "img_size": ("image_size", 224),
    "patch_size": ("patch_size", 16),
    "stride": ("patch_stride", None),
    "depth": ("num_hidden_layers", 24),
    "embed_dim": ("hidden_size", 192),
    "channels": ("num_channels", 3),
    "num_classes": ("num_labels", 1000),
    "drop_rate": ("hidden_dropout_prob", 0.0),
    "drop_path_rate": ("drop_path_rate", 0.1),
    "norm_epsilon": ("layer_norm_eps", 1e-5),
    "residual_in_fp32": ("residual_in_fp32", True),
    "bimamba": ("bidirectional", True),
    "kernel_size": ("tubelet_size", 1),
    "num_frames": ("num_frames", 8),
    "fc_drop_rate": ("classifier_dropout", 0.0),
    "rms_norm": ("rms_norm", True),
    "use_checkpoint": ("use_checkpoint", False),
    "checkpoint_num": ("checkpoint_num", 0),
    "ssm_cfg.d_state": ("state_size", 16),
    "ssm_cfg.d_conv": ("conv_kernel", 4),
    "ssm_cfg.expand": ("expand", 2),
    "ssm_cfg.dt_rank": ("time_step_rank", 1),
    "ssm_cfg.bias": ("use_bias", False),
    "ssm_cfg.conv_bias": ("use_conv_bias", True),
    **dict.fromkeys(("clip_output_dim", "clip_norm_type", "clip_return_layer", "clip_decoder_embed_dim"), UNREAD),
    **dict.fromkeys((f"ssm_cfg.dt_{name}" for name in ("min", "max", "init", "scale", "init_floor")), UNREAD),
    **dict.fromkeys(("ssm_cfg.use_fast_path", "fused_add_norm", "clip_student_return_interval"), UNREAD),
    **dict.fromkeys(("initializer_cfg", "device", "dtype", "pool_type", "add_pool_norm"), UNREAD),
}
ALIGNMENT_ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "drop_path_rate": ("drop_path_rate", 0.0),
    "clip_output_dim": ("projection_dim", 512),
    "clip_return_layer": ("num_aligned_layers", 1),
    "clip_student_return_interval": ("aligned_layer_interval", 1),
}
SIZES = {"t": "tiny", "s": "small", "m": "middle", "b": "base"}
NUM_CLASSES = {"in1k": 1000, "k400": 400, "ssv2": 174, "breakfast": 10, "coin": 180}
# Users found a table of 32 frames in this file, although its name says 64. So its tensors decide.
MISNAMED = "videomamba_m16_breakfast_mask_ft_f64_res224"

# The tensors that sizes are read from.
TELLING_TENSORS = ("patch_embed.proj.weight", "pos_embed") + tuple(
    f"layers.0.{name}" for name in ("norm.weight", "mixer.A_log", "mixer.conv1d.weight", "mixer.dt_proj.weight")
)

EMBEDDINGS, MIXER = "videomamba.embeddings.", r"layers\.(\d+)\.mixer\."
ENCODER_RULES = (
    rename("cls_token", f"{EMBEDDINGS}cls_token"),
    rename("pos_embed", f"{EMBEDDINGS}position_embeddings"),
    rename("temporal_pos_embedding", f"{EMBEDDINGS}temporal_position_embeddings"),
    rename(r"patch_embed\.proj\.bias", f"{EMBEDDINGS}patch_embeddings.projection.bias"),
    rename(r"layers\.(\d+)\.norm\.(weight|bias)", r"videomamba.layers.\1.norm.\2"),
    rename(MIXER + r"(in_proj|out_proj)\.(weight|bias)", r"videomamba.layers.\1.mixer.\2.\3"),
    rename(MIXER + r"(A_log|D)", r"videomamba.layers.\1.mixer.forward_scan.\2"),
    rename(MIXER + r"conv1d\.(weight|bias)", r"videomamba.layers.\1.mixer.forward_scan.conv1d.\2"),
    rename(MIXER + r"(x_proj|dt_proj)\.weight", r"videomamba.layers.\1.mixer.forward_scan.\2.weight"),
    rename(MIXER + r"dt_proj\.bias", r"videomamba.layers.\1.mixer.forward_scan.dt_bias"),
    rename(MIXER + r"A_b_log", r"videomamba.layers.\1.mixer.backward_scan.A_log"),
    rename(MIXER + r"D_b", r"videomamba.layers.\1.mixer.backward_scan.D"),
    rename(MIXER + r"conv1d_b\.(weight|bias)", r"videomamba.layers.\1.mixer.backward_scan.conv1d.\2"),
    rename(MIXER + r"(x_proj|dt_proj)_b\.weight", r"videomamba.layers.\1.mixer.backward_scan.\2.weight"),
    rename(MIXER + r"dt_proj_b\.bias", r"videomamba.layers.\1.mixer.backward_scan.dt_bias"),
)
PRE_TRAINING_RULES = (
    rename(r"norm\.(weight|bias)", r"videomamba.norm_f.\1"),
    rename(r"clip_decoder\.(\d+)\.(head|norm)\.(weight|bias)", r"decoder.\1.\2.\3"),
    rename(r"pool_norm\.(weight|bias)", r"videomamba.pool_norm.\1"),
)


def patch_rule(tubelet_size: int, inflation: str) -> Rule:
    """The kernel of the patch embedding: that of images is inflated over time, that of videos stays as it is."""

    def inflate(kernel: torch.Tensor) -> torch.Tensor:
        return kernel if kernel.ndim == 5 else inflate_patches(kernel, tubelet_size, inflation)

    return rename(r"patch_embed\.proj\.weight", f"{EMBEDDINGS}patch_embeddings.projection.weight", inflate)


def read_variant(name: str) -> dict[str, Any]:
    """The original constructor's arguments that the name of a released file, without `.pth`, states."""
    known = [each for each in released_models() if each.startswith("videomamba_")]
    if name not in known:
        raise ConversionError(f"There is no released file {name!r}. Those without .pth are: {', '.join(known)}.")
    _, size, dataset, *_, resolution = name.split("_")
    preset = PRESETS[SIZES[size[0]]]
    variant = {"embed_dim": preset["hidden_size"], "depth": preset["num_hidden_layers"], "patch_size": 16}
    variant["img_size"] = int(resolution.removeprefix("res").split("to")[-1])
    if (frames := re.search(r"_f(\d+)_", name)) and name != MISNAMED:
        variant["num_frames"] = int(frames[1])
    if dataset in NUM_CLASSES and "_mask_pt_" not in name:
        variant["num_classes"] = NUM_CLASSES[dataset]
    return variant


def encoder_fields(
    given: Mapping[str, Any], weights: dict[str, torch.Tensor], is_file: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of [`VideoMambaConfig`] that all models share, and those for masked pre-training, empty without heads
    that were aligned with a teacher. `is_file` says whether the original's arguments come from a file."""
    given = without_null(given)
    ssm = without_null(given.pop("ssm_cfg", {}), "ssm_cfg")
    # "auto" is the default rank.
    given |= {f"ssm_cfg.{name}": value for name, value in ssm.items() if value != "auto"}
    found = read_sizes(weights)
    expand, width = given.get("ssm_cfg.expand"), found["hidden_size"]
    if isinstance(expand, (int, float)) and int(expand * width) == int(found["expand"] * width):
        # The original rounds the width down, so that several factors give the same width.
        found["expand"] = expand
    num_aligned = found.get("num_aligned_layers")
    arguments = ARGUMENTS | (ALIGNMENT_ARGUMENTS if num_aligned else {})
    grid, is_image = found.pop("grid"), found.pop("is_image")
    fields = read_fields(given, arguments, found)
    # The constructor for images has a stride of 16 by default, for every size of a patch. That for videos has none.
    stride = fields["patch_stride"] or (16 if is_image and is_file else fields["patch_size"])
    fields |= settle_input_size(fields, given, stride, grid)
    fields["patch_stride"] = None if stride == fields["patch_size"] else stride
    fields["norm_type"] = "rms_norm" if fields.pop("rms_norm") else "layer_norm"
    recomputed = min(fields.pop("checkpoint_num"), fields["num_hidden_layers"])
    fields["gradient_checkpointing_layers"] = recomputed or None if fields.pop("use_checkpoint") else None
    alignment: dict[str, Any] = {}
    if num_aligned:
        norm_type = given.get("clip_norm_type", "l2")
        fields.pop("num_labels")
        names = ("projection_dim", "num_aligned_layers", "aligned_layer_interval")
        alignment = {name: fields.pop(name) for name in names} | {
            "normalize_features": norm_type == "l2",
            "alignment_loss": "cosine" if norm_type == "l2" else "mse",
            "last_aligned_feature": "unmixed" if given.get("fused_add_norm", True) else "raw",
        }
    return fields, alignment


def settle_input_size(
    fields: dict[str, Any], given: dict[str, Any], stride: Any, grid: tuple[int, int]
) -> dict[str, Any]:
    """`image_size` and `num_frames`. Of them the tensors show the grid: number of token frames, and of patches in a
    frame."""
    num_token_frames, num_places = grid
    patch, step, tubelet = both_sides(fields["patch_size"]), both_sides(stride), fields["tubelet_size"]
    # The tensors do not show frames and pixels that fill no patch: the configuration decides, if it fits.
    num_frames = given.get("num_frames", num_token_frames * tubelet)
    side = math.isqrt(num_places)
    if "img_size" not in given and side * side != num_places:
        return {"image_size": UNKNOWN, "num_frames": num_frames}
    square = [(side - 1) * s + p for s, p in zip(step, patch, strict=True)]
    image_size = simplest(both_sides(given.get("img_size", square)))
    sizes = zip(both_sides(image_size), patch, step, strict=True)
    rows, columns = ((size - p) // s + 1 for size, p, s in sizes)
    if (num_frames // tubelet, rows * columns) != grid or min(rows, columns) < 1:
        raise ConversionError(
            f"img_size={image_size} and num_frames={num_frames} are {rows} x {columns} patches in "
            f"{num_frames // tubelet} token frames; the tensors have {num_places} in {num_token_frames}."
        )
    return {"image_size": image_size, "num_frames": num_frames}


def both_sides(size: int | list[int]) -> list[int]:
    """Height and width of a size that may be one number."""
    return size if isinstance(size, list) else [size, size]


def simplest(size: list[int]) -> int | list[int]:
    """A size as one number if it is square."""
    return size[0] if size[0] == size[1] else size


def read_sizes(weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The fields that tensors show, and `rms_norm`, the grid of patches, and whether they are those of images."""
    is_image = weights["patch_embed.proj.weight"].ndim == 4
    width, channels, *kernel = shape_of(weights, "patch_embed.proj.weight", 4 if is_image else 5)
    has_frames = "temporal_pos_embedding" in weights
    num_token_frames = shape_of(weights, "temporal_pos_embedding", 3)[1] if has_frames else 1
    mixer = select_prefix(weights, "layers.0.mixer.")
    inner, state_size = shape_of(weights, "layers.0.mixer.A_log", 2)
    sizes: dict[str, Any] = {
        "hidden_size": width,
        "num_channels": channels,
        "patch_size": simplest(kernel[-2:]),
        "tubelet_size": 1 if is_image else kernel[0],
        "num_hidden_layers": count_layers(weights, r"layers\.(\d+)\."),
        "bidirectional": "A_b_log" in mixer,
        "rms_norm": "layers.0.norm.bias" not in weights,
        "grid": (num_token_frames, shape_of(weights, "pos_embed", 3)[1] - 1),
        "is_image": is_image,
        "state_size": state_size,
        "conv_kernel": shape_of(weights, "layers.0.mixer.conv1d.weight", 3)[-1],
        "expand": find_factor(inner, width),
        "time_step_rank": shape_of(weights, "layers.0.mixer.dt_proj.weight", 2)[1],
        "use_bias": "in_proj.bias" in mixer,
        "use_conv_bias": "conv1d.bias" in mixer,
    }
    if heads := [name for name in weights if re.fullmatch(r"clip_decoder\.\d+\.head\.weight", name)]:
        return sizes | {"num_aligned_layers": len(heads), "projection_dim": shape_of(weights, heads[0], 2)[0]}
    return sizes | {"num_labels": shape_of(weights, "head.weight", 2)[0] if "head.weight" in weights else 0}


def find_factor(inner: int, width: int) -> int | float:
    """A number `expand` for which `int(expand * width)` is `inner`, although the quotient may be rounded down."""
    if inner % width == 0:
        return inner // width
    factor = inner / width
    return factor if int(factor * width) == inner else math.nextafter(factor, math.inf)
