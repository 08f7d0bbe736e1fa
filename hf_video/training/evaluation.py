"""Class scores of the videos of a data set, and the table of predictions."""

import os
from collections.abc import Sequence
from functools import partial
from itertools import compress
from pathlib import Path

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_video.data import ReadAheadLoader, collate_clips
from hf_video.files import replace_file
from hf_video.inference.prediction import predict_scores

TABLE_SUFFIXES = (".csv", ".parquet")


def evaluate_dataset(
    model: PreTrainedModel,
    dataset: Dataset,
    *,
    batch_size: int = 8,
    num_workers: int = 0,
    reading_threads: int | None = None,
    progress: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Class probabilities and labels of every video in a data set, in its order.

    Args:
        model: a video classifier; put into evaluation mode.
        dataset: a `ClipDataset` made with `training=False`, or any data set of the same items.
        batch_size: videos in one forward pass, each with all its views.
        num_workers: processes that read videos; 0 reads in this one.
        reading_threads: threads that read videos ahead where no processes do; see `ReadAheadLoader`.
        progress: shows a progress bar.

    Returns:
        Scores (num_videos, num_classes) float32, and labels: class ids (num_videos,) int64, or targets (num_videos,
        num_classes) float32 if a video may have several classes.

    Raises:
        ValueError: the data set is empty.
    """
    loader = ReadAheadLoader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        reading_threads=reading_threads,
        collate_fn=collate_clips,
    )
    if not len(loader):
        raise ValueError("There is no video to evaluate: the data set is empty.")
    model.eval()
    scores, labels = [], []
    for batch in tqdm(loader, desc="Evaluating", disable=not progress):
        scores.append(predict_scores(model, batch["pixel_values"]))
        labels.append(batch["labels"])
    return torch.cat(scores).numpy(), torch.cat(labels).numpy()


def write_predictions(
    path: str | os.PathLike,
    *,
    videos: Sequence[str],
    scores: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
) -> None:
    """Writes a table with one row for each video; wrong predictions with the highest scores come first.

    The columns are `video`, `label`, `prediction`, `is_right`, `score` of the prediction, `label_score`, and for each
    class `score: NAME`. If a video may have several classes, they are `video`, `labels`, `predictions`, `is_right`,
    `error` and the scores: names are separated by semicolons, a class is predicted if its score is at least a half,
    and `error` is the largest difference between a score and the truth.

    Args:
        path: a file that ends in .csv or .parquet.
        videos: num_videos paths or names.
        scores: (num_videos, num_classes) float class probabilities.
        labels: (num_videos,) integer class ids, or (num_videos, num_classes) zeros and ones.
        class_names: num_classes names.

    Raises:
        ValueError: the file name ends differently, or the lengths do not match each other.
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
    table = datasets.Dataset.from_dict({name: column[order].tolist() for name, column in columns.items()})
    write = table.to_csv if path.suffix.lower() == ".csv" else table.to_parquet
    replace_file(path, partial(_write_table, write))


def _compare_one(
    scores: np.ndarray, labels: np.ndarray, class_names: Sequence[str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The columns for videos with one class each, and the score of the prediction."""
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
    """The columns for videos with any number of classes, and the largest error of a score."""

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
        ValueError: it ends neither in .csv nor in .parquet.
    """
    path = Path(path)
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise ValueError(f"{path} is no table; a name that ends in {' or '.join(TABLE_SUFFIXES)} is expected.")
    return path


def _write_table(write, path: Path) -> None:
    with path.open("wb") as file:
        write(file)
