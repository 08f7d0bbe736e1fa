"""Loads action detectors and their processors for training."""

import json
import logging
import os
from collections.abc import Sequence
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    MODEL_FOR_BACKBONE_MAPPING,
    AutoConfig,
    AutoModelForObjectDetection,
    AutoVideoProcessor,
    PreTrainedConfig,
)

from hf_video.processes import is_first_process
from hf_video.processing import VideoDetectionProcessor
from hf_video.settings import few

from .class_names import class_names_of
from .classifiers import initialize, load_weights
from .configurations import bounded_models, check_trainable, load_config, loading

logger = logging.getLogger(__name__)

# The type of the models that detect actions.
DETECTOR = "stmixer"
_HEAD = r"layers\.\d+\.action_head\.output\."


def load_detector(
    model: str | os.PathLike,
    class_names: Sequence[str],
    *,
    num_frames: int | None = None,
    frame_sampling_rate: int | None = None,
    image_size: int | None = None,
    num_queries: int | None = None,
    drop_path_rate: float | None = None,
    action_weight: float | None = None,
    original_loss_means: bool = False,
    detector_config: dict[str, Any] | str | None = None,
) -> tuple[Any, Any]:
    """An action detector for the actions `class_names`, in this order, to be trained, and its processor.

    An STMixer keeps all of its weights, apart from its heads of actions if it knows other ones. Around the backbone of
    any other video model, such as a VideoViT that was pre-trained or that classifies, a detector is made anew. One
    line of the log says what begins afresh.

    Args:
        model: a folder written by `save_pretrained`, or a Hub repository.
        class_names: names by class id.
        num_frames: frames of a clip; by default the model's.
        frame_sampling_rate: distance between two frames of a clip, as [`VideoDetectionProcessor`] counts it; by
            default the model's, or 4.
        image_size: shorter side of a clip in pixels; by default the model's.
        num_queries: most persons of a clip that are found; by default the model's, or 100.
        drop_path_rate: largest rate of stochastic depth in the backbone; by default the model's.
        action_weight: weight of the actions in the loss; by default the model's, or 24.
        original_loss_means: see [`STMixerConfig`].
        detector_config: other fields of [`STMixerConfig`] for a detector that is made anew, or JSON of them.

    Raises:
        OSError: there is no such model.
        ValueError: the model is no detector and has no backbone with feature maps over time, is quantised, has not
            the sizes that are given, or lacks weights; or `detector_config` is wrong.
    """
    config = load_config(model)
    check_trainable(model, config)
    is_detector = config.model_type == DETECTOR
    backbone_config = config.backbone_config if is_detector else config
    if not is_detector and (type(config) not in MODEL_FOR_BACKBONE_MAPPING or not hasattr(config, "tubelet_size")):
        convert = " `hf-video convert hf_videomae` makes a VideoViT of it." if config.model_type == "videomae" else ""
        raise ValueError(
            f"{model} holds a model of the type {config.model_type!r}: --task action-detection trains an STMixer, or "
            f"makes one around a VideoViT or VideoMamba.{convert}"
        )
    if drop_path_rate is not None:
        backbone_config.drop_path_rate = drop_path_rate
    changes = {
        "id2label": dict(enumerate(class_names)),
        "label2id": {name: index for index, name in enumerate(class_names)},
        "original_loss_means": original_loss_means,
    }
    fields = _read_fields(detector_config)
    if is_detector:
        if fields:
            raise ValueError(f"{model} is a detector with a configuration of its own: leave out detector_config.")
        network = _with_actions(model, config, changes, num_queries)
        with loading(model):
            processor = AutoVideoProcessor.from_pretrained(model)
    else:
        num_frames = num_frames or config.num_frames
        changes |= fields | ({} if num_queries is None else {"num_queries": num_queries})
        network = _around_backbone(model, config, num_frames, changes)
        side = config.image_size if isinstance(config.image_size, int) else min(config.image_size)
        processor = VideoDetectionProcessor(num_frames=num_frames, size={"shortest_edge": side})
    if action_weight is not None:
        network.config.loss_weights["bce"] = action_weight
    given = {
        "num_frames": num_frames,
        "frame_sampling_rate": frame_sampling_rate,
        "size": image_size and {"shortest_edge": image_size},
    }
    for name, value in given.items():
        if value is not None:
            setattr(processor, name, value)
    expected = network.config.num_temporal_points * backbone_config.tubelet_size
    if processor.num_frames != expected:
        raise ValueError(f"{model} takes clips of {expected} frames, and num_frames is {processor.num_frames}.")
    return network, processor


def _read_fields(detector_config: dict[str, Any] | str | None) -> dict[str, Any]:
    try:
        fields = json.loads(detector_config) if isinstance(detector_config, str) else detector_config or {}
    except json.JSONDecodeError as error:
        raise ValueError(f"detector_config is {detector_config!r}, which is no JSON object: {error}.") from error
    known = AutoConfig.for_model(DETECTOR)
    if unknown := [name for name in fields if not hasattr(known, name) or name == "backbone_config"]:
        raise ValueError(f"detector_config has {unknown[0]!r}, which is no field of an STMixer that it may set.")
    return fields


def _with_actions(
    model: str | os.PathLike, config: PreTrainedConfig, changes: dict[str, Any], num_queries: int | None
) -> Any:
    """A trained detector whose heads are for the actions that `changes` name."""
    if num_queries not in (None, config.num_queries):
        raise ValueError(f"{model} has learned {config.num_queries} queries: leave out num_queries={num_queries}.")
    known, names = class_names_of(config), list(changes["label2id"])
    for name, value in changes.items():
        setattr(config, name, value)
    network, missing = load_weights(AutoModelForObjectDetection, model, _HEAD, config=config, dtype="float32")
    if missing:
        raise ValueError(f"{model} lacks weights of {type(network).__name__} ({few(missing)}).")
    if known != names:
        _warn_once(
            f"{model} knows {len(known)} other actions ({few(known)}), the data have {len(names)} ({few(names)}): the "
            "heads of actions start afresh, and all other weights are kept."
        )
        if len(known) == len(names):
            # Heads of the same size were loaded; their weights belong to other actions.
            for layer in network.layers:
                initialize(network, layer.action_head.output)
    return network


def _around_backbone(
    model: str | os.PathLike, config: PreTrainedConfig, num_frames: int, changes: dict[str, Any]
) -> Any:
    """A new detector around a trained backbone."""
    # `AutoBackbone.from_pretrained` takes no folders.
    backbone_class = MODEL_FOR_BACKBONE_MAPPING[type(config)]
    backbone, missing = load_weights(backbone_class, model, config=config, dtype="float32")
    weights = backbone.state_dict()
    # A classifier with mean pooling has no norm of tokens, which begins as in the original, with 1 and 0.
    if random := [name for name in missing if weights[name].ndim > 1]:
        raise ValueError(f"{model} lacks weights of its backbone ({few(random)}), which would be random numbers.")
    try:
        made = AutoConfig.for_model(
            DETECTOR,
            **{"num_temporal_points": num_frames // config.tubelet_size} | changes,
            backbone_config=backbone.config,
        )
    except StrictDataclassError as error:
        raise ValueError(f"These sizes make no detector: {error.__cause__ or error}") from error
    with bounded_models():
        network = AutoModelForObjectDetection.from_config(made, dtype=torch.float32)
    network.backbone.load_state_dict(weights)
    _warn_once(f"{model} is a backbone: the detector around it starts afresh.")
    return network


def _warn_once(line: str) -> None:
    """Warns in the first of several processes."""
    if is_first_process():
        logger.warning(line)
