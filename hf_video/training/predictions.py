"""The predictions of a model as a table."""

import os
from collections.abc import Sequence
from functools import partial
from itertools import compress
from pathlib import Path

import numpy as np
from datasets import Dataset

from hf_video.files import replace_file


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

    Where a video may have several classes, `labels` and `predictions`, the classes with a score of a half or more, are
    names separated by semicolons; `error` is the largest difference between a score and the truth.

    Args:
        path: a file that ends in .csv or .parquet.
        videos: num_videos paths or names.
        scores: (num_videos, num_classes) float class probabilities.
        labels: (num_videos,) integer true class ids, or (num_videos, num_classes) zeros and ones.
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
    compare = _compare_one if labels.ndim == 1 else _compare_several
    columns, sureness = compare(scores, labels, class_names)
    columns = {"video": np.array(videos, dtype=object), **columns}
    columns |= {f"score: {name}": scores[:, index] for index, name in enumerate(class_names)}
    order = np.lexsort((-sureness, columns["is_right"]))
    table = Dataset.from_dict({name: column[order].tolist() for name, column in columns.items()})
    write = table.to_csv if path.suffix.lower() == ".csv" else table.to_parquet
    replace_file(path, partial(_write_table, write))


def _compare_one(
    scores: np.ndarray, labels: np.ndarray, class_names: Sequence[str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The columns for videos of one class, and how sure the model is of its prediction."""
    names = np.array(class_names, dtype=object)
    predicted, best = scores.argmax(axis=1), scores.max(axis=1)
    columns = {
        "label": names[labels],
        "prediction": names[predicted],
        "is_right": predicted == labels,
        "score": best,
        "label_score": scores[np.arange(len(labels)), labels],
    }
    return columns, best


def _compare_several(
    scores: np.ndarray, labels: np.ndarray, class_names: Sequence[str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The columns for videos of any number of classes, and the largest error of a score."""

    def listed(chosen: np.ndarray) -> np.ndarray:
        return np.array([";".join(compress(class_names, row)) for row in chosen], dtype=object)

    present, predicted = labels > 0.5, scores >= 0.5
    error = np.abs(scores - labels).max(axis=1)
    columns = {
        "labels": listed(present),
        "predictions": listed(predicted),
        "is_right": (present == predicted).all(axis=1),
        "error": error,
    }
    return columns, error


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
