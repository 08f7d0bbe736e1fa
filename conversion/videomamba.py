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

from .helpers.checkpoint import (
    ConversionError,
    find_weights,
    preview,
    read_checkpoint,
    select_part,
    strip_prefixes,
)
from .helpers.command import Converted, make_parser, num_labels_of_new_head, positive_int, run
from .helpers.videomamba import alignment_config, encoder_config, read_config, sampling_strategy_of
from .helpers.videomamba_weights import ENCODER_RULES, PRE_TRAINING_RULES, TELLING_TENSORS, patch_rule
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
    task = choose_task(arguments, saved_for)
    original = read_config(arguments, weights)
    config = encoder_config(original) | {"use_temporal_position_embeddings": "temporal_pos_embedding" in weights}
    new_head = {"num_labels": num_labels_of_new_head(arguments)}

    rules: tuple[Rule, ...] = CLASSIFICATION_RULES
    keep_initial: list[str] = []
    model_class: type[VideoMambaPreTrainedModel] = VideoMambaForVideoClassification
    if task == PRE_TRAINING:
        model_class, rules = VideoMambaForPreTraining, PRE_TRAINING_RULES
        config |= alignment_config(original)
        if "pool_norm.weight" in weights:
            # The encoder of a multimodal model, which gives a clip of one frame no position in time.
            config |= {"use_pool_norm": True, "use_single_frame_position": False}
            keep_initial = [r"videomamba\.pool_norm\.bias"]
    elif saved_for == PRE_TRAINING:
        rules, keep_initial = FINE_TUNING_RULES, [r"videomamba\.norm_f\..*", r"classifier\..*"]
        config |= new_head
    elif task != saved_for:
        rules, keep_initial = INFLATION_RULES, [r"classifier\..*", r".*\.temporal_position_embeddings"]
        config |= new_head | {
            "num_frames": arguments.inflate_frames,
            "tubelet_size": arguments.tubelet_size,
            "use_temporal_position_embeddings": True,
        }
    else:
        config |= {"num_labels": original["num_classes"]}
        if task == IMAGE:
            model_class = VideoMambaForImageClassification
    model = model_class(VideoMambaConfig(**config))
    patches = patch_rule(model.config.tubelet_size, arguments.inflate_mode)
    load_converted(model, apply_rules(weights, (patches, *ENCODER_RULES, *rules)), keep_initial)
    return model, make_processor(model.config, task, arguments.variant)


def read_weights(arguments: argparse.Namespace) -> dict[str, torch.Tensor]:
    """The tensors of the encoder and its heads, without wrappers and prefixes."""
    content = read_checkpoint(arguments.checkpoint)
    if arguments.ema and not isinstance(content.get("model_ema"), dict):
        raise ConversionError(f"--ema: there are no averaged weights under 'model_ema'. Found: {preview(content)}.")
    weights = find_weights(content, ("model_ema",) if arguments.ema else ("model", "module"))
    weights = strip_prefixes(weights, ("_orig_mod.", "module.", "backbone.", "encoder."))
    return select_part(weights, "vision_encoder.", "only the video encoder of a multimodal model is taken")


def task_of(weights: dict[str, torch.Tensor]) -> str:
    """What a checkpoint was saved for; raises `ConversionError` if it is not one of VideoMamba."""
    if absent := [name for name in TELLING_TENSORS if name not in weights]:
        raise ConversionError(
            f"These are not the weights of VideoMamba, which has {preview(absent)}. Found: {preview(weights)}."
        )
    if any(name.startswith("clip_decoder.") for name in weights):
        return PRE_TRAINING
    return VIDEO if "temporal_pos_embedding" in weights else IMAGE


def choose_task(arguments: argparse.Namespace, saved_for: str) -> str:
    """The task of `--task`, or else that of the checkpoint; raises `ConversionError` if it is impossible."""
    inflates = saved_for == IMAGE and arguments.inflate_frames is not None
    task = arguments.task or (VIDEO if inflates else saved_for)
    if task != saved_for and (task != VIDEO or saved_for == VIDEO):
        raise ConversionError(f"A checkpoint saved for {saved_for} cannot become one for {task}.")
    if task == VIDEO and saved_for == IMAGE and not inflates:
        raise ConversionError("Image weights become a video model with `--inflate-frames T`, its number of frames.")
    if arguments.inflate_frames is not None and not (inflates and task == VIDEO):
        raise ConversionError("`--inflate-frames` turns image weights into a video model, and nothing else.")
    num_frames, tubelet_size = arguments.inflate_frames, arguments.tubelet_size
    if not inflates and tubelet_size != 1:
        raise ConversionError("`--tubelet-size` goes with `--inflate-frames`; other weights have their own.")
    if inflates and (tubelet_size < 1 or num_frames < 1 or num_frames % tubelet_size):
        raise ConversionError(f"--inflate-frames {num_frames} must be a multiple of --tubelet-size {tubelet_size}.")
    if arguments.num_labels is not None and task == saved_for:
        raise ConversionError("`--num-labels` is for the new head of a video classifier made from other weights.")
    return task


def make_processor(
    config: VideoMambaConfig, task: str, variant: str | None
) -> VideoClipProcessor | CenterCropImageProcessor:
    """
    The processor of the original's evaluation: one clip and its centre crop for a video, the centre crop for an image.
    The original's scripts know only square frames. For others, the shorter edge of a video is resized to the longer
    side of the crop, so that the crop fits into videos of any aspect.
    """
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
        sampling_strategy=sampling_strategy_of(variant),
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
        "--num-labels",
        type=positive_int,
        metavar="N",
        help="classes of the new head of a video classifier made from other weights (default: as --labels, or 2)",
    )
    parser.add_argument(
        "--variant", metavar="NAME", help="name of the released file, without .pth; checked against the tensors"
    )
    parser.add_argument("--ema", action="store_true", help="take the averaged weights that a training script kept")
    parser.add_argument(
        "--inflate-frames", type=int, metavar="T", help="make a video model of T frames from image weights"
    )
    parser.add_argument(
        "--tubelet-size",
        type=int,
        default=1,
        metavar="K",
        help="with --inflate-frames: frames of a patch (default: 1)",
    )
    parser.add_argument(
        "--inflate-mode",
        choices=("center", "mean"),
        default="center",
        help="with --inflate-frames: give a patch's weights to its middle frame, or share them out (default: center)",
    )
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
