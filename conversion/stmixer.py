"""
The ViT backbone of STMixer, as VideoViTBackbone, or with `--task action-detection` the whole detector.

The checkpoint is that of a detector or, for the backbone alone, of the classifier that it starts from. FILE.json is
the section `ViT` of the original's configuration; for a detector it has the sections `ViT` and `STM`. Source:
MCG-NJU/STMixer, `video_model_builder.ViT` and `models/stm_decoder`; `utils/checkpoint_loader` says which tensor is
loaded where.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import torch

from hf_video.data.boxes import read_label_map
from hf_video.loading.class_names import label_fields
from hf_video.models.stmixer import STMixerConfig, STMixerForActionDetection
from hf_video.models.videovit import VideoViTBackbone, VideoViTConfig
from hf_video.processing import VideoClipProcessor, VideoDetectionProcessor
from hf_video.settings import few

from .helpers.checkpoint import (
    ConversionError,
    count_layers,
    expect,
    find_weights,
    read_checkpoint,
    select_part,
    select_prefix,
    shape_of,
    strip_prefixes,
)
from .helpers.command import Converted, make_parser, run
from .helpers.fields import UNREAD, Part, make_config, read_fields, read_original, without_null
from .helpers.videovit import ARGUMENTS, ENCODER_ARGUMENTS, ENCODER_RULES, original_fields
from .helpers.weight_rules import Rule, apply_rules, drop, inside, load_converted, rename

DETECTION = "action-detection"
# Keys of `cfg.ViT`.
BACKBONE_ARGUMENTS = {
    name.upper(): row
    for name, row in (ARGUMENTS | ENCODER_ARGUMENTS).items()
    if name not in ("img_size", "all_frames", "cos_attn", "with_cp")
} | {"PRETRAIN_IMG_SIZE": ("image_size", 224), "DROP_PATH_RATE": ("drop_path_rate", 0.2)}

BACKBONE_RULES = (
    *ENCODER_RULES,
    drop(r"fc_norm\..*", "normalises the classifier's mean token; STMixer does not load it into its own norm either"),
    drop(r"head\..*", "the classifier that the backbone starts from"),
)

# Keys of `cfg.MODEL.STM` with the values of the released configurations.
HEAD_ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "NUM_QUERIES": ("num_queries", 100),
    "HIDDEN_DIM": ("hidden_size", 256),
    "NUM_STAGES": ("num_hidden_layers", 6),
    "ACTION_CLASSES": ("num_labels", 80),
    "OBJECT_CLASSES": ("object_classes", 1),
    "NUM_HEADS": ("num_attention_heads", 8),
    "DROPOUT": ("attention_dropout", 0.0),
    "DIM_FEEDFORWARD": ("intermediate_size", 2048),
    "NUM_FCS": ("num_ffn_layers", 2),
    "SPATIAL_POINTS": ("num_spatial_points", 32),
    "TEMPORAL_POINTS": ("num_temporal_points", 8),
    "OUT_MULTIPLIER": ("point_multiplier", 4),
    "N_GROUPS": ("num_groups", 4),
    "NUM_CLS": ("num_class_layers", 1),
    "NUM_ACT": ("num_action_layers", 1),
    "NUM_REG": ("num_box_layers", 1),
    "OBJECT_WEIGHT": ("ce", 2.0),
    "ACTION_WEIGHT": ("bce", 24.0),
    "GIOU_WEIGHT": ("giou", 2.0),
    "L1_WEIGHT": ("bbox", 2.0),
    "BACKGROUND_WEIGHT": ("background_weight", 0.1),
    "PERSON_THRESHOLD": (None, 0.6),
    **dict.fromkeys(("ACTIVATION", "INTERMEDIATE_SUPERVISION", "MEM_ACTIVE"), UNREAD),
}
LAYER = r"stm_head\.decoder_stages\.(\d+)\."
BRANCHES = {"s": "spatial", "t": "temporal"}
HEADS = {
    "person_head": ("human_cls_fcs", "human_fc_cls"),
    "box_head": ("reg_fcs", "fc_reg"),
    "action_head": ("action_cls_fcs", "fc_action"),
}


def convert(arguments: argparse.Namespace) -> Converted:
    """Model and processor for the checkpoint and the task that the command line names."""
    weights = find_weights(read_checkpoint(arguments.checkpoint, skips_foreign=True), ("model", "module"))
    weights = strip_prefixes(weights, ("_orig_mod.", "module."))
    original = read_original(arguments.original_config)
    if arguments.task == DETECTION:
        config = make_config(STMixerConfig, detector_fields(original, weights), arguments.set)
        if arguments.label_map is not None:
            # The others keep their `LABEL_i`.
            names = read_label_map(arguments.label_map)
            if beyond := [number for number in names if not 1 <= number <= config.num_labels]:
                raise ConversionError(
                    f"--label-map names {few(beyond)}, and the actions are 1 to {config.num_labels}."
                )
            config.update(
                label_fields((config.id2label | {number - 1: name for number, name in names.items()}).values())
            )
        model = STMixerForActionDetection(config)
        load_converted(model, apply_rules(weights, detector_rules(config)))
        threshold = (original.get("STM") or {}).get("PERSON_THRESHOLD", HEAD_ARGUMENTS["PERSON_THRESHOLD"][1])
        return model, VideoDetectionProcessor(num_frames=config.backbone_config.num_frames, person_threshold=threshold)
    if arguments.label_map is not None:
        raise ConversionError(f"--label-map names actions, which a backbone has not: pass `--task {DETECTION}`.")
    weights = select_part(weights, "backbone.", "a backbone has no place for the parts of a detector after it")
    backbone = VideoViTBackbone(make_config(VideoViTConfig, backbone_fields(original, weights), arguments.set))
    # A classifier with mean pooling has no norm of tokens: that of the original keeps its initial values, 1 and 0.
    initial = [r"videovit\.layernorm\..*"] if "norm.weight" not in weights else []
    load_converted(backbone, apply_rules(weights, BACKBONE_RULES), keep_initial=initial)
    return backbone, make_processor(backbone.config)


def backbone_fields(given: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Fields of our configuration for keys of `cfg.ViT` and the backbone's tensors."""
    fields = original_fields(given, BACKBONE_ARGUMENTS, weights, "token_count")
    # The original's table of positions is always for 16 frames.
    return fields | {"num_frames": 16, "use_final_norm": True}


def detector_fields(sections: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Fields of our configuration for the original's sections `ViT` and `STM` and the checkpoint's tensors."""
    read_fields(sections, {"ViT": (None, {}), "STM": (None, {})}, {})
    given = without_null(sections.get("STM") or {}, "STM")
    found = read_head_sizes(weights)
    if (stored := weights.get("stm_head.criterion.empty_weight")) is not None:
        # Of float32, so it may differ from the same number in the file.
        found["background_weight"] = round(stored[-1].item(), 6)
    fields = read_fields(given, HEAD_ARGUMENTS, found)
    fields.pop("object_classes")
    losses = {name: fields.pop(name) for name in ("ce", "bbox", "giou", "bce")}
    backbone = backbone_fields(without_null(sections.get("ViT") or {}, "ViT"), select_prefix(weights, "backbone."))
    return fields | {
        "backbone_config": Part(VideoViTConfig, backbone),
        "strides": [4, 8, 16, 32],
        "loss_weights": losses,
        "match_weights": {"class": losses["ce"], "bbox": losses["bbox"], "giou": losses["giou"]},
    }


def read_head_sizes(weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Fields of our configuration that the tensors of a detector show, and `object_classes`."""
    stage = "stm_head.decoder_stages.0."
    expect(weights, "a detector", f"{stage}iof_tau")

    def shape(name: str) -> torch.Size:
        return shape_of(weights, f"{stage}{name}.weight", 2)

    queries, width = shape_of(weights, "stm_head.init_spatial_queries.weight", 2)
    mixing = "samplingmixing.adaptive_mixing_"
    # Points of all groups, and points after mixing in one: with the matrices' sizes they tell the number of groups.
    points = shape("samplingmixing.offset_generator.0")[0] // 3
    mixed_points = shape(f"{mixing}s.out_proj")[1] // width
    matrices = shape(f"{mixing}s.parameter_generator.0")[0] - points * mixed_points
    groups = max(width**2 // max(matrices, 1), 1)
    multiplier = mixed_points // max(points // groups, 1)

    def hidden_layers(name: str) -> int:
        return sum(re.fullmatch(rf"{re.escape(stage)}{name}\.\d+\.weight", key) is not None for key in weights) // 2

    return {
        "num_queries": queries,
        "hidden_size": width,
        "num_hidden_layers": count_layers(weights, LAYER),
        "num_labels": shape("fc_action")[0],
        "object_classes": shape("human_fc_cls")[0] - 1,
        "num_attention_heads": shape_of(weights, f"{stage}iof_tau", 1)[0],
        "intermediate_size": shape("ffn_s.layers.0.0")[0],
        "num_ffn_layers": count_layers(weights, rf"{re.escape(stage)}ffn_s\.layers\.(\d+)\."),
        "num_spatial_points": points // groups,
        "num_temporal_points": shape(f"{mixing}t.out_proj")[1] // width // max(multiplier, 1),
        "point_multiplier": multiplier,
        "num_groups": groups,
        "num_class_layers": hidden_layers("human_cls_fcs"),
        "num_box_layers": hidden_layers("reg_fcs"),
        "num_action_layers": hidden_layers("action_cls_fcs"),
    }


def detector_rules(config: STMixerConfig) -> tuple[Rule, ...]:
    """What becomes of every tensor of a detector."""
    backbone = inside(r"backbone\.", BACKBONE_RULES, lambda target: f"backbone.{target}")
    layers, last = [], config.num_ffn_layers - 1
    for letter, branch in BRANCHES.items():
        target = rf"layers.\1.{branch}."
        attention = LAYER + rf"attention_{letter}\.attn\."
        mixing = LAYER + rf"samplingmixing\.adaptive_mixing_{letter}\."
        ffn = LAYER + rf"ffn_{letter}\.layers\."
        layers += [
            rename(attention + r"in_proj_(weight|bias)", target + r"attention.qkv.\2"),
            rename(attention + r"out_proj\.(weight|bias)", target + r"attention.o_proj.\2"),
            rename(LAYER + rf"attention_norm_{letter}\.(weight|bias)", target + r"attention_norm.\2"),
            rename(mixing + r"parameter_generator\.0\.(weight|bias)", target + r"mixing.parameter_generator.\2"),
            rename(mixing + r"out_proj\.(weight|bias)", target + r"mixing.out_proj.\2"),
            rename(LAYER + rf"samplingmixing\.norm_{letter}\.(weight|bias)", target + r"mixing_norm.\2"),
            rename(ffn + r"(\d+)\.0\.(weight|bias)", target + r"ffn.\2.0.\3"),
            rename(ffn + rf"({last})\.(weight|bias)", target + r"ffn.\2.\3"),
            rename(LAYER + rf"ffn_norm_{letter}\.(weight|bias)", target + r"ffn_norm.\2"),
        ]
    for head, (hidden, output) in HEADS.items():
        layers += [
            rename(LAYER + rf"{hidden}\.(\d+)\.(weight|bias)", rf"layers.\1.{head}.layers.\2.\3"),
            rename(LAYER + rf"{output}\.(weight|bias)", rf"layers.\1.{head}.output.\2"),
        ]
    return (
        *backbone,
        rename(r"lateral_convs\.(.*)", r"lateral_branches.\1"),
        rename(r"stm_head\.init_(spatial|temporal)_queries\.weight", r"\1_queries.weight"),
        rename(LAYER + "iof_tau", r"layers.\1.iof_tau"),
        rename(LAYER + r"samplingmixing\.offset_generator\.0\.(weight|bias)", r"layers.\1.offset_generator.\2"),
        *layers,
        drop(r"stm_head\.criterion\.empty_weight", "weights of classes in the loss: `background_weight` has them"),
    )


def make_processor(config: VideoViTConfig) -> VideoClipProcessor:
    """The test recipe of AVA: 16 frames at stride 4, short side 256, aspect ratio kept, the detector's own mean."""
    return VideoClipProcessor(
        num_frames=config.num_frames,
        frame_sampling_rate=4,
        sampling_strategy="dense",
        size={"shortest_edge": 256},
        do_center_crop=False,
        image_mean=[0.45, 0.45, 0.45],
        image_std=[0.225, 0.225, 0.225],
    )


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument(
        "--task", choices=(DETECTION,), help="make the whole detector of the checkpoint (default: its backbone)"
    )
    parser.add_argument(
        "--label-map",
        type=Path,
        metavar="FILE.pbtxt",
        help="names of the detector's actions by their ids from 1 on, as AVA has them (default: LABEL_0, ...)",
    )
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
