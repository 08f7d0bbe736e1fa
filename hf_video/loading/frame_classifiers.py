"""Loads classifiers of frames and their processors for training."""

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from hf_video.processing import VideoClipProcessor
from hf_video.settings import few

from .class_names import class_names_of
from .classifiers import classifies_frames, initialize, load_weights
from .clip_size import input_size, set_input_size
from .configurations import bounded_models, check_trainable, load_config
from .processors import load_processor

logger = logging.getLogger(__name__)
FAMILIES = ("videomamba", "videovit")
# What a VideoMamba needs to see no later frames, and to be continued from any of them. No classifier of frames reads
# the pooled output.
CAUSAL = {
    "bidirectional": False,
    "scan_order": "spatial_first",
    "use_temporal_position_embeddings": False,
    "use_pool_norm": False,
}
_HEAD = r"classifier\."


def load_frame_classifier(
    model: str | os.PathLike,
    class_names: Sequence[str],
    problem_type: str = "single_label_classification",
    *,
    num_frames: int | None = None,
    image_size: int | None = None,
    causal: bool = False,
    **changes: Any,
) -> tuple[PreTrainedModel, VideoClipProcessor]:
    """A classifier of frames for the classes `class_names`, in this order, to be trained, and its processor. Any
    VideoMamba or VideoViT gives its encoder, and its head if it is a classifier of frames with these classes.

    Args:
        model: a folder written by `save_pretrained`, or a Hub repository.
        class_names: names by class id.
        problem_type: "multi_label_classification" if a frame may have several of the classes.
        num_frames: frames of a clip; by default the model's.
        image_size: height and width of a clip in pixels; by default the model's.
        causal: take the forward weights of a VideoMamba alone, so that it sees no later frames.
        changes: other fields of the configuration.

    Raises:
        OSError: there is no such model.
        ValueError: the model is of another type, is quantised, or does not take an option.
    """
    config = load_config(model)
    _check_type(model, config)
    check_trainable(model, config)
    changes |= _causal_fields(config.model_type) if causal else {}
    known, is_trained = class_names_of(config), classifies_frames(config)
    labels = _labels(class_names)
    try:
        network, missing = load_weights(
            AutoModelForTokenClassification,
            model,
            _HEAD,
            problem_type=problem_type,
            dtype="float32",
            **labels,
            **changes,
        )
    except StrictDataclassError as error:
        raise ValueError(f"{model} does not take these settings: {error.__cause__ or error}") from error
    weights = network.state_dict()
    random = [name for name in missing if weights[name].ndim > 1 and not name.startswith("classifier.")]
    if random:
        raise ValueError(f"{model} lacks weights of its encoder ({few(random)}), which would be random numbers.")
    if not is_trained or known != list(class_names):
        logger.warning(f"{model} gives its encoder: the head for {len(class_names)} classes of frames starts afresh.")
        initialize(network, network.classifier)
    processor = load_processor(
        model, config, num_frames=num_frames, **({} if image_size is None else input_size(image_size))
    )
    set_input_size(network, image_size=image_size, num_frames=processor.num_frames)
    return network, processor


@bounded_models()
def make_frame_classifier(
    family: str,
    class_names: Sequence[str],
    problem_type: str = "single_label_classification",
    *,
    num_frames: int,
    image_size: int,
    causal: bool = False,
    **fields: Any,
) -> tuple[PreTrainedModel, VideoClipProcessor]:
    """A classifier of frames with random weights, and its processor.

    Args:
        family: "videomamba" or "videovit".
        fields: other fields of the configuration.
        class_names, problem_type, num_frames, image_size, causal: see [`load_frame_classifier`].

    Raises:
        ValueError: these sizes make no model.
    """
    fields |= _causal_fields(family) if causal else {}
    if family == "videovit":
        fields["intermediate_size"] = 4 * fields["hidden_size"]
    else:
        fields.pop("num_attention_heads", None)
    sizes = {"num_frames": num_frames, "image_size": image_size, "problem_type": problem_type}
    try:
        config = AutoConfig.for_model(family, **sizes, **_labels(class_names), **fields)
        network = AutoModelForTokenClassification.from_config(config, dtype=torch.float32)
    except StrictDataclassError as error:
        raise ValueError(f"These sizes make no model: {error.__cause__ or error}") from error
    return network, VideoClipProcessor(num_frames=num_frames, **input_size(image_size))


def _labels(class_names: Sequence[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(class_names)), "label2id": {name: id for id, name in enumerate(class_names)}}


def _check_type(model: str | os.PathLike, config: PreTrainedConfig) -> None:
    if config.model_type not in FAMILIES:
        convert = " `hf-video convert hf_videomae` makes a VideoViT of it." if config.model_type == "videomae" else ""
        raise ValueError(
            f"{model} holds a model of the type {config.model_type!r}: --task frame-classification trains a "
            f"VideoMamba or VideoViT.{convert}"
        )


def _causal_fields(family: str) -> dict[str, Any]:
    if family != "videomamba":
        raise ValueError(f"A {family} sees all frames of a clip: --causal is for a VideoMamba.")
    return CAUSAL
