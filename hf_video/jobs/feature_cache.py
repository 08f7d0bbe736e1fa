"""A sink of safetensors files, the shards, with the features of labelled videos for a probe: a cache, in which each
video is read and encoded once."""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from hf_video.data import VideoDataset
from hf_video.data.rows import stored_sha256
from hf_video.inference.features import Pooling, choose_features, encode_clips, feature_key, video_identity
from hf_video.io import replace_file, replace_text

from .batches import Video, VideoOutputs
from .runner import LocalEngine, Part, Sink, run
from .tasks import Piece, Task

logger = logging.getLogger(__name__)

# Videos in a file. An interruption loses less than one file.
SHARD_SIZE = 64


class Features(NamedTuple):
    """Features of the videos of a data set. Videos that cannot be read have none.

    Attributes:
        values: (num_videos, num_views, hidden_size), or (num_videos, num_views, num_tokens, hidden_size), in the dtype
            of the model.
        rows: (num_videos,) int64, the row of the data set that each video is in.
    """

    values: torch.Tensor
    rows: torch.Tensor


def extract_features(
    model: PreTrainedModel,
    dataset: VideoDataset,
    folder: str | os.PathLike,
    *,
    pooling: Pooling = "head",
    batch_size: int = 8,
    num_workers: int = 0,
    reading_threads: int | None = None,
    progress: bool = True,
) -> Features:
    """The features of all videos of a data set. They are read from `folder`, or computed and written there.

    The name of a file of features follows from all that decides them: weights and configuration of the model without
    its head, the processor, the version of this package, and path, size, time of change and segment of each video. An
    interruption loses less than `SHARD_SIZE` videos.

    Args:
        model: a video classifier; put into evaluation mode.
        dataset: made with `training=False`.
        folder: made if it does not exist; may hold features of other models and data.
        pooling: "head" for the input of the head, or "mean", "cls" or "none" of the tokens; see `choose_features`.
        batch_size: videos in one forward pass, each with all its views.
        num_workers: processes that read videos; 0 reads in this one.
        reading_threads: threads that read videos ahead where no processes do; see `ReadAheadLoader`.
        progress: shows a progress bar.

    Raises:
        ValueError: the data set is for training, none of its videos can be read, or the pooling does not go with the
            model.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    if dataset.training:
        raise ValueError("Features are computed of fixed clips: make the data set with training=False.")
    task = _ClipTask(dataset, pooling)
    key = json.dumps(task.key(model), indent=2, sort_keys=True)
    shards = _Shards(Path(folder), key, model.dtype)
    videos = [_Row(number, row) for number, row in enumerate(dataset.rows)]
    run(task, videos, shards, LocalEngine(model, batch_size, num_workers, reading_threads), progress=progress)
    return shards.load(videos)


class _Row:
    """A row of the data set as a video, which the task reads by its number."""

    def __init__(self, number: int, row: dict[str, Any]):
        self.id, self.number, self.source = str(number), number, row["video"]
        self.identity = [*video_identity(row["video"], stored_sha256(row)), row.get("start"), row.get("end")]

    def open(self) -> int:
        return self.number


class _LeftOut(Exception):
    """The data set leaves a video out that cannot be read."""


class _ClipTask(Task):
    """The features (num_views, ...) of the views of each row of a data set."""

    quantity, is_single = "features", True

    def __init__(self, dataset: VideoDataset, pooling: Pooling):
        self.dataset, self.pooling = dataset, pooling

    def key(self, model: PreTrainedModel) -> dict[str, Any]:
        settings = choose_features(model, self.pooling)
        return feature_key(model, self.dataset.task.processor, pooling=settings.pooling)

    def read(self, source: int) -> Iterator[Piece]:
        item = self.dataset[source]
        if item is None:
            raise _LeftOut
        yield Piece(item["pixel_values"].numpy())

    def encode(self, model: PreTrainedModel, pixel_values: torch.Tensor) -> np.ndarray:
        features = encode_clips(model, pixel_values.flatten(0, 1), choose_features(model, self.pooling))
        return features.unflatten(0, pixel_values.shape[:2]).numpy()


class _Shards(Sink):
    """Files of `SHARD_SIZE` videos each, in the folder of a model, a processor and a pooling."""

    contents = "features"

    def __init__(self, folder: Path, key: str, dtype: torch.dtype):
        self.place, self.folder, self.key, self.dtype = str(folder), folder / _short_digest(key), key, dtype

    def claim(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self.folder / "features.json", self.key + "\n")

    def plan(self, videos: Sequence[Video]) -> list[Part]:
        return [part for part in self._parts(videos) if not _is_whole(self.folder / part.name)]

    def write(self, task: Task, part: Part, outputs: Iterator[VideoOutputs]) -> None:
        values, is_read = [], []
        for of_video in outputs:
            values += of_video.gather()[1]
            is_read.append(of_video.error is None)
            if of_video.error is not None and not isinstance(of_video.error, _LeftOut):
                raise of_video.error
        tensors = {"is_read": torch.tensor(is_read)}
        if values:
            tensors["values"] = torch.from_numpy(np.stack(values)).to(self.dtype)
        replace_file(self.folder / part.name, lambda partial: save_file(tensors, partial))

    def load(self, videos: Sequence[Video]) -> Features:
        """The features of all videos that could be read."""
        values, rows = [], []
        for part in self._parts(videos):
            shard = load_file(self.folder / part.name)
            rows += [int(part.videos[place].id) for place in shard["is_read"].nonzero().flatten().tolist()]
            values += [shard["values"]] if "values" in shard else []
        if not values:
            raise ValueError(f"None of the {len(videos)} videos can be read.")
        return Features(torch.cat(values), torch.tensor(rows))

    def _parts(self, videos: Sequence[Any]) -> list[Part]:
        """The name of a file follows from its videos."""
        groups = [videos[start : start + SHARD_SIZE] for start in range(0, len(videos), SHARD_SIZE)]
        names = (_short_digest(json.dumps([video.identity for video in group])) for group in groups)
        return [Part(f"{name}.safetensors", group) for name, group in zip(names, groups, strict=True)]


def _is_whole(path: Path) -> bool:
    """Whether a file of features exists and is neither cut off nor damaged."""
    if not path.is_file():
        return False
    try:
        with safe_open(path, "pt"):
            return True
    except SafetensorError as error:
        logger.warning(f"{path} is damaged and computed again: {error}")
        return False


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
