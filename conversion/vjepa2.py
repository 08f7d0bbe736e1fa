"""
V-JEPA 2 and 2.1, as VideoViT: encoders, and classifiers with an attentive pooler.

Reads the authors' files and folders of Transformers' port. Source: facebookresearch/vjepa2,
`src.models.vision_transformer.VisionTransformer`, `src.models.attentive_pooler.AttentiveClassifier`, and for 2.1
`app.vjepa_2_1.models.vision_transformer`.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from transformers import PreTrainedModel

from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification, VideoViTModel
from hf_video.processing import VideoClipProcessor

from .helpers.checkpoint import (
    ConversionError,
    count_layers,
    find_weights,
    name_left_out,
    read_checkpoint,
    read_model_folder,
    select_prefix,
    shape_of,
    strip_prefixes,
)
from .helpers.command import Converted, labels_of_original, make_parser, run
from .helpers.fields import UNKNOWN, make_config, read_fields, read_original
from .helpers.videovit import PROJECTIONS, block_rules, patch_embedding_rules, read_block_sizes, read_patch_sizes
from .helpers.weight_rules import Rule, apply_rules, drop, load_converted, rename

# The average over training steps is what all evaluations read. In distilled models of 2.1 it has a name of its own.
WRAPPERS = ("ema_encoder", "target_encoder", "encoder")
# Attention heads of the released sizes, by width.
HEADS = {768: 12, 1024: 16, 1280: 16, 1408: 22, 1664: 26}
# Layers with a norm of their own in V-JEPA 2.1, by depth; the norm of the last one is the final norm.
NORM_LAYERS = {12: (2, 5, 8, 11), 24: (5, 11, 17, 23), 40: (9, 19, 29, 39), 48: (11, 23, 37, 47)}
# Transformers gives the probe the encoder's heads; the authors trained all of them with as many.
PROBE_HEADS, PROBE_EPS = 16, 1e-5
ENCODER_FIELDS = {
    **{"position_embedding_type": "rope", "rope_theta": 10000.0, "rope_layout": "vjepa2"},
    **{"use_mean_pooling": False, "use_final_norm": True, "head_norm_eps": PROBE_EPS},
}

ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "img_size": ("image_size", 256),
    "patch_size": ("patch_size", 16),
    "num_frames": ("num_frames", 64),
    "tubelet_size": ("tubelet_size", 2),
    "in_chans": ("num_channels", 3),
    "embed_dim": ("hidden_size", 768),
    "depth": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", UNKNOWN),
    "qkv_bias": ("qkv_bias", True),
    "qk_scale": ("qk_scale", None),
    "drop_rate": ("hidden_dropout_prob", 0.0),
    "attn_drop_rate": ("attention_probs_dropout_prob", 0.0),
    "drop_path_rate": ("drop_path_rate", 0.0),
    "init_std": ("initializer_range", 0.02),
    "mlp_ratio": (None, 4.0),
    "use_rope": (None, False),
    "modality_embedding": ("use_modality_embeddings", False),
    "interpolate_rope": (None, False),
    "img_temporal_dim_size": (None, None),
    "n_output_distillation": (None, 4),
    # What these say is in the tensors, has no effect with rotary positions, or is chosen when a model is run.
    **dict.fromkeys(("use_silu", "use_SiLU", "is_causal", "has_cls_first"), (None, False)),
    **dict.fromkeys(
        ("wide_silu", "wide_SiLU", "uniform_power", "use_sdpa", "use_activation_checkpointing"), (None, True)
    ),
    **dict.fromkeys(("out_layers", "handle_nonsquare_inputs", "norm_layer", "n_registers"), (None, None)),
    **dict.fromkeys(("teacher_embed_dim", "use_rope_time", "pos_embed"), (None, None)),
}
PROBE_ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "embed_dim": ("hidden_size", 768),
    "num_heads": ("pooler_num_attention_heads", PROBE_HEADS),
    "depth": ("pooler_num_hidden_layers", 1),
    "num_classes": ("num_labels", 1000),
    "init_std": (None, 0.02),
    "mlp_ratio": (None, 4.0),
    "qkv_bias": (None, True),
    "num_queries": (None, 1),
    "complete_block": (None, True),
    "use_activation_checkpointing": (None, False),
    "norm_layer": (None, None),
}

PARAMETERS = r"\.(weight|bias)"
PROBE_RULES = (
    *block_rules(r"pooler\.", "pooler."),
    rename(
        r"pooler\.blocks\.(\d+)\.attn\.qkv\.bias", r"pooler.layers.\1.attention.*.bias", lambda rows: _split(rows, 3)
    ),
    rename(r"pooler\.query_tokens", "pooler.query_token"),
    rename(rf"pooler\.cross_attention_block\.norm1{PARAMETERS}", r"pooler.layernorm_before.\1"),
    rename(rf"pooler\.cross_attention_block\.norm2{PARAMETERS}", r"pooler.layernorm_after.\1"),
    rename(rf"pooler\.cross_attention_block\.xattn\.q{PARAMETERS}", r"pooler.query.\1"),
    rename(rf"pooler\.cross_attention_block\.xattn\.kv{PARAMETERS}", r"pooler.*.\1", lambda rows: _split(rows, 2)),
    rename(rf"pooler\.cross_attention_block\.mlp\.(fc[12]){PARAMETERS}", r"pooler.mlp.\1.\2"),
    rename(rf"linear{PARAMETERS}", r"classifier.\1"),
)


def _split(rows: torch.Tensor, parts: int) -> dict[str, torch.Tensor]:
    """The rows of one projection for queries (if it has them), keys and values."""
    return dict(zip(PROJECTIONS[-parts:], rows.chunk(parts), strict=True))


def _pair_halves(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """The rows of queries or keys, such that partners of a rotation, which are neighbours in the original, are half a
    head apart."""
    return rearrange(rows, "(heads pairs two) ... -> (heads two pairs) ...", heads=num_heads, two=2)


def encoder_rules(config: VideoViTConfig) -> list[Rule]:
    """The rules of the authors' encoder."""
    heads = config.num_attention_heads

    def split(rows: torch.Tensor) -> dict[str, torch.Tensor]:
        query, key, value = rows.chunk(3)
        return {"query": _pair_halves(query, heads), "key": _pair_halves(key, heads), "value": value}

    final = len(config.intermediate_norm_layers)
    own = [
        rename(rf"norms_block\.{number}{PARAMETERS}", rf"videovit.intermediate_norms.{layer}.\1")
        for number, layer in enumerate(config.intermediate_norm_layers)
    ]
    return [
        *patch_embedding_rules(r"patch_embed\.proj"),
        *(
            rule._replace(target=str(rule.target).replace("patch_embeddings", "image_patch_embeddings"))
            for rule in patch_embedding_rules(r"patch_embed_img\.proj")
        ),
        rename(r"video_mod_embed", "videovit.embeddings.video_embedding"),
        rename(r"img_mod_embed", "videovit.embeddings.image_embedding"),
        rename(rf"blocks\.(\d+)\.attn\.qkv{PARAMETERS}", r"videovit.layers.\1.attention.*.\2", split),
        *block_rules("", "videovit."),
        rename(rf"norm{PARAMETERS}", r"videovit.layernorm.\1"),
        *own,
        rename(rf"norms_block\.{final}{PARAMETERS}", r"videovit.layernorm.\1"),
        drop(r"pos_embed", "positions are rotary, and this table is not read"),
    ]


def transformers_rules(config: VideoViTConfig) -> list[Rule]:
    """The rules of Transformers' port, for encoder and classifier."""
    heads, layer = config.num_attention_heads, r"encoder\.layer\.(\d+)\."
    pooler, block = r"pooler\.cross_attention_layer\.", r"pooler\.self_attention_layers\.(\d+)\."
    in_halves = partial(_pair_halves, num_heads=heads)
    rules = [
        *patch_embedding_rules(r"encoder\.embeddings\.patch_embeddings\.proj"),
        rename(rf"encoder\.layernorm{PARAMETERS}", r"videovit.layernorm.\1"),
        drop(r"predictor\..*", "the predictor serves pre-training alone"),
        rename(r"pooler\.query_tokens", "pooler.query_token"),
        rename(rf"classifier{PARAMETERS}", r"classifier.\1"),
        rename(rf"{pooler}mlp\.(fc[12]){PARAMETERS}", r"pooler.mlp.\1.\2"),
    ]
    for old, new in {"1": "before", "2": "after"}.items():
        rules += [
            rename(rf"{layer}norm{old}{PARAMETERS}", rf"videovit.layers.\1.layernorm_{new}.\2"),
            rename(rf"{block}layer_norm{old}{PARAMETERS}", rf"pooler.layers.\1.layernorm_{new}.\2"),
            rename(rf"{pooler}layer_norm{old}{PARAMETERS}", rf"pooler.layernorm_{new}.\1"),
        ]
    for name in PROJECTIONS:
        target, form = rf"videovit.layers.\1.attention.{name}.\2", torch.clone if name == "value" else in_halves
        rules += [
            rename(rf"{layer}attention\.{name}{PARAMETERS}", target, form),
            rename(rf"{block}self_attn\.{name[0]}_proj{PARAMETERS}", rf"pooler.layers.\1.attention.{name}.\2"),
            rename(rf"{pooler}cross_attn\.{name[0]}_proj{PARAMETERS}", rf"pooler.{name}.\1"),
        ]
    return rules + [
        rename(rf"{layer}attention\.proj{PARAMETERS}", r"videovit.layers.\1.attention.o_proj.\2"),
        rename(rf"{layer}mlp\.(fc[12]){PARAMETERS}", r"videovit.layers.\1.mlp.\2.\3"),
        rename(rf"{block}self_attn\.out_proj{PARAMETERS}", r"pooler.layers.\1.attention.o_proj.\2"),
        rename(rf"{block}mlp\.(fc[12]){PARAMETERS}", r"pooler.layers.\1.mlp.\2.\3"),
    ]


def convert(arguments: argparse.Namespace) -> Converted:
    """Model and processor for the checkpoint that the command line names."""
    path = Path(arguments.checkpoint)
    if not path.is_file() and not path.suffix:
        model = convert_folder(arguments)
    else:
        model = convert_original(arguments)
    height, width = model.config.image_shape
    # The original's evaluation: frames at stride 4, the short side 256/224 of the crop, OpenCV's bilinear resizing.
    processor = VideoClipProcessor(
        num_frames=model.config.num_frames,
        frame_sampling_rate=4,
        sampling_strategy="dense",
        resample=2,
        size={"shortest_edge": int(min(height, width) * 256 / 224)},
        crop_size={"height": height, "width": width},
    )
    return model, processor


def convert_original(arguments: argparse.Namespace) -> PreTrainedModel:
    """The model of a file of the authors."""
    content = read_checkpoint(Path(arguments.checkpoint))
    weights = strip_prefixes(find_weights(content, WRAPPERS), ("_orig_mod.", "module.", "backbone."))
    original = read_original(arguments.original_config)
    is_with_probe = "encoder" in original or "probe" in original
    fields = original_fields(original.get("encoder", {}) if is_with_probe else original, weights)
    if arguments.probe is None:
        config = make_config(VideoViTConfig, fields, arguments.set)
        model: PreTrainedModel = VideoViTModel(config)
        load_converted(model, _without_prefix(apply_rules(weights, encoder_rules(config))))
        return model
    probe = _read_probe(arguments.probe)
    fields |= probe_fields(original.get("probe", {}), probe, fields["hidden_size"])
    layers = original.get("out_layers") or original.get("encoder", {}).get("out_layers")
    if layers is not None and list(layers) != [fields["num_hidden_layers"] - 1]:
        fields["pooler_out_layers"] = layers
    config = make_config(VideoViTConfig, fields, arguments.set)
    model = VideoViTForVideoClassification(config)
    converted = apply_rules(weights, encoder_rules(config)) | apply_rules(probe, PROBE_RULES)
    load_converted(model, converted)
    return model


def _without_prefix(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return select_prefix(weights, "videovit.")


def _read_probe(path: Path) -> dict[str, torch.Tensor]:
    content = read_checkpoint(path)
    if isinstance(classifiers := content.get("classifiers"), list) and classifiers:
        content = {"classifier": classifiers[0]}
        if len(classifiers) > 1:
            name_left_out([f"classifiers.{number}" for number in range(1, len(classifiers))], "the first one is read")
    return strip_prefixes(find_weights(content, ("classifier",)), ("_orig_mod.", "module."))


def original_fields(given: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Fields of our configuration for an encoder of the authors."""
    is_new = "norms_block.0.weight" in weights
    found = read_patch_sizes(weights) | read_block_sizes(weights)
    found["qkv_bias"] = found["key_bias"] = "blocks.0.attn.qkv.bias" in weights
    found["use_modality_embeddings"] = "video_mod_embed" in weights
    if given.get("use_rope") is False:
        raise ConversionError("The original configuration says use_rope=False: no release has a table of positions.")
    said = {name: value for name, value in given.items() if name != "img_size" or value is not None}
    fields = read_fields(said, ARGUMENTS, found)
    ratio = given.get("mlp_ratio")
    if ratio is not None and int(fields["hidden_size"] * ratio) != fields["intermediate_size"]:
        raise ConversionError(
            f"The original configuration says mlp_ratio={ratio}, the tensors have {fields['intermediate_size']} "
            f"channels for {fields['hidden_size']}."
        )
    if fields["num_attention_heads"] is UNKNOWN:
        fields["num_attention_heads"] = HEADS.get(fields["hidden_size"], UNKNOWN)
    fields |= ENCODER_FIELDS | {"qk_scale": fields["qk_scale"] or None}
    if is_new:
        number = count_layers(weights, r"norms_block\.(\d+)\.")
        depth = fields["num_hidden_layers"]
        if depth not in NORM_LAYERS:
            raise ConversionError(f"V-JEPA 2.1 has {', '.join(map(str, NORM_LAYERS))} layers, the checkpoint {depth}.")
        fields |= {"rope_layout": "vjepa2_1", "intermediate_norm_layers": list(NORM_LAYERS[depth][-number:-1])}
        fields["use_image_patch_embeddings"] = "patch_embed_img.proj.weight" in weights
        if given.get("interpolate_rope", True):
            # Of 256 pixels, with which the first stage was trained, or of 252 for patches of 14.
            fields["rope_grid_size"] = 18 if fields["patch_size"] == 14 else 16
        if "img_size" not in given:
            fields["image_size"] = 384
    return fields


def probe_fields(given: dict[str, Any], probe: dict[str, torch.Tensor], hidden_size: int) -> dict[str, Any]:
    """Fields of our configuration for a probe of the authors."""
    num_layers = count_layers(probe, r"pooler\.blocks\.(\d+)\.")
    found = {"num_labels": shape_of(probe, "linear.weight", 2)[0], "hidden_size": hidden_size}
    arguments = {name: row for name, row in PROBE_ARGUMENTS.items() if name != "depth"} | {"depth": (None, 1)}
    if given.get("depth", num_layers + 1) != num_layers + 1:
        raise ConversionError(f"The probe's depth is {given['depth']}, the tensors have {num_layers} + 1 blocks.")
    fields = read_fields(given, arguments, found)
    return fields | {"pooler_type": "attentive", "pooler_num_hidden_layers": num_layers}


def convert_folder(arguments: argparse.Namespace) -> PreTrainedModel:
    """The model of a folder or Hub repository of Transformers' port."""
    if arguments.probe is not None or arguments.original_config is not None:
        raise ConversionError("--probe and --original-config are for files of the authors, not for a folder.")
    original, weights, _ = read_model_folder(str(arguments.checkpoint), "vjepa2")
    weights = strip_prefixes(weights, ("vjepa2.",))
    hidden_size = original["hidden_size"]
    fields: dict[str, Any] = {
        "image_size": original["crop_size"],
        "num_frames": original["frames_per_clip"],
        "num_channels": original.get("in_chans", 3),
        "intermediate_size": int(hidden_size * original["mlp_ratio"]),
        "key_bias": original["qkv_bias"],
        **{
            name: original[name]
            for name in (
                *("patch_size", "tubelet_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
                *("hidden_act", "layer_norm_eps", "qkv_bias", "drop_path_rate", "initializer_range"),
            )
            if name in original
        },
    }
    fields |= ENCODER_FIELDS
    if "classifier.weight" not in weights:
        config = make_config(VideoViTConfig, fields, arguments.set)
        model: PreTrainedModel = VideoViTModel(config)
        load_converted(model, _without_prefix(apply_rules(weights, transformers_rules(config))))
        return model
    # The port gives the probe the heads of the encoder; that of ViT-g was trained with 16, and the file is the same.
    heads = original["num_attention_heads"] if hidden_size not in HEADS else PROBE_HEADS
    fields |= {
        "pooler_type": "attentive",
        "pooler_num_hidden_layers": count_layers(weights, r"pooler\.self_attention_layers\.(\d+)\."),
        "pooler_num_attention_heads": heads,
        **labels_of_original(original, shape_of(weights, "classifier.weight", 2)[0]),
    }
    config = make_config(VideoViTConfig, fields, arguments.set)
    model = VideoViTForVideoClassification(config)
    load_converted(model, apply_rules(weights, transformers_rules(config)))
    return model


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument(
        "--probe", type=Path, metavar="PROBE.pth", help="a classifier of the frozen encoder: the first of the file"
    )
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
