"""The `VideoClipProcessor` of any video classifier, whose own processor file is read as its options."""

import logging
import os
from typing import Any

import transformers
from transformers import (
    MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING,
    BaseImageProcessor,
    BaseVideoProcessor,
    PreTrainedConfig,
)
from transformers.utils import IMAGE_PROCESSOR_NAME, PROCESSOR_NAME, VIDEO_PROCESSOR_NAME, cached_file

from hf_video.io import read_object
from hf_video.processing import VideoClipProcessor

from .clip_size import clip_size, input_size

logger = logging.getLogger(__name__)

_TYPES = ("video_processor_type", "image_processor_type", "feature_extractor_type")
# What a frame goes through. Flags that are None are off.
_FLAGS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
_VALUES = ("size", "crop_size", "resample", "rescale_factor", "image_mean", "image_std", "num_frames", "fps")
# It subtracts one after rescaling, which its file does not say. That of an image processor says `offset`.
_OFFSET_CLASS = "VivitVideoProcessor"


def load_processor(model: str | os.PathLike, config: PreTrainedConfig, **options: Any) -> VideoClipProcessor:
    """The `VideoClipProcessor` of a model, a folder or Hub repository, also one of Transformers. Options that the
    saved file does not have follow the model's configuration, and `options` that are not None take the place of both.

    Raises: OSError: there is no such folder or repository. ValueError: an option is wrong."""
    num_frames, image_size = clip_size(config)
    settings: dict[str, Any] = {} if num_frames is None else {"num_frames": num_frames}
    if image_size is not None:
        settings |= input_size(image_size)
    settings |= read_options(model)
    network = MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING.get(type(config), None)
    if network is not None and network.main_input_name not in VideoClipProcessor.model_input_names:
        settings["model_input_names"] = [network.main_input_name]
    given = {name: value for name, value in options.items() if value is not None}
    return VideoClipProcessor.from_dict(settings, **given)


def read_options(model: str | os.PathLike) -> dict[str, Any]:
    """The options of `VideoClipProcessor` that give the frames the values which the saved processor gives them; none,
    with a line in the log, if there is no processor file. A wrong file or value is a `ValueError`."""
    # Two roundings differ: a centre crop may begin one pixel further, since half a pixel is rounded to the even one
    # here and down there; and ViViT's image processor shrinks with Pillow, whose values may be a level of 255 off.
    file = _processor_file(model)
    if file is None:
        logger.warning(f"{model} has no processor file: frames are normalised by the statistics of ImageNet.")
        return {}
    try:
        saved = VideoClipProcessor.get_video_processor_dict(model)[0]
        own = _class_named(saved)
        options = saved if own is None else _translate(own.from_dict(saved).to_dict(), file)
        VideoClipProcessor.from_dict(options)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} has a wrong value: {error}") from error
    return options


def _class_named(saved: dict[str, Any]) -> Any:
    """The class of Transformers that a processor file names, if there is one."""
    name = next((saved[key] for key in _TYPES if isinstance(saved.get(key), str)), "")
    # Files of 2022 have the older names.
    named = getattr(transformers, name.replace("FeatureExtractor", "ImageProcessor"), None)
    return named if isinstance(named, type) and issubclass(named, (BaseImageProcessor, BaseVideoProcessor)) else None


def _translate(own: dict[str, Any], file: str) -> dict[str, Any]:
    options: dict[str, Any] = {name: bool(own.get(name)) for name in _FLAGS}
    options |= {name: own[name] for name in _VALUES if own.get(name) is not None}
    if own.get("offset", own.get("video_processor_type") == _OFFSET_CLASS) and options["do_rescale"]:
        options |= _without_offset(options)
    unknown = [name for name, value in own.items() if name.startswith("do_") and value and name not in options]
    if lost := sorted(set(unknown) - {"do_sample_frames", "do_convert_rgb"}):
        logger.warning(f"{file}: {', '.join(lost)} is left out, because VideoClipProcessor has no such option.")
    return options | {"antialias": True}


def _without_offset(options: dict[str, Any]) -> dict[str, Any]:
    """Rescaling by 1/255 and statistics with the values of (pixel * rescale_factor - 1 - mean) / std."""
    is_normalized = options["do_normalize"]
    mean, std = (options["image_mean"], options["image_std"]) if is_normalized else ([0.0] * 3, [1.0] * 3)
    scale = 255 * options["rescale_factor"]
    return {
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [(value + 1) / scale for value in mean],
        "image_std": [value / scale for value in std],
    }


def _processor_file(model: str | os.PathLike) -> str | None:
    """The JSON file of a model that describes its video processor, if there is one."""
    for name in (PROCESSOR_NAME, VIDEO_PROCESSOR_NAME, IMAGE_PROCESSOR_NAME):
        file = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
        # The file of a processor may describe a tokenizer alone.
        if file is not None and ("video_processor" in read_object(file) or name != PROCESSOR_NAME):
            return file
    return None
