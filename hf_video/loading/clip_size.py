"""The size of a model's clips: where a configuration keeps it, how it is changed, and whether a processor fits it."""

from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedConfig, PreTrainedModel

from hf_video.processing import VideoClipProcessor

# V-JEPA 2 has its own names for the size of a clip.
_OTHER_NAMES = {"num_frames": "frames_per_clip", "image_size": "crop_size"}
# It computes the positions of frames from the clip, so its weights fit any number of frames.
_ANY_NUM_FRAMES = ("vjepa2",)


class ClipSize(NamedTuple):
    """The frames of a model's clip, and their height and width in pixels, one number or two. None for what its
    configuration does not say."""

    num_frames: int | None
    image_size: int | Sequence[int] | None


def clip_size(config: PreTrainedConfig) -> ClipSize:
    """The input size that the configuration of any video classifier says."""
    return ClipSize(*(getattr(config, _field(config, name), None) for name in ClipSize._fields))


def set_input_size(model: PreTrainedModel, image_size: int | None = None, num_frames: int | None = None) -> None:
    """Changes the input size of a model for good. None keeps what the model has. It is a `ValueError` if the model
    cannot take the size."""
    kept = clip_size(model.config)._asdict()
    wanted = {"image_size": image_size, "num_frames": num_frames}
    changes = {name: value for name, value in wanted.items() if value not in (None, kept[name])}
    if not changes:
        return
    if hasattr(model.base_model, "set_input_size"):
        model.base_model.set_input_size(**changes)
        return
    encoder = getattr(model.config, "encoder_config", model.config)
    if encoder.model_type not in _ANY_NUM_FRAMES or "image_size" in changes:
        made_for = ", ".join(f"{name}={kept[name]}" for name in changes)
        raise ValueError(
            f"{type(model).__name__} only takes the input size it was made for: {made_for}, not {changes}."
        )
    _check_tubelets(model, changes["num_frames"])
    setattr(encoder, _field(encoder, "num_frames"), changes["num_frames"])


def input_size(image_size: int | Sequence[int]) -> dict[str, bool | dict[str, int]]:
    """The options of a processor that resizes the shorter edge and then crops `image_size` pixels: one number for a
    square, or (height, width)."""
    height, width = _height_and_width(image_size)
    return {
        "size": {"shortest_edge": max(height, width)},
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
    }


def check_clips(model: PreTrainedModel, processor: VideoClipProcessor) -> None:
    """Refuses (`ValueError`) a processor whose clips a model cannot take: with another number or size of frames than
    the model was made for, or with several views. The models of this package check the size themselves."""
    check_views(model, processor.num_clips, processor.num_crops)
    if hasattr(model.base_model, "set_input_size"):
        return
    num_frames, image_size = clip_size(model.config)
    if model.config.model_type in _ANY_NUM_FRAMES:
        _check_tubelets(model, processor.num_frames)
    elif num_frames not in (None, processor.num_frames):
        raise ValueError(
            f"{type(model).__name__} takes clips of {num_frames} frames, and its processor gives "
            f"{processor.num_frames}: set num_frames to {num_frames} in the processor file."
        )
    given = processor.crop_size if processor.do_center_crop else processor.size
    if image_size is not None and (given.height, given.width) != _height_and_width(image_size):
        height, width = _height_and_width(image_size)
        size = f"of {given.height} x {given.width}" if given.height else "of no fixed size"
        raise ValueError(
            f"{type(model).__name__} takes frames of {height} x {width} pixels, and its processor gives frames "
            f"{size}: set do_center_crop to true and crop_size to {height} x {width} in the processor file."
        )


def check_views(model: PreTrainedModel, num_clips: int, num_crops: int) -> None:
    """Refuses (`ValueError`) several views of a video if the model does not average them, as those of other
    packages."""
    if num_clips * num_crops > 1 and not getattr(model, "_supports_views", False):
        raise ValueError(
            f"{type(model).__name__} takes one view of a video, not num_clips={num_clips} x num_crops={num_crops}. "
            "Set both to 1, or make it a model of this package: `hf-video convert hf_videomae` reads VideoMAE."
        )


def _field(config: PreTrainedConfig, name: str) -> str:
    """The field of a configuration that holds the `num_frames` or the `image_size` of its model."""
    return name if hasattr(config, name) else _OTHER_NAMES[name]


def _height_and_width(image_size: int | Sequence[int]) -> tuple[int, int]:
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return height, width


def _check_tubelets(model: PreTrainedModel, num_frames: int) -> None:
    if num_frames % model.config.tubelet_size:
        raise ValueError(
            f"{type(model).__name__} takes frames in groups of {model.config.tubelet_size}; num_frames={num_frames} "
            "is not a multiple of that."
        )
