"""What a training does about classes with few videos: weights in the loss, and how often videos are drawn."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from datasets import Dataset
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch.utils.data import Sampler

from hf_video.data import VideoDataset, is_multi_label, label_names
from hf_video.data.folders import listed
from hf_video.data.rows import class_counts, label_ids
from hf_video.io import read_csv, read_json, read_yaml

# One of the values in the paper: 100 videos of a class count as 95, 10,000 as 1,000.
EFFECTIVE_BETA = 0.999
# The number of videos of a class to this power is how often the class is drawn.
_EXPONENTS = {"balanced": 0.0, "sqrt": 0.5}
_WEIGHTS = TypeAdapter(dict[str, Annotated[float, Ge(0)]], config=ConfigDict(allow_inf_nan=False))


def read_class_weights(source: Mapping[str, float] | str) -> dict[str, float] | str:
    """The weights of classes by name in a mapping or a file; "balanced" and "effective" are returned as they are.

    Args:
        source: one of these words, a mapping, or a file: rows of `name,weight` (`.csv`), with or without a header, or
            one mapping (`.json`, `.yaml`, `.yml`).

    Raises:
        ValueError, OSError: the file cannot be read, or a weight is no number of at least 0.
    """
    if source in ("balanced", "effective"):
        return str(source)
    try:
        return _WEIGHTS.validate_python(_content(source) if isinstance(source, str) else source)
    except ValidationError as error:
        place = "".join(f": the weight of {name!r}" for name in error.errors()[0]["loc"])
        raise ValueError(f"class_weights={source}{place}; names with numbers of at least 0 are expected.") from error


def _content(path: str) -> object:
    file = Path(path).expanduser()
    if file.suffix.lower() == ".csv":
        rows = [row for _, row in read_csv(file)]
        is_header = bool(rows) and rows[0][-1].strip().isalpha()
        return {row[0].strip(): row[-1] for row in rows[is_header:]}
    if file.suffix.lower() not in (".json", ".yaml", ".yml"):
        raise ValueError(
            f"class_weights is {path!r}; balanced, effective, or a file that ends in .csv, .json or .yaml is expected."
        )
    return read_json(file) if file.suffix.lower() == ".json" else read_yaml(file)


def make_class_weights(
    choice: Mapping[str, float] | str | None, class_names: Sequence[str], videos: Dataset | None
) -> torch.Tensor | None:
    """The factor of each class in the loss of its videos, (num_classes,) float32; None for no choice.

    "balanced" gives n / (k n_c) for n videos, k classes and n_c videos of a class, as scikit-learn's
    `compute_class_weight`: the mean over all videos is 1. "effective" gives (1 - beta) / (1 - beta^n_c) with
    `EFFECTIVE_BETA`, scaled so that the mean over classes is 1 (https://arxiv.org/abs/1901.05555).

    If a video may have several classes, "balanced" gives the videos without a class / those with it, the `pos_weight`
    of `torch.nn.BCEWithLogitsLoss`, and "effective" has no meaning.

    Args:
        choice: one of these words, or what [`read_class_weights`] takes.
        class_names: num_classes names by class id.
        videos: the training videos, rows of `load_video_dataset`; None if they are unknown.

    Raises:
        ValueError, OSError: see [`read_class_weights`]; or a class has no weight, a weight has no class, or a class
            has no training video, or has all of them where videos may have several classes.
    """
    if choice is None:
        return None
    choice = read_class_weights(choice)
    if not isinstance(choice, str):
        if unknown := [name for name in choice if name not in class_names]:
            raise ValueError(f"class_weights has {listed(unknown)}, not among the classes: {listed(class_names)}.")
        if missing := [name for name in class_names if name not in choice]:
            raise ValueError(f"class_weights has no weight for {listed(missing)}: give one for each class.")
        return torch.tensor([choice[name] for name in class_names])
    if videos is None:
        raise ValueError(f"class_weights={choice} counts the videos of a VideoDataset: train on one, or give weights.")
    counts, is_multi = class_counts(videos), is_multi_label(videos)
    if is_multi and choice == "effective":
        raise ValueError("class_weights=effective is for videos of one class each: use balanced, or a file.")
    if any(wrong := (counts == 0) | (is_multi & (counts == len(videos)))):
        found = listed(class_names[index] for index in np.flatnonzero(wrong).tolist())
        raise ValueError(
            f"class_weights={choice} has no weight for {found}: none or each of the {len(videos)} training videos has "
            "this class. Give a file of names and weights."
        )
    if is_multi:
        weights = (len(videos) - counts) / counts
    elif choice == "balanced":
        weights = len(videos) / (len(counts) * counts)
    else:
        weights = (1 - EFFECTIVE_BETA) / (1 - EFFECTIVE_BETA**counts)
        weights /= weights.mean()
    return torch.from_numpy(weights).float()


class ClassSampler(Sampler[tuple[int, int]]):
    """Draws the training clips of an epoch with replacement, as many as there are rows, by the sizes of classes:
    "balanced" draws all classes alike, "sqrt" each by the square root of its number of rows.

    It gives pairs of a row and the number of its repetition in the epoch, so that a video that is drawn again is
    another clip. The order depends on the seed and the epoch of the data set alone: all processes draw the same one
    and share it out, and a resumed run draws it again. A video of several classes counts as one of its rarest class,
    and the videos without a class as a class.
    """

    def __init__(self, dataset: VideoDataset, sampler: str, seed: int):
        self.dataset = dataset
        self.seed = seed
        sizes = _class_sizes(dataset.rows)
        weights = sizes ** (_EXPONENTS[sampler] - 1)
        self.probabilities = weights / weights.sum()

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        # Clips are drawn by keys of the same numbers. A spawn key makes other draws.
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.dataset.epoch,)))
        repetitions = Counter[int]()
        for row in generator.choice(len(self), len(self), p=self.probabilities).tolist():
            yield row, repetitions[row]
            repetitions[row] += 1


def _class_sizes(videos: Dataset) -> np.ndarray:
    """The number of rows of the class that each row counts as, (num_rows,) float."""
    counts, unlabelled = class_counts(videos), len(label_names(videos))
    rarest = [min(ids, key=counts.__getitem__, default=unlabelled) for ids in label_ids(videos)]
    return np.bincount(rarest)[rarest].astype(float)
