"""
VideoMamba: classifiers of images and videos, and pre-trained models.

Reads image and video classifiers, models of masked pre-training, and the video encoders of multimodal models. Source:
OpenGVLab/VideoMamba, `VisionMamba` of `videomamba/image_sm/models/videomamba.py`,
`videomamba/video_sm/models/videomamba.py` and `videomamba_pretrain.py`, and `PretrainVideoMamba` of `video_mm`.
"""

import argparse

import torch
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from hf_video.models.videomamba import (
    VideoMambaConfig,
    VideoMambaForImageClassification,
    VideoMambaForPreTraining,
    VideoMambaForVideoClassification,
    VideoMambaPreTrainedModel,
)
from hf_video.processing import CenterCropImageProcessor, VideoClipProcessor
from hf_video.settings import few

from .helpers.checkpoint import ConversionError, expect, find_weights, read_checkpoint, select_part, strip_prefixes
from .helpers.command import Converted, make_parser, new_head, run
from .helpers.fields import UNKNOWN, agree, make_config, read_original
from .helpers.videomamba import (
    ENCODER_RULES,
    PRE_TRAINING_RULES,
    TELLING_TENSORS,
    encoder_fields,
    patch_rule,
    read_variant,
)
from .helpers.weight_rules import Rule, apply_rules, drop, load_converted, rename

IMAGE, VIDEO, PRE_TRAINING = "image-classification", "video-classification", "pre-training"

CLASSIFICATION_RULES = (
    rename(r"norm_f\.(weight|bias)", r"videomamba.norm_f.\1"),
    rename(r"head\.(weight|bias)", r"classifier.\1"),
)
FINE_TUNING_RULES = (
    drop(r"norm\..*", "the original fine-tunes with a final norm from scratch"),
    drop(r"clip_decoder\..*", "the heads that are aligned with a teacher serve pre-training alone"),
    drop(r"pool_norm\..*", "normalises the pooled feature that a multimodal model compares with text"),
)
INFLATION_RULES = (
    rename(r"norm_f\.(weight|bias)", r"videomamba.norm_f.\1"),
    drop(r"head\..*", "the classes of images; a video model gets a head from scratch"),
)


def convert(arguments: argparse.Namespace) -> Converted:
    """Model and processor for the checkpoint and the task that the command line names."""
    weights = read_weights(arguments)
    saved_for = task_of(weights)
    task = arguments.task or saved_for
    if task not in (saved_for, VIDEO):
        raise ConversionError(f"A checkpoint saved for {saved_for} cannot become one for {task}.")
    given = read_original(arguments.original_config)
    if arguments.variant is not None:
        given = agree(given, read_variant(arguments.variant))
    fields, alignment = encoder_fields(given, weights, is_file=arguments.original_config is not None)
    fields["use_temporal_position_embeddings"] = "temporal_pos_embedding" in weights

    rules: tuple[Rule, ...] = CLASSIFICATION_RULES
    keep_initial: list[str] = []
    model_class: type[VideoMambaPreTrainedModel] = VideoMambaForVideoClassification
    if task == PRE_TRAINING:
        model_class, rules = VideoMambaForPreTraining, PRE_TRAINING_RULES
        fields |= alignment
        if "pool_norm.weight" in weights:
            # The encoder of a multimodal model, which gives a clip of one frame no position in time.
            fields |= {"use_pool_norm": True, "use_single_frame_position": False}
            keep_initial = [r"videomamba\.pool_norm\.bias"]
    elif saved_for == PRE_TRAINING:
        rules, keep_initial = FINE_TUNING_RULES, [r"videomamba\.norm_f\..*", r"classifier\..*"]
        fields |= new_head(arguments)
    elif task != saved_for:
        rules, keep_initial = INFLATION_RULES, [r"classifier\..*", r".*\.temporal_position_embeddings"]
        fields |= new_head(arguments) | {"num_frames": UNKNOWN, "use_temporal_position_embeddings": True}
    elif task == IMAGE:
        model_class = VideoMambaForImageClassification
    config = make_config(VideoMambaConfig, fields, arguments.set)
    if task == IMAGE and config.num_frames > 1:
        raise ConversionError(f"Image weights become a video model with `--task {VIDEO} --set num_frames=T`.")
    model = model_class(config)
    patches = patch_rule(model.config.tubelet_size, arguments.inflation)
    load_converted(model, apply_rules(weights, (patches, *ENCODER_RULES, *rules)), keep_initial)
    return model, make_processor(model.config, task, arguments.variant)


def read_weights(arguments: argparse.Namespace) -> dict[str, torch.Tensor]:
    """The tensors of the encoder and its heads, without wrappers and prefixes."""
    content = read_checkpoint(arguments.checkpoint)
    if arguments.ema and not isinstance(content.get("model_ema"), dict):
        raise ConversionError(f"--ema: there are no averaged weights under 'model_ema'. Found: {few(content)}.")
    weights = find_weights(content, ("model_ema",) if arguments.ema else ("model", "module"))
    weights = strip_prefixes(weights, ("_orig_mod.", "module.", "backbone.", "encoder."))
    return select_part(weights, "vision_encoder.", "only the video encoder of a multimodal model is taken")


def task_of(weights: dict[str, torch.Tensor]) -> str:
    """What a checkpoint was saved for; raises `ConversionError` if it is not one of VideoMamba."""
    expect(weights, "VideoMamba", *TELLING_TENSORS)
    if any(name.startswith("clip_decoder.") for name in weights):
        return PRE_TRAINING
    return VIDEO if "temporal_pos_embedding" in weights else IMAGE


def make_processor(
    config: VideoMambaConfig, task: str, variant: str | None
) -> VideoClipProcessor | CenterCropImageProcessor:
    """The processor of the original's evaluation: one clip, or an image, and its centre crop. The original's scripts
    know only square frames. For others, the shorter edge of a video is resized to the longer side of the crop, so that
    it fits."""
    height, width = config.image_shape
    crop_size = {"height": height, "width": width}
    if task == IMAGE:
        return CenterCropImageProcessor(
            size={"shortest_edge": int(max(height, width) / 0.875)},
            crop_size=crop_size,
            image_mean=IMAGENET_DEFAULT_MEAN,
            image_std=IMAGENET_DEFAULT_STD,
        )
    return VideoClipProcessor(
        num_frames=config.num_frames,
        sampling_strategy="uniform" if "_ssv2_" in (variant or "") else "sparse",
        size={"shortest_edge": max(height, width)},
        crop_size=crop_size,
    )


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument(
        "--task",
        choices=(VIDEO, IMAGE, PRE_TRAINING),
        help="what to make of the checkpoint (default: what it was saved for)",
    )
    parser.add_argument(
        "--variant", metavar="NAME", help="name of the released file, without .pth; checked against the tensors"
    )
    parser.add_argument("--ema", action="store_true", help="take the averaged weights that a training script kept")
    parser.add_argument(
        "--inflation",
        choices=("centre", "mean"),
        default="centre",
        help="how patches of images grow over time, with `--task video-classification --set num_frames=T [--set "
        "tubelet_size=K]`: the middle frame has the weights, or all share them (default: centre)",
    )
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
