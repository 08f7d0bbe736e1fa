"""Gets the model to train: from a checkpoint, from a folder or the Hub, or from scratch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from hf_video.processing import VideoClipProcessor


class TrainedKind(NamedTuple):
    """A kind of model that a command trains, and its ways to get one.

    Attributes:
        load: from a folder or a Hub name, with fields that change its configuration.
        begin: Auto class and configuration of a model from scratch, with fields that change the configuration.
        changes: dataclasses of the settings that change the configuration if they are given.
    """

    load: Callable[..., PreTrainedModel]
    begin: Callable[[dict[str, Any]], tuple[Any, PreTrainedConfig]]
    changes: tuple[type, ...]


def classifier_kind(chosen: Any, class_names: list[str], problem_type: str) -> TrainedKind:
    """A video classifier for these classes; from scratch it is a VideoViT."""
    from transformers import AutoConfig, AutoModelForVideoClassification

    from hf_video.loading.classifiers import load_classifier
    from hf_video.loading.start import model_path

    from .settings import HeadSettings, RegularizationSettings, ScratchSettings

    def load(model: str | Path, **changes: Any) -> PreTrainedModel:
        # A checkpoint has all weights, and is frozen by the caller.
        is_frozen = chosen.linear_probe and model == model_path(chosen.model)
        return load_classifier(model, class_names, problem_type, is_frozen=is_frozen, dtype="float32", **changes)

    def begin(changes: dict[str, Any]) -> tuple[Any, PreTrainedConfig]:
        config = AutoConfig.for_model(
            "videovit",
            **_sizes(chosen, ScratchSettings),
            **changes,
            intermediate_size=4 * chosen.hidden_size,
            problem_type=problem_type,
            id2label=dict(enumerate(class_names)),
            label2id={name: index for index, name in enumerate(class_names)},
        )
        return AutoModelForVideoClassification, config

    return TrainedKind(load, begin, (RegularizationSettings, HeadSettings))


def masked_kind(chosen: Any, projection_dim: int | None) -> TrainedKind:
    """A model of masked pre-training; from scratch it is of the family that the values name.

    Args:
        chosen: a value for each setting.
        projection_dim: channels of the teacher's features; None without a teacher.
    """
    from transformers import AutoConfig, AutoModelForPreTraining

    from hf_video.loading.classifiers import load_pretraining_model

    from .settings import MaskedModelSettings, ScratchSettings

    def begin(changes: dict[str, Any]) -> tuple[Any, PreTrainedConfig]:
        sizes = _sizes(chosen, ScratchSettings)
        width, heads = sizes["hidden_size"], sizes.pop("num_attention_heads")
        default = AutoConfig.for_model(chosen.family)
        if unknown := [name for name in changes if not hasattr(default, name)]:
            raise ValueError(f"A {chosen.family} has no {unknown[0]}: leave it out.")
        if chosen.family == "videomamba":
            sizes["projection_dim"] = projection_dim or 512
            return AutoModelForPreTraining, AutoConfig.for_model("videomamba", **sizes, **changes)
        decoder_width = chosen.decoder_hidden_size or max(width // 2, 1)
        config = AutoConfig.for_model(
            "videovit",
            **sizes,
            **changes,
            num_attention_heads=heads,
            intermediate_size=chosen.intermediate_size or 4 * width,
            decoder_hidden_size=decoder_width,
            decoder_num_hidden_layers=chosen.decoder_num_hidden_layers,
            decoder_num_attention_heads=chosen.decoder_num_attention_heads or max(heads // 2, 1),
            decoder_intermediate_size=4 * decoder_width,
            weight_init="xavier_uniform",
        )
        return AutoModelForPreTraining, config

    def load(model: str | Path, **changes: Any) -> PreTrainedModel:
        return load_pretraining_model(model, dtype="float32", **changes)

    return TrainedKind(load, begin, (MaskedModelSettings,))


def _sizes(chosen: Any, kind: type) -> dict[str, Any]:
    """The sizes of a model from scratch."""
    return {
        name: getattr(chosen, name) for name in ("num_frames", "image_size", *(each.name for each in fields(kind)))
    }


def load_model(chosen: Any, kind: TrainedKind, checkpoint: Path | None) -> tuple[PreTrainedModel, VideoClipProcessor]:
    """The model to train and its processor: from a checkpoint, from `chosen.model`, or from scratch.

    Raises:
        ValueError, OSError: there is no such model, or it does not take an option.
    """
    from huggingface_hub.errors import StrictDataclassError

    from hf_video.loading.clip_size import check_clips, check_views, input_size, set_input_size
    from hf_video.loading.configurations import bounded_models, load_config
    from hf_video.loading.processors import load_processor
    from hf_video.loading.start import model_path
    from hf_video.processing import VideoClipProcessor

    if checkpoint is not None:
        return kind.load(checkpoint), load_processor(checkpoint, load_config(checkpoint))

    sampling = {name: getattr(chosen, name) for name in ("num_frames", "frame_sampling_rate", "sampling_strategy")}
    # The final evaluation takes these views; during training one view is enough.
    sampling |= {name: 1 for name in ("num_clips", "num_crops") if getattr(chosen, name) is not None}
    names = [each.name for settings in kind.changes for each in fields(settings)]
    changes = {name: getattr(chosen, name) for name in names if getattr(chosen, name) is not None}
    if chosen.model is not None:
        source = str(model_path(chosen.model))
        if unknown := [name for name in changes if not hasattr(load_config(source), name)]:
            raise ValueError(f"{chosen.model} has no {unknown[0]}: leave out {unknown[0]}={changes[unknown[0]]}.")
        size = {} if chosen.image_size is None else input_size(chosen.image_size)
        processor = load_processor(source, load_config(source), **sampling, **size)
        try:
            model = kind.load(source, **changes)
        except StrictDataclassError as error:
            if not changes:
                raise
            listed = ", ".join(f"{name}={value}" for name, value in changes.items())
            raise ValueError(f"{chosen.model} does not take {listed}: {error.__cause__ or error}") from error
        set_input_size(model, image_size=chosen.image_size, num_frames=chosen.num_frames)
        check_clips(model, processor)
        check_views(model, *(getattr(chosen, name) or getattr(processor, name) for name in ("num_clips", "num_crops")))
        return model, processor
    try:
        auto_class, config = kind.begin(changes)
    except StrictDataclassError as error:
        raise ValueError(f"These sizes make no model: {error.__cause__ or error}") from error
    with bounded_models():
        model = auto_class.from_config(config)
    return model, VideoClipProcessor(**sampling, **input_size(chosen.image_size))
