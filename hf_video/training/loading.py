"""A video classifier for given classes, and the processor that belongs to it."""

import logging
import os
from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import AutoConfig, AutoModelForVideoClassification, PreTrainedConfig, PreTrainedModel

from hf_video.processing import VideoClipProcessor

logger = logging.getLogger(__name__)


def load_classifier(
    model: str | os.PathLike,
    class_names: Sequence[str],
    problem_type: str = "single_label_classification",
    **kwargs: Any,
) -> PreTrainedModel:
    """A video classifier with the classes `class_names`, in this order, fine-tunable from any checkpoint.

    A checkpoint that knows exactly these classes in this order keeps its head. With other classes the head starts
    afresh, whatever their number; one line of the log says so.

    Args:
        model: a folder written by `save_pretrained`, or a Hub repository.
        class_names: names by class id.
        problem_type: "multi_label_classification" where a video may have several of the classes.
        kwargs: passed to `AutoModelForVideoClassification.from_pretrained`.

    Raises:
        OSError: there is no such model.
        ValueError: the checkpoint is of no video classifier.
    """
    known = class_names_of(AutoConfig.from_pretrained(model))
    names = list(class_names)
    network = AutoModelForVideoClassification.from_pretrained(
        model,
        id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)},
        problem_type=problem_type,
        ignore_mismatched_sizes=True,
        **kwargs,
    )
    if known != names:
        logger.warning(
            f"{model} knows {len(known)} other classes ({_few(known)}), the data have {len(names)} ({_few(names)}): "
            "the classification head starts afresh."
        )
        if len(known) == len(names):
            # A head of the same size was loaded, with weights that stand for other classes.
            _initialize(network, network.classifier)
    return network


def load_processor(model: str | os.PathLike, config: PreTrainedConfig, **options: Any) -> VideoClipProcessor:
    """The `VideoClipProcessor` of a model.

    What the saved file does not state follows the model's configuration, and the file of another processor is read for
    what both have in common (size, mean, standard deviation), so that models of Transformers work as well.

    Args:
        model: a folder or a Hub repository.
        config: the model's configuration, read for `num_frames` and `image_size`.
        options: override what is saved, except where None.

    Raises:
        OSError: there is no such folder or repository.
        ValueError: an option is wrong.
    """
    saved: dict[str, Any] = {}
    if hasattr(config, "num_frames"):
        saved["num_frames"] = config.num_frames
    if hasattr(config, "image_size"):
        saved |= input_size(config.image_size)
    try:
        saved |= VideoClipProcessor.get_video_processor_dict(model)[0]
    except OSError:
        logger.warning(f"{model} has no processor file: frames are normalised by the statistics of ImageNet.")
    given = {name: value for name, value in options.items() if value is not None}
    return VideoClipProcessor.from_dict(saved, **given)


def check_views(model: PreTrainedModel, num_clips: int, num_crops: int) -> None:
    """Refuses several views of a video for a model that does not average them.

    Raises:
        ValueError: there are several, and the model is none of this package.
    """
    if num_clips * num_crops > 1 and not getattr(model, "_supports_views", False):
        raise ValueError(
            f"{type(model).__name__} takes one view of a video, not num_clips={num_clips} x num_crops={num_crops}. "
            "Set both to 1, or make it a model of this package: `hf-video convert hf_videomae` reads VideoMAE."
        )


def set_input_size(model: PreTrainedModel, image_size: int | None = None, num_frames: int | None = None) -> None:
    """Bakes another input size into a model; None leaves what it has.

    Raises:
        ValueError: the model cannot take the size.
    """
    wanted = {"image_size": image_size, "num_frames": num_frames}
    changes = {name: value for name, value in wanted.items() if value not in (None, getattr(model.config, name, None))}
    if not changes:
        return
    if not hasattr(model.base_model, "set_input_size"):
        kept = ", ".join(f"{name}={getattr(model.config, name, None)}" for name in changes)
        raise ValueError(f"{type(model).__name__} only takes the input size it was made for: {kept}, not {changes}.")
    model.base_model.set_input_size(**changes)


def input_size(image_size: int | Sequence[int]) -> dict[str, dict[str, int]]:
    """The processor options that crop `image_size` pixels, one number or (height, width), after resizing to fit."""
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return {"size": {"shortest_edge": max(height, width)}, "crop_size": {"height": height, "width": width}}


def class_names_of(config: PreTrainedConfig) -> list[str]:
    """The class names of a model by class id."""
    return [config.id2label[index] for index in range(config.num_labels)]


def _initialize(model: PreTrainedModel, part: nn.Module) -> None:
    """Draws the weights of a part of a model anew, as the model draws those that a checkpoint lacks."""
    for tensor in part.parameters():
        # The mark of a loaded tensor, which Transformers' initialisers leave alone.
        vars(tensor).pop("_is_hf_initialized", None)
    part.apply(model._init_weights)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
