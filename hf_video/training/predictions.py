"""The predictions of a model as a table."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from datasets import Dataset

from .report import replace_file

TABLE_SUFFIXES = (".csv", ".parquet")


def write_predictions(
    path: str | os.PathLike,
    *,
    videos: Sequence[str],
    scores: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
) -> None:
    """Writes one row a video, the surest mistakes first: `video`, `label`, `prediction`, `is_right`, `score` of the
    prediction, `label_score`, and a column `score: NAME` for each class.

    Args:
        path: a file that ends in .csv or .parquet.
        videos: num_videos paths or names.
        scores: (num_videos, num_classes) float class probabilities.
        labels: (num_videos,) integer true class ids.
        class_names: num_classes names.

    Raises:
        ValueError: the file ends otherwise, or the lengths do not match each other.
    """
    path = check_table_name(path)
    if not len(videos) == len(scores) == len(labels) or scores.shape[1:] != (len(class_names),):
        raise ValueError(
            f"There are {len(videos)} videos and {len(labels)} labels for scores of shape {scores.shape}, and "
            f"{len(class_names)} class names."
        )
    predicted = scores.argmax(axis=1)
    best = scores.max(axis=1)
    order = np.lexsort((-best, predicted == labels))
    columns = {
        "video": [str(videos[row]) for row in order],
        "label": [class_names[labels[row]] for row in order],
        "prediction": [class_names[predicted[row]] for row in order],
        "is_right": (predicted == labels)[order].tolist(),
        "score": best[order].tolist(),
        "label_score": scores[np.arange(len(labels)), labels][order].tolist(),
        **{f"score: {name}": scores[order, index].tolist() for index, name in enumerate(class_names)},
    }
    table = Dataset.from_dict(columns)
    write = table.to_csv if path.suffix.lower() == ".csv" else table.to_parquet
    replace_file(path, partial(_write_table, write))


def check_table_name(path: str | os.PathLike) -> Path:
    """The path of a table.

    Raises:
        ValueError: its end is not that of a table.
    """
    path = Path(path)
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise ValueError(f"{path} is no table; a name that ends in {' or '.join(TABLE_SUFFIXES)} is expected.")
    return path


def _write_table(write, path: Path) -> None:
    with path.open("wb") as file:
        write(file)
