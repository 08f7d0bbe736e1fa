"""Gets a model of clips to train: from a checkpoint, from a folder or the Hub, or from scratch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from hf_video.loading.clip_size import check_clips, check_views, input_size, set_input_size
from hf_video.loading.configurations import bounded_models, load_config
from hf_video.loading.processors import load_processor
from hf_video.loading.released import model_path
from hf_video.processing import VideoClipProcessor
from hf_video.settings import settings_of


def load_model(
    chosen: Any,
    checkpoint: Path | None,
    load: Callable[..., PreTrainedModel],
    begin: Callable[[dict[str, Any]], PreTrainedModel],
    changing: Sequence[type],
) -> tuple[PreTrainedModel, VideoClipProcessor]:
    """The model to train and its processor.

    Args:
        chosen: a value for each setting.
        checkpoint: where a run goes on.
        load: gives a model of a folder or a Hub name, with fields that change its configuration.
        begin: gives a model from scratch, with fields that change its configuration.
        changing: the dataclasses of settings that change the configuration if they are given.

    Raises:
        ValueError, OSError: there is no such model, or it does not take an option.
    """
    if checkpoint is not None:
        return load(checkpoint), load_processor(checkpoint, load_config(checkpoint))

    sampling = {name: getattr(chosen, name) for name in ("num_frames", "frame_sampling_rate", "sampling_strategy")}
    # The final evaluation takes these views; during training one view is enough.
    sampling |= {name: 1 for name in ("num_clips", "num_crops") if getattr(chosen, name) is not None}
    names = [name for group in changing for name in settings_of(group)]
    changes = {name: getattr(chosen, name) for name in names if getattr(chosen, name) is not None}
    if chosen.model is None:
        with bounded_models():
            model = begin(changes)
        return model, VideoClipProcessor(**sampling, **input_size(chosen.image_size))
    source = str(model_path(chosen.model))
    if unknown := [name for name in changes if not hasattr(load_config(source), name)]:
        raise ValueError(f"{chosen.model} has no {unknown[0]}: leave out {unknown[0]}={changes[unknown[0]]}.")
    size = {} if chosen.image_size is None else input_size(chosen.image_size)
    processor = load_processor(source, load_config(source), **sampling, **size)
    model = load(source, **changes)
    set_input_size(model, image_size=chosen.image_size, num_frames=chosen.num_frames)
    check_clips(model, processor)
    check_views(model, *(getattr(chosen, name) or getattr(processor, name) for name in ("num_clips", "num_crops")))
    return model, processor


def sizes_of(chosen: Any, sizes: type) -> dict[str, Any]:
    """The sizes of a model from scratch, which a dataclass declares, and of its clips."""
    return {name: getattr(chosen, name) for name in ("num_frames", "image_size", *settings_of(sizes))}
