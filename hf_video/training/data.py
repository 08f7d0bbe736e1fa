"""Loads and checks the data of a training run."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset
from huggingface_hub import HfApi

from hf_video.data import hold_out, load_video_dataset, load_video_stream
from hf_video.data.checks import (
    MAX_OPENED,
    find_copies,
    find_overlaps,
    find_repeated_clips,
    repetition_warnings,
    tell_copies,
    tell_overlaps,
)
from hf_video.data.folders import is_hub_name, listed
from hf_video.data.holding_out import check_column, further_columns
from hf_video.data.rows import class_counts, label_names
from hf_video.loading.class_names import class_names_of
from hf_video.loading.configurations import load_config
from hf_video.processes import is_first_process

logger = logging.getLogger(__name__)


def load_data(
    data: str,
    model: str | Path | None,
    video_root: str | None = None,
    split_by: str | None = None,
    **options: Any,
) -> DatasetDict:
    """The splits. Their class ids are in the order of the model if it has the same classes, else sorted. A column that
    the data are split by is kept. `options` are those of `load_video_dataset`."""
    columns = further_columns(split_by)
    return load_video_dataset(data, order=_known_names(model), video_root=video_root, columns=columns, **options)


def require_training(data: str, splits: Mapping[str, Dataset], split_by: str | None = None) -> None:
    """Refuses (`ValueError`) data without a training split, or without the column by which one for validation is held
    out. Tells which classes a split for validation lacks."""
    if "train" not in splits:
        raise ValueError(f"{data} has no training split, only {', '.join(splits)}. Name a file or folder of it train.")
    rows = splits.get("validation")
    if rows is None:
        check_column(splits["train"], split_by)
    counts = {} if rows is None else dict(zip(label_names(rows), class_counts(rows), strict=True))
    lacking = [repr(name) for name, count in counts.items() if not count]
    if lacking and is_first_process():
        logger.warning(f"The validation split of {data} has no clip of {listed(lacking)}: not measured.")


def load_stream(
    data: str, model: str | Path | None, video_root: str | None = None, **options: str | None
) -> tuple[IterableDataset, DatasetDict, list[str]]:
    """The stream of training videos, the other splits, and the class names by id: those that the data declare, in the
    order of a model with the same ones, or else those of the model."""
    stream, others = load_video_stream(data, order=_known_names(model), video_root=video_root, **options)
    if "validation" not in others:
        raise ValueError(
            f"{data} has no validation split, and none can be held out from a stream: name one with "
            "--validation-split, or leave out --streaming."
        )
    return stream, others, label_names(others["validation"])


def check_streamed(chosen: Any) -> None:
    """Refuses (`ValueError`) settings that need to know all training videos, if these are a stream."""
    if chosen.max_steps < 1:
        raise ValueError("A stream has no known length: say with --max-steps how long to train.")
    for name, usual in {"split_by": None, "sampler": "random", "dataloader_num_workers": 0}.items():
        if getattr(chosen, name) != usual:
            raise ValueError(f"{name}={getattr(chosen, name)} is not for a stream: leave it out, or --streaming.")


def commit_of(data: str, revision: str | None) -> str | None:
    """The commit of a data set of the Hub; None for other data."""
    return HfApi().dataset_info(data, revision=revision).sha if is_hub_name(data) else None


def _known_names(model: str | Path | None) -> list[str] | None:
    return None if model is None else class_names_of(load_config(model))


def training_splits(
    data: DatasetDict, validation_fraction: float, seed: int, split_by: str | None
) -> dict[str, Dataset]:
    """The training and the validation split. The latter is held out if the data have none, and a printed line says
    what is. Warns of copies and of repeated clips. Splits that share seconds of a video are a `ValueError`."""
    copies = find_copies(data, at_most=MAX_OPENED)
    if copies and is_first_process():
        held_out = "" if "validation" in data else " Copies go with their video, and are not counted below."
        logger.warning(tell_copies(copies) + held_out)
    if "validation" in data:
        train, validation = data["train"], data["validation"]
    else:
        train, validation = hold_out(data["train"], validation_fraction, seed, split_by)
        if is_first_process():
            print(validation.info.description, flush=True)
    splits = {**data, "train": train, "validation": validation}
    if overlaps := find_overlaps(splits):
        raise ValueError(tell_overlaps(overlaps))
    warn_of_repetitions(splits, copies)
    return {"train": train, "validation": validation}


def warn_of_repetitions(splits: Mapping[str, Dataset], copies: Mapping[str, str] | None = None) -> None:
    """Logs how many clips have different labels or stand in several splits, on the first process of a launcher."""
    if not is_first_process():
        return
    for sentence in repetition_warnings(find_repeated_clips(splits, copies)):
        logger.warning(sentence)
