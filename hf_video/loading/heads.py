"""Loads models for training, with a head for the classes of the data, and classifiers as they were trained.

A head of the checkpoint is kept if it is for these classes in this order; otherwise it begins anew.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import (
    MODEL_FOR_BACKBONE_MAPPING,
    MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForObjectDetection,
    AutoModelForPreTraining,
    AutoModelForTokenClassification,
    AutoModelForVideoClassification,
    AutoVideoProcessor,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import CONFIG_NAME

from hf_video.processes import is_first_process
from hf_video.processing import VideoClipProcessor, VideoDetectionProcessor
from hf_video.settings import few
from hf_video.texts import count

from .class_names import class_names_of, label_fields
from .clip_size import input_size, set_input_size
from .configurations import (
    bounded_models,
    check_quantization,
    check_trainable,
    load_config,
    load_weights,
    loading,
    refuse_missing,
)
from .processors import load_processor
from .released import told_name

logger = logging.getLogger(__name__)

TrainedPart = Literal["classifier", "any classifier", "features", "base"]

# The families that have a class for masked pre-training and one for the classes of frames.
FAMILIES = ("videomamba", "videovit")
DETECTOR = "stmixer"
# A classifier of frames around one of the encoders of Transformers.
VIDEO_ENCODER = "video_encoder"
ENCODERS = ("videomae", "timesformer", "vivit", "vjepa2", "videoprism_vision_model")
HEAD, ACTION_HEADS = r"classifier\.", r"layers\.\d+\.action_head\.output\."
# What a VideoMamba needs to see no later frames, and to be continued from any of them. No classifier of frames reads
# the pooled output.
CAUSAL = {
    "bidirectional": False,
    "scan_order": "spatial_first",
    "use_temporal_position_embeddings": False,
    "use_pool_norm": False,
}


def load_classifier(
    model: str | os.PathLike,
    class_names: Sequence[str],
    problem_type: str = "single_label_classification",
    *,
    is_frozen: bool = False,
    **kwargs: Any,
) -> PreTrainedModel:
    """A video classifier for the classes `class_names`, in this order, to be fine-tuned from any checkpoint.

    Args:
        model: a folder written by `save_pretrained`, or a Hub repository.
        class_names: names by class id.
        problem_type: "multi_label_classification" if a video may have several of the classes.
        is_frozen: whether only the head will be trained. Then all weights before it must be in the checkpoint.
        kwargs: passed to `AutoModelForVideoClassification.from_pretrained`.

    Raises:
        OSError: there is no such model.
        ValueError: the checkpoint does not suit a video classifier, is quantised, or a tensor outside the head does
            not fit its configuration; or weights that will be frozen are missing.
    """
    config = load_config(model)
    _check_classifies(model, config)
    network, missing = _load_for(
        AutoModelForVideoClassification, model, config, class_names, problem_type=problem_type, **kwargs
    )
    if is_frozen:
        if kwargs.get("pooler_type") is not None:  # a pooler that is asked for is trained with the head
            missing = [name for name in missing if not name.startswith("pooler.")]
        refuse_missing(model, network, missing, ": train the whole model")
    elif missing:
        _warn(f"{model} lacks weights before the head ({few(missing)}), which start afresh.")
    return drop_query_axis(network)


def load_trained_classifier(
    model: str | os.PathLike, *, part: TrainedPart = "classifier", **kwargs: Any
) -> PreTrainedModel:
    """A video classifier as it was trained; arguments and errors are those of [`load_classifier`]. `part` is what must
    have been trained: all of the "classifier"; what gives the "features" that its head sees, where a layer norm may be
    missing, too; or its "base" model, which is then returned. "any classifier" may also be one of frames, such as
    [`VideoMambaForFrameClassification`]; its head sees no clip, so its "features" are those of the base."""
    config = load_config(model)
    _check_classifies(model, config, is_trained=True)
    is_classifier, of_frames = part.endswith("classifier"), classifies_frames(config)
    part = "base" if of_frames and part == "features" else part
    if of_frames and part == "classifier":
        raise ValueError(
            f"{model} is a classifier of frames, which gives no class of a clip: `hf-video timeline` finds when a "
            "video shows which class, and `hf-video evaluate --task frame-classification` measures that."
        )
    way_out = "take the features of its tokens, with `hf-video extract --pooling mean`"
    if not class_names_of(config) and is_classifier:
        raise ValueError(
            f"{Path(model, CONFIG_NAME)}: `id2label` names no class, so the model classifies nothing: name its "
            f"classes, or {way_out}."
        )
    check_quantization(model, config, kwargs.get("dtype"))
    auto_class = AutoModelForTokenClassification if of_frames else AutoModelForVideoClassification
    network, report = load_weights(auto_class, model, **kwargs)
    missing = report["missing_keys"]
    if not is_classifier:
        norms = {name for name, module in network.named_modules() if isinstance(module, nn.LayerNorm)}
        missing = [name for name in missing if not re.match(HEAD, name) and name.rpartition(".")[0] not in norms]
    if part == "base":
        missing = [name for name in missing if name.startswith(f"{network.base_model_prefix}.")]
    way_out = f", or {way_out}" if part == "features" else ""
    train = f": train a classifier from it first, with `hf-video train --model`{way_out}"
    refuse_missing(model, network, missing, train)
    ignored, saved_as = report["unexpected_keys"], config.architectures or [type(network).__name__]
    if is_classifier and ignored and type(network).__name__ not in saved_as:
        raise ValueError(
            f"{model} was saved as {', '.join(saved_as)}; {type(network).__name__} would ignore its weights "
            f"({few(ignored)}). Load it in Python, with {saved_as[0]}.from_pretrained."
        )
    return network.base_model if part == "base" else drop_query_axis(network)


def load_pretraining_model(model: str | os.PathLike, **kwargs: Any) -> PreTrainedModel:
    """A VideoViT or VideoMamba for masked pre-training, from any checkpoint of its encoder. What the checkpoint lacks,
    such as the decoder, starts afresh. Arguments and errors are those of [`load_classifier`]."""
    config = load_config(model)
    expected = f"not pre-trained by masks here: a model of the type {' or '.join(FAMILIES)} is expected"
    _check_type(model, config, config.model_type in FAMILIES, expected)
    network, report = load_weights(AutoModelForPreTraining, model, **kwargs)
    if missing := report["missing_keys"]:
        _warn(f"{model} lacks weights of {type(network).__name__} ({few(missing)}), which start afresh.")
    return network


def load_frame_classifier(
    model: str | os.PathLike | None,
    class_names: Sequence[str],
    problem_type: str = "single_label_classification",
    *,
    num_frames: int | None = None,
    image_size: int | None = None,
    causal: bool = False,
    family: str = "videovit",
    **changes: Any,
) -> tuple[PreTrainedModel, VideoClipProcessor]:
    """A classifier of frames for these classes, to be trained, and its processor. Any VideoMamba or VideoViT gives its
    encoder, and its head if it is a classifier of frames with these classes, and so do the encoders of Transformers.
    Without `model` it is one of the `family` with random weights. `causal` takes the forward weights of a VideoMamba
    alone, so that it sees no later frames; `changes` are other fields of the configuration. Errors are those of
    [`load_classifier`]."""
    config = None if model is None else load_config(model)
    family = family if config is None else config.model_type
    if causal and family != "videomamba":
        raise ValueError(f"A {family} sees all frames of a clip: --causal is for a VideoMamba.")
    changes |= {"problem_type": problem_type} | (CAUSAL if causal else {})
    if model is None or config is None:
        changes |= label_fields(class_names) | {"num_frames": num_frames, "image_size": image_size}
        with bounded_models():
            config = AutoConfig.for_model(family, **changes)
            network = AutoModelForTokenClassification.from_config(config, dtype=torch.float32)
        return network, VideoClipProcessor(num_frames=config.num_frames, **input_size(config.image_size))
    expected = f"and --task frame-classification trains {', '.join(FAMILIES)} or an encoder ({', '.join(ENCODERS)})"
    _check_type(model, config, config.model_type in (*FAMILIES, VIDEO_ENCODER, *ENCODERS), expected)
    if config.model_type not in FAMILIES and "drop_path_rate" in changes:
        raise ValueError(f"{model} is an encoder of Transformers, whose stochastic depth stays: leave drop_path_rate.")
    if config.model_type in ENCODERS:
        changes |= label_fields(class_names) | {"encoder_config": config}
        network = _around(AutoModelForTokenClassification, AutoModel, model, VIDEO_ENCODER, **changes)
    else:
        has_head = classifies_frames(config)
        network, missing = _load_for(
            AutoModelForTokenClassification, model, config, class_names, has_head=has_head, dtype="float32", **changes
        )
        refuse_missing(model, network, missing)
    size = {} if image_size is None else input_size(image_size)
    processor = load_processor(model, network.config, num_frames=num_frames, **size)
    # That of a V-JEPA 2 may say another name.
    processor.model_input_names = [network.main_input_name]
    set_input_size(network, image_size=image_size, num_frames=processor.num_frames)
    return network, processor


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
    """An action detector for these actions, to be trained, and its processor.

    An STMixer keeps all of its weights, apart from its heads of actions if it knows other ones. Around the backbone of
    any other video model, such as a VideoViT that was pre-trained or that classifies, a detector is made anew, with
    the fields of [`STMixerConfig`] in `detector_config`, which may be JSON. `image_size` is the shorter side in
    pixels, `action_weight` that of the actions in the loss; what is None is as in the model or a new STMixer."""
    config = load_config(model)
    is_detector = config.model_type == DETECTOR
    has_maps = type(config) in MODEL_FOR_BACKBONE_MAPPING and hasattr(config, "tubelet_size")
    expected = "and --task action-detection trains an STMixer, or makes one around a VideoViT or VideoMamba"
    _check_type(model, config, is_detector or has_maps, expected)
    fields = _read_fields(detector_config) | ({} if num_queries is None else {"num_queries": num_queries})
    changes: dict[str, Any] = {} if drop_path_rate is None else {"drop_path_rate": drop_path_rate}
    size = None if image_size is None else {"shortest_edge": image_size}
    given: Any = {"num_frames": num_frames, "frame_sampling_rate": frame_sampling_rate, "size": size}
    given = {name: value for name, value in given.items() if value is not None}
    if is_detector:
        if other := [name for name, value in fields.items() if getattr(config, name) != value]:
            raise ValueError(f"{model} is a detector with a configuration of its own: leave out its {few(other)}.")
        options: dict[str, Any] = {"backbone_config": changes} if changes else {}
        network, missing = _load_for(
            AutoModelForObjectDetection, model, config, class_names, ACTION_HEADS, dtype="float32", **options
        )
        refuse_missing(model, network, missing)
        with loading(model):
            processor = AutoVideoProcessor.from_pretrained(model, **given)
    else:
        side = config.image_size if isinstance(config.image_size, int) else min(config.image_size)
        given = {"num_frames": config.num_frames, "size": {"shortest_edge": side}} | given
        processor = VideoDetectionProcessor(**given)
        config.update(changes)
        own: Any = {"num_temporal_points": processor.num_frames // config.tubelet_size, "backbone_config": config}
        own |= label_fields(class_names) | fields
        network = _around(
            AutoModelForObjectDetection, MODEL_FOR_BACKBONE_MAPPING[type(config)], model, DETECTOR, **own
        )
    network.config.original_loss_means = original_loss_means
    if action_weight is not None:
        network.config.loss_weights["bce"] = action_weight
    expected_frames = network.config.num_temporal_points * network.config.backbone_config.tubelet_size
    if processor.num_frames != expected_frames:
        raise ValueError(f"{model} takes clips of {expected_frames} frames, and num_frames is {processor.num_frames}.")
    return network, processor


def classifies_frames(config: PreTrainedConfig) -> bool:
    """Whether a saved configuration is that of a classifier of frames."""
    return any(name.endswith("ForFrameClassification") for name in config.architectures or ())


def drop_query_axis(model: Any) -> Any:
    """The same model. A VideoPrism classifier gets features (batch_size, hidden_size) and logits (batch_size,
    num_classes), like all others: Transformers leaves the axis of its single pooling query in between."""
    if model.config.model_type == "videoprism_vision_model" and not model.head_layernorm._forward_hooks:
        model.head_layernorm.register_forward_hook(lambda module, inputs, pooled: pooled.flatten(1))
    return model


def _load_for(
    auto_class: Any,
    model: str | os.PathLike,
    config: PreTrainedConfig,
    class_names: Sequence[str],
    head: str = HEAD,
    has_head: bool = True,
    **options: Any,
) -> tuple[PreTrainedModel, list[str]]:
    """A model with a head for these classes, and the matrices before the head that its checkpoint lacks. Names of
    weights in the head begin with the pattern `head`; without `has_head` those of the checkpoint are of another."""
    known, names = class_names_of(config), list(class_names)
    network, report = load_weights(auto_class, model, head, **label_fields(names), **options)
    if not has_head or known != names:
        # What the bundled model knows is nothing that a user chose.
        if told_name(str(model)) == str(model):
            knows = f"knows {len(known)} other classes ({few(known)})" if has_head else "gives its encoder"
            _warn(
                f"{model} {knows}: the head starts afresh, for {count(len(names), 'class', 'classes')} ({few(names)})."
            )
        for name, part in network.named_modules():
            # A head of the same size was loaded; its weights belong to other classes. Transformers marks what it
            # loaded, and initialises the rest.
            if len(known) == len(names) and re.fullmatch(head, f"{name}."):
                for each in (*part.modules(), *part.parameters()):
                    each._is_hf_initialized = False
        network._initialize_missing_keys(is_quantized=False)
    return network, _matrices(network, report["missing_keys"], head)


def _around(auto_class: Any, part_class: Any, model: str | os.PathLike, kind: str, **fields: Any) -> PreTrainedModel:
    """A new model of the type `kind`, with `fields`, around a trained encoder, which `part_class` loads."""
    with bounded_models():
        network = auto_class.from_config(AutoConfig.for_model(kind, **fields), dtype=torch.float32)
    place = getattr(network, "backbone", network.base_model)
    trained, report = load_weights(part_class, model, dtype="float32", config=place.config)
    used = place.state_dict()
    refuse_missing(model, trained, [name for name in _matrices(trained, report["missing_keys"]) if name in used])
    # It leaves out what only other heads use.
    place.load_state_dict(trained.state_dict(), strict=False)
    _warn(f"{told_name(str(model))} gives its encoder: the head starts afresh.")
    return network


def _read_fields(detector_config: dict[str, Any] | str | None) -> dict[str, Any]:
    try:
        fields = json.loads(detector_config) if isinstance(detector_config, str) else detector_config or {}
    except json.JSONDecodeError as error:
        raise ValueError(f"detector_config is {detector_config!r}, which is no JSON object: {error}.") from error
    known = AutoConfig.for_model(DETECTOR)
    if unknown := [name for name in fields if not hasattr(known, name) or name == "backbone_config"]:
        raise ValueError(f"detector_config has {unknown[0]!r}, which is no field of an STMixer that it may set.")
    return fields


def _matrices(network: PreTrainedModel, missing: Iterable[str], head: str = "$") -> list[str]:
    """The missing matrices outside the head, which begin as random numbers. Norms and biases begin as constants."""
    weights = network.state_dict()
    return [name for name in missing if weights[name].ndim > 1 and not re.match(head, name)]


def _check_classifies(model: str | os.PathLike, config: PreTrainedConfig, is_trained: bool = False) -> None:
    known = sorted({kind.model_type for kind in MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING})
    expected = f"which classifies no videos: the types that do are {', '.join(known)}"
    fits = type(config) in MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING or (is_trained and classifies_frames(config))
    _check_type(model, config, fits, expected, is_trained)


def _check_type(
    model: str | os.PathLike, config: PreTrainedConfig, fits: bool, expected: str, is_trained: bool = False
) -> None:
    """Refuses models of other types, which Transformers would list as classes of Python, and quantised ones unless
    they were trained."""
    if not is_trained:
        check_trainable(model, config)
    if not fits:
        convert = " `hf-video convert hf_videomae` makes a VideoViT of it." if config.model_type == "videomae" else ""
        raise ValueError(f"{model} holds a model of the type {config.model_type!r}, {expected}.{convert}")


def _warn(line: str) -> None:
    """Warns in the first of several processes."""
    if is_first_process():
        logger.warning(line)
