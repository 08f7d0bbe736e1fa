"""Loads video classifiers and their processors, for training and for use."""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import (
    MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING,
    AutoModelForPreTraining,
    AutoModelForTokenClassification,
    AutoModelForVideoClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import CONFIG_NAME
from transformers.utils import logging as transformers_logging

from hf_video.settings import few

from .class_names import class_names_of
from .configurations import check_quantization, check_trainable, load_config, loading
from .start import SHIPPED, model_path

logger = logging.getLogger(__name__)

TrainedPart = Literal["classifier", "any classifier", "features", "base"]

# The types of models that have a class for masked pre-training.
MASKED_FAMILIES = ("videovit", "videomamba")
_HEAD = r"classifier\."


def load_classifier(
    model: str | os.PathLike,
    class_names: Sequence[str],
    problem_type: str = "single_label_classification",
    *,
    is_frozen: bool = False,
    **kwargs: Any,
) -> PreTrainedModel:
    """A video classifier for the classes `class_names`, in this order, to be fine-tuned from any checkpoint.

    If the checkpoint has exactly these classes in this order, it keeps its head. Otherwise the head is initialised
    anew, even if the number of classes is the same; one line of the log says so.

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
    _check_kind(model, config)
    check_trainable(model, config)
    known = class_names_of(config)
    names = list(class_names)
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    # What the start that ships knows is nothing that a user chose.
    is_start = str(model) == model_path(SHIPPED)
    with _without_load_report() if is_start else nullcontext():
        network, missing = load_weights(
            AutoModelForVideoClassification, model, _HEAD, problem_type=problem_type, **labels, **kwargs
        )
    if is_frozen:
        _check_random(model, network, missing)
    if known != names:
        if not is_start:
            logger.warning(
                f"{model} knows {len(known)} other classes ({few(known)}), the data have {len(names)} ({few(names)}): "
                "the classification head starts afresh."
            )
        if len(known) == len(names):
            # A head of the same size was loaded; its weights belong to other classes.
            initialize(network, network.classifier)
    return drop_query_axis(network)


def load_trained_classifier(
    model: str | os.PathLike, *, part: TrainedPart = "classifier", **kwargs: Any
) -> PreTrainedModel:
    """A video classifier as it was trained, with all of its weights.

    Args:
        model, kwargs: see [`load_classifier`].
        part: what must have been trained: all of the "classifier"; what gives the "features" that its head sees; or
            its "base" model, which is then returned in place of the classifier. Without a trained head, a layer norm
            before the head may be missing as well, and begins as if it were not there. "any classifier" may also be
            one of frames, such as [`VideoMambaForFrameClassification`]; its head sees no clip, so its "features" are
            those of the base.

    Raises:
        OSError, ImportError, ValueError: see [`load_classifier`] and [`check_quantization`]; or weights are missing,
        or
            a class has no name.
    """
    config = load_config(model)
    _check_kind(model, config)
    is_classifier, of_frames = part.endswith("classifier"), classifies_frames(config)
    if of_frames and part == "features":
        part = "base"
    if of_frames and part == "classifier":
        raise ValueError(
            f"{model} is a classifier of frames, which gives no class of a clip: `hf-video timeline` finds when a "
            "video shows which class, and `hf-video evaluate --task frame-classification` measures that."
        )
    if not class_names_of(config) and is_classifier:
        raise ValueError(
            f"{Path(model, CONFIG_NAME)}: `id2label` names no class, so the model classifies nothing: name its "
            "classes, or take the features of its tokens, with `hf-video extract --pooling mean`."
        )
    check_quantization(model, config, kwargs.get("dtype"))
    auto_class = AutoModelForTokenClassification if of_frames else AutoModelForVideoClassification
    network, missing = load_weights(auto_class, model, **kwargs)
    if not is_classifier:
        norms = {name for name, module in network.named_modules() if isinstance(module, nn.LayerNorm)}
        begun = [name for name in missing if re.match(_HEAD, name) or name.rpartition(".")[0] in norms]
        missing = [name for name in missing if name not in begun]
    if part == "base":
        missing = [name for name in missing if name.startswith(f"{network.base_model_prefix}.")]
    if missing:
        no_head = ", or take the features of its tokens, with `hf-video extract --pooling mean`"
        raise ValueError(
            f"{model} lacks weights of {type(network).__name__} ({few(missing)}), which would be random numbers: "
            f"train a classifier from it first, with `hf-video train --model`{no_head if part == 'features' else ''}."
        )
    return network.base_model if part == "base" else drop_query_axis(network)


def classifies_frames(config: PreTrainedConfig) -> bool:
    """Whether a saved configuration is that of a classifier of frames."""
    return any(name.endswith("ForFrameClassification") for name in config.architectures or ())


def load_pretraining_model(model: str | os.PathLike, **kwargs: Any) -> PreTrainedModel:
    """A VideoViT or VideoMamba for masked pre-training, from any checkpoint of its encoder. What the checkpoint lacks,
    such as the decoder, starts afresh. Arguments and errors are those of [`load_classifier`]."""
    config = load_config(model)
    _check_maskable(model, config)
    check_trainable(model, config)
    return load_weights(AutoModelForPreTraining, model, **kwargs)[0]


def drop_query_axis(model: Any) -> Any:
    """The same model. A VideoPrism classifier gets features (batch_size, hidden_size) and logits (batch_size,
    num_classes), like all others: Transformers leaves the axis of its single pooling query in between."""
    if model.config.model_type == "videoprism_vision_model" and not model.head_layernorm._forward_hooks:
        model.head_layernorm.register_forward_hook(_without_query_axis)
    return model


def _without_query_axis(module: nn.Module, inputs: Any, pooled: torch.Tensor) -> torch.Tensor:
    return pooled.flatten(1)


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Keeps Transformers from listing the weights that a model begins anew."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


def _check_kind(model: str | os.PathLike, config: PreTrainedConfig) -> None:
    """Refuses models of other kinds, which Transformers would list as classes of Python."""
    if type(config) in MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING:
        return
    known = sorted({kind.model_type for kind in MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING})
    raise ValueError(
        f"{model} holds a model of the type {config.model_type!r}, which classifies no videos: a video classifier, or "
        f"its pre-trained encoder, is of the type {', '.join(known[:-1])} or {known[-1]}."
    )


def _check_maskable(model: str | os.PathLike, config: PreTrainedConfig) -> None:
    """Refuses models that masked pre-training does not know."""
    if config.model_type not in MASKED_FAMILIES:
        convert = " `hf-video convert hf_videomae` makes a VideoViT of it." if config.model_type == "videomae" else ""
        raise ValueError(
            f"{model} holds a model of the type {config.model_type!r}, which is not pre-trained by masks here: a "
            f"model of the type {' or '.join(MASKED_FAMILIES)} is expected.{convert}"
        )


def _check_random(model: str | os.PathLike, network: PreTrainedModel, missing: Iterable[str]) -> None:
    """Refuses matrices outside the head that the checkpoint lacks. Norms and biases begin as constants."""
    parameters = dict(network.named_parameters())
    lacks = [name for name in missing if not re.match(_HEAD, name) and parameters[name].ndim > 1]
    if lacks:
        raise ValueError(
            f"{model} lacks weights before the head of {type(network).__name__} ({few(sorted(lacks))}), which would "
            "stay random numbers: train the whole model."
        )


def load_weights(
    auto_class: Any, model: str | os.PathLike, head: str | None = None, **kwargs: Any
) -> tuple[Any, list[str]]:
    """A model, and the sorted names of the weights that its checkpoint lacks. Weights of another shape than the
    configuration says are a `ValueError`, except for those whose names begin with the pattern `head`."""
    with loading(model):
        network, report = auto_class.from_pretrained(
            model, ignore_mismatched_sizes=True, output_loading_info=True, **kwargs
        )
    wrong = [row for row in report["mismatched_keys"] if head is None or not re.match(head, row[0])]
    if wrong:
        shapes = [f"{name} {tuple(saved)} instead of {tuple(expected)}" for name, saved, expected in sorted(wrong)]
        raise ValueError(f"Weights of {model} have other shapes than its config.json says: {few(shapes)}.")
    return network, sorted(report["missing_keys"])


def initialize(model: PreTrainedModel, part: nn.Module) -> None:
    """Initialises a part of a model anew, as the model does with weights that a checkpoint lacks."""
    parameters: list[Any] = list(part.parameters())
    for tensor in parameters:
        # Transformers marks loaded tensors, and does not initialise them.
        tensor._is_hf_initialized = False
    whole: AbstractContextManager = nullcontext()
    if is_deepspeed_zero3_enabled():
        import deepspeed

        whole = deepspeed.zero.GatheredParameters(parameters, modifier_rank=0)
    with whole:
        part.apply(model._init_weights)
