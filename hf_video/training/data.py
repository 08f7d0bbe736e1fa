"""Loads and checks the data of a training run, and recognises them when the run is resumed."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.processes import is_first_process

from .output_folder import OPTIONS_FILE

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset

logger = logging.getLogger(__name__)

# Videos that are opened before training at most, about ten seconds of work.
MAX_OPENED = 5000


def load_data(
    data: str,
    model: str | Path | None,
    video_root: str | None = None,
    split_by: str | None = None,
    **options: str | None,
) -> DatasetDict:
    """The splits. Their class ids are in the order of the model if it has the same classes, else sorted. A column that
    the data are split by is kept. `options` are those of `dataset_options`."""
    from hf_video.data import load_video_dataset
    from hf_video.data.holding_out import further_columns

    columns = further_columns(split_by)
    return load_video_dataset(data, order=_known_names(model), video_root=video_root, columns=columns, **options)


def require_training(data: str, splits: Mapping[str, Dataset]) -> None:
    """Refuses (`ValueError`) data without a training split."""
    if "train" not in splits:
        raise ValueError(f"{data} has no training split, only {', '.join(splits)}. Name a file or folder of it train.")


def load_stream(
    data: str, model: str | Path | None, video_root: str | None = None, **options: str | None
) -> tuple[IterableDataset, DatasetDict, list[str]]:
    """The stream of training videos, the other splits, and the class names by id, as of `load_data`. A model whose
    classes are others keeps them where the data declare none."""
    from hf_video.data import load_video_stream
    from hf_video.data.rows import declared_names
    from hf_video.data.video_stream import open_video_streams

    streams = open_video_streams(data, **options)
    known, declared = _known_names(model), declared_names(streams["train"])
    names = known if known is not None and (declared is None or sorted(known) == sorted(declared)) else declared
    stream, others = load_video_stream(streams, labels=names, video_root=video_root)
    if "validation" not in others:
        raise ValueError(
            f"{data} has no validation split, and none can be held out from a stream: name one with "
            "--validation-split, or leave out --streaming."
        )
    return stream, others, names or []


def check_streamed(chosen: Any) -> None:
    """Refuses (`ValueError`) settings that need to know all training videos, if these are a stream."""
    if chosen.max_steps < 1:
        raise ValueError("A stream has no known length: say with --max-steps how long to train.")
    for name, usual in {"split_by": None, "sampler": "random", "dataloader_num_workers": 0}.items():
        if getattr(chosen, name) != usual:
            raise ValueError(f"{name}={getattr(chosen, name)} is not for a stream: leave it out, or --streaming.")
    if chosen.class_weights in ("balanced", "effective"):
        raise ValueError(
            f"class_weights={chosen.class_weights} counts the training videos, and those of a stream are not known: "
            "give a file of names and weights."
        )


def commit_of(data: str, revision: str | None) -> str | None:
    """The commit of a data set of the Hub; None for other data."""
    from huggingface_hub import HfApi

    from hf_video.data.tables import is_hub_name

    return HfApi().dataset_info(data, revision=revision).sha if is_hub_name(data) else None


def _known_names(model: str | Path | None) -> list[str] | None:
    if model is None:
        return None
    from hf_video.loading.class_names import class_names_of
    from hf_video.loading.configurations import load_config

    return class_names_of(load_config(model))


def training_splits(
    data: DatasetDict, validation_fraction: float, seed: int, split_by: str | None
) -> dict[str, Dataset]:
    """The training and the validation split by name. The latter is held out from training if the data have none, and a
    printed line says what is. Warns of clips that have different labels or stand in several splits. Splits that share
    seconds of a video are a `ValueError`."""
    from hf_video.data import hold_out
    from hf_video.data.checks import find_overlaps, tell_overlaps

    if "validation" in data:
        train, validation = data["train"], data["validation"]
    else:
        train, validation = hold_out(data["train"], validation_fraction, seed, split_by)
        if is_first_process():
            print(validation.info.description, flush=True)
    splits = {**data, "train": train, "validation": validation}
    if overlaps := find_overlaps(splits):
        raise ValueError(tell_overlaps(overlaps))
    warn_of_repetitions(splits)
    return {"train": train, "validation": validation}


def cut_splits(splits: Mapping[str, Dataset], seconds: float | None) -> dict[str, Dataset]:
    """The splits with long rows cut into clips of about so many seconds, see `cut_long_rows`; a printed line says how
    many there are. No rows are cut if `seconds` are 0 or not known."""
    from hf_video.data.clip_duration import cut_long_rows

    cut = {name: cut_long_rows(rows, seconds) if seconds else rows for name, rows in splits.items()}
    for name, rows in cut.items():
        if len(rows) > len(splits[name]) and is_first_process():
            print(
                f"The {len(splits[name])} rows of the {name} split are cut into {len(rows)} clips, because a clip of "
                f"the model lasts {seconds:g} s; --clip-duration 0 leaves rows whole.",
                flush=True,
            )
    return cut


def warn_of_repetitions(splits: Mapping[str, Dataset]) -> None:
    """Logs how many clips have different labels or stand in several splits, on the first process of a launcher."""
    if not is_first_process():
        return
    from hf_video.data.checks import find_repeated_clips, repetition_warnings

    for sentence in repetition_warnings(find_repeated_clips(splits)):
        logger.warning(sentence)


def readable_videos(data: Mapping[str, Dataset], on_error: str) -> tuple[Mapping[str, Dataset], list[str]]:
    """The data without the videos that cannot be opened, and a sentence about each of these; with `on_error="error"`
    they are a `ValueError`. Videos of which a table knows the `frames` are not opened; of more than `MAX_OPENED`
    others a random sample is. Each process opens its share, so all must call this."""
    from datasets import DatasetDict, concatenate_datasets

    from hf_video.data.checks import find_broken
    from hf_video.data.rows import FRAMES, VideoRows, rows_without

    rows = concatenate_datasets([*data.values()])
    if FRAMES in rows.column_names:
        unknown = rows.select([row for row, frames in enumerate(rows[FRAMES][:]) if frames is None])
        _say(f"{len(rows) - len(unknown):,} rows say how many frames their videos have, which are not checked again.")
        rows = unknown
    if not len(rows):
        return data, []
    if (num_videos := len(VideoRows(rows))) > MAX_OPENED:
        _say(
            f"There are {num_videos:,} videos, and {MAX_OPENED:,} of them, drawn at random, are opened before "
            "training. `hf-video inspect DATA --output videos.parquet` checks all of them once; training on "
            "videos.parquet then opens none."
        )
    broken = find_broken(rows, decode=False, at_most=MAX_OPENED)
    if not broken:
        return data, []
    reasons = list(broken.values())
    if on_error == "error":
        listed = "\n  ".join(reasons[:5] + (["..."] if len(reasons) > 5 else []))
        raise ValueError(
            f"{len(reasons)} videos cannot be read; repair them, take them out of the data, or go on without them "
            f"with --on-error skip:\n  {listed}"
        )
    kept = DatasetDict({name: split.select(rows_without(split, broken)) for name, split in data.items()})
    for name, split in kept.items():
        if not len(split):
            raise ValueError(f"No video of the {name} split can be read, for example {data[name]['video'][0]}.")
    return kept, reasons


def _say(sentence: str) -> None:
    """Logs a sentence on the first process of a launcher."""
    if is_first_process():
        logger.warning(sentence)


def describe_data(source: str, splits: DatasetDict, class_names: list[str] | None = None) -> dict[str, Any]:
    """A description of the data of a run, for `train_options.json`. It does not change if the videos are moved. Videos
    without classes have no `class_names`."""
    from hf_video.data.rows import KNOWN_COLUMNS

    names = {name: split["video"][:] for name, split in splits.items()}
    root = len(os.path.commonprefix([*chain.from_iterable(names.values())]))
    columns = ("start", "end", "question", "answer") if class_names is None else ("label", "labels", "start", "end")
    digest = hashlib.sha256()
    for name, split in sorted(splits.items()):
        described = [column for column in split.column_names if column in columns or column not in KNOWN_COLUMNS]
        rows = split.select_columns(described)[:]
        digest.update(json.dumps([name, [path[root:] for path in names[name]], rows], sort_keys=True).encode())
    return {
        "source": source,
        "class_names": class_names,
        "num_videos": {name: len(split) for name, split in splits.items()},
        "digest": digest.hexdigest(),
    }


def check_same_data(given: dict[str, Any], saved: dict[str, Any] | None) -> None:
    """Refuses (`ValueError`) data whose description differs from that of the run being resumed, if there is one."""
    if saved is None or all(given[name] == saved[name] for name in ("class_names", "digest")):
        return
    from hf_video.data.folders import listed

    found, known = (
        f"{data['source']} ({sum(data['num_videos'].values())} videos"
        + (f" of the classes {listed(data['class_names'])}" if data["class_names"] else "")
        + f"; digest {data['digest'][:8]})"
        for data in (given, saved)
    )
    raise ValueError(
        f"The data {found} differ from those of the run being resumed, {known}. Resume with the same videos and "
        "classes, or train into another folder."
    )


def read_training(model: str | Path) -> dict[str, Any]:
    """What `train_options.json` says of the training of a model or checkpoint; empty for one that has none, as on the
    Hub."""
    from hf_video.data.checks import run_folder
    from hf_video.io import read_own_json

    found = read_own_json(run_folder(Path(model)) / OPTIONS_FILE)
    return found if isinstance(found, dict) else {}


def was_split_by(training: dict[str, Any], data: DatasetDict, class_names: list[str]) -> bool:
    """Whether a training held out a part of these data, which have no other splits.

    Args:
        training: from `read_training`.
        data: the data, with the column that they were split by.
        class_names: those of the model.
    """
    known = training.get("data") or {}
    if known.get("num_videos") != {"train": len(data.get("train", ()))} or "validation_fraction" not in training:
        return False
    try:
        check_same_data(describe_data("", data, class_names), known)
    except ValueError:
        return False
    return True


def parts_of_training(training: dict[str, Any], data: DatasetDict, class_names: list[str]) -> DatasetDict | None:
    """What a training of clips trained on and what it held out, as "train" and "validation"; None unless
    [`was_split_by`], which has the same arguments, says that it held some out."""
    from datasets import DatasetDict

    from hf_video.data import hold_out

    if not was_split_by(training, data, class_names):
        return None
    # Training held out a part of what it could read.
    rows = readable_videos(data, "skip")[0]["train"] if training["on_error"] != "error" else data["train"]
    train, validation = hold_out(rows, training["validation_fraction"], training["seed"], training.get("split_by"))
    return DatasetDict(train=train, validation=validation)
