"""The data and the model of a training run, checked before anything is written."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .train_options import MODEL_OPTIONS, SCRATCH_ONLY

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedModel

    from hf_video.processing import VideoClipProcessor


logger = logging.getLogger(__name__)


def load_data(data: str, model: str | Path | None, video_root: str | None = None) -> tuple[DatasetDict, list[str]]:
    """The splits and the class names by id: those of the model if it knows the same classes, else sorted.

    Raises:
        ValueError, OSError: there is no such data, or no training split in it.
    """
    from hf_video.data import label_names, load_video_dataset

    splits = load_video_dataset(data, video_root=video_root)
    if "train" not in splits:
        raise ValueError(f"{data} has no training split, only {', '.join(splits)}. Add train/ or train.csv.")
    names = label_names(splits["train"])
    if model is not None:
        from hf_video.training.loading import class_names_of, load_config

        known = class_names_of(load_config(model))
        if sorted(known) == sorted(names):
            return load_video_dataset(data, labels=known, video_root=video_root), known
    return splits, names


def training_splits(data: DatasetDict, options: dict[str, Any]) -> tuple[Dataset, Dataset]:
    """What to train on and what to validate on, held out from the former where the data have no such split.

    Warns of clips that have different labels or stand in several splits.
    """
    from hf_video.data import hold_out

    if "validation" in data:
        train, validation = data["train"], data["validation"]
    else:
        train, validation = hold_out(data["train"], options["validation_fraction"], options["seed"])
    warn_of_repetitions({**data, "train": train, "validation": validation})
    return train, validation


def warn_of_repetitions(splits: Mapping[str, Dataset]) -> None:
    """Logs how many clips have different labels or stand in several splits, on the first process of a launcher."""
    if os.environ.get("RANK", "0") != "0":
        return
    from hf_video.data.repeated_clips import find_repeated_clips, repetition_warnings

    for sentence in repetition_warnings(find_repeated_clips(splits)):
        logger.warning(sentence)


def load_model(
    options: dict[str, Any], class_names: list[str], problem_type: str, checkpoint: Path | None
) -> tuple[PreTrainedModel, VideoClipProcessor]:
    """The classifier to train and its processor: of a checkpoint, of `options["model"]`, or from scratch.

    Raises:
        ValueError, OSError: there is no such model, or an option does not go with it.
    """
    from hf_video.processing import VideoClipProcessor
    from hf_video.training.loading import (
        check_views,
        input_size,
        load_classifier,
        load_config,
        load_processor,
        set_input_size,
    )

    if checkpoint is not None:
        model = load_classifier(checkpoint, class_names, problem_type, dtype="float32")
        return model, load_processor(checkpoint, model.config)

    sampling = {name: options[name] for name in ("num_frames", "frame_sampling_rate", "sampling_strategy")}
    # Views of the final evaluation; on the way a single one has to do.
    sampling |= {name: 1 for name in ("num_clips", "num_crops") if options[name] is not None}
    rates = {name: options[name] for name in MODEL_OPTIONS if options[name] is not None}
    if options["model"] is not None:
        if unknown := [name for name in rates if not hasattr(load_config(options["model"]), name)]:
            raise ValueError(f"{options['model']} has no {unknown[0]}: leave out {unknown[0]}={rates[unknown[0]]}.")
        model = load_classifier(options["model"], class_names, problem_type, dtype="float32", **rates)
        set_input_size(model, image_size=options["image_size"], num_frames=options["num_frames"])
        size = {} if options["image_size"] is None else input_size(options["image_size"])
        processor = load_processor(options["model"], model.config, **sampling, **size)
        check_views(model, *(options[name] or getattr(processor, name) for name in ("num_clips", "num_crops")))
        return model, processor

    from huggingface_hub.errors import StrictDataclassError

    from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification

    try:
        config = VideoViTConfig(
            **{name: options[name] for name in ("num_frames", "image_size", *SCRATCH_ONLY)},
            **rates,
            intermediate_size=4 * options["hidden_size"],
            problem_type=problem_type,
            id2label=dict(enumerate(class_names)),
            label2id={name: index for index, name in enumerate(class_names)},
        )
    except StrictDataclassError as error:
        raise ValueError(f"These sizes make no model: {error.__cause__ or error}") from error
    processor = VideoClipProcessor(**sampling, **input_size(options["image_size"]))
    return VideoViTForVideoClassification(config), processor


def readable_videos(data: DatasetDict, on_error: str) -> tuple[DatasetDict, list[str]]:
    """The data without the videos that cannot be opened, and why each of those cannot.

    Raises:
        ValueError: there are such videos and `on_error` is "error", or a split has no other.
    """
    from datasets import concatenate_datasets

    from hf_video.data import inspect_videos

    broken = {
        video.path: video.error
        for video in inspect_videos(concatenate_datasets([*data.values()]), decode=False)
        if video.error is not None
    }
    if not broken:
        return data, []
    reasons = list(broken.values())
    if on_error == "error":
        listed = "\n  ".join(reasons[:5] + (["..."] if len(reasons) > 5 else []))
        raise ValueError(
            f"{len(reasons)} videos cannot be read; repair them, take them out of the data, or go on without them "
            f"with --on-error skip:\n  {listed}"
        )
    for name, split in data.items():
        data[name] = split.select([index for index, video in enumerate(split["video"]) if video not in broken])
        if not len(data[name]):
            raise ValueError(f"No video of the {name} split can be read, for example {split['video'][0]}.")
    return data, reasons
