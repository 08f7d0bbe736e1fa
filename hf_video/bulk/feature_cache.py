"""The features of labelled videos for a probe: each video is read and encoded once."""

import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_video.data import ReadAheadLoader, VideoDataset
from hf_video.data.rows import stored_sha256
from hf_video.inference.features import Pooling, choose_features, encode_clips, feature_key, video_identity
from hf_video.io import replace_file

from .run import telling_what_is_kept

# Videos in a file. An interruption loses less than one file.
SHARD_SIZE = 64


class Features(NamedTuple):
    """Features of the videos of a data set, (num_videos, num_views, hidden_size), or (num_videos, num_views,
    num_tokens, hidden_size), in the dtype of the model; and the row of the data set that each video is in,
    (num_videos,) int64. Videos that cannot be read have none."""

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

    The name of a file of features follows from all that decides them, see `feature_key` and `video_identity`. An
    interruption loses less than `SHARD_SIZE` videos.

    Args:
        model: a video classifier; put into evaluation mode.
        dataset: made with `training=False`.
        folder: made if it does not exist; may hold features of other models and data.
        pooling: "head" for the input of the head, or "mean", "cls" or "none" of the tokens; see `choose_features`.
        batch_size: videos in one forward pass, each with all its views.
        num_workers, reading_threads: processes and threads that read videos, see `ReadAheadLoader`.
        progress: shows a progress bar.

    Raises:
        ValueError: the data set is for training, none of its videos can be read, or the pooling does not go with the
            model.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    if dataset.training:
        raise ValueError("Features are computed of fixed clips: make the data set with training=False.")
    settings = choose_features(model.eval(), pooling)
    place = Path(folder) / _digest(feature_key(model, dataset.task.processor, pooling=settings.pooling))
    place.mkdir(parents=True, exist_ok=True)
    reading = {"num_workers": num_workers, "reading_threads": reading_threads, "collate_fn": list}
    values, rows, starts = [], [], range(0, len(dataset), SHARD_SIZE)
    num_done = 0
    with telling_what_is_kept("features", str(folder), len(dataset), lambda: range(num_done, len(dataset))):
        # A hidden bar does not count.
        for num_done in tqdm(starts, "Videos", unit=f"{SHARD_SIZE} videos", disable=None if progress else True):
            numbers = range(num_done, min(num_done + SHARD_SIZE, len(dataset)))
            videos = [dataset.rows[number] for number in numbers]
            of_videos = [video_identity(row["video"], stored_sha256(row)) for row in videos]
            segments = [[row.get("start"), row.get("end")] for row in videos]
            file = place / f"{_digest([of_videos, segments])}.safetensors"
            if file.exists():
                shard = load_file(file)
            else:
                is_read, encoded = [], []
                for items in ReadAheadLoader(dataset, batch_size, sampler=numbers, **reading):
                    is_read += [item is not None for item in items]
                    if clips := [item["pixel_values"] for item in items if item is not None]:
                        features = encode_clips(model, torch.cat(clips), settings)
                        encoded.append(features.unflatten(0, (len(clips), -1)).to(model.dtype))
                shard = {"is_read": torch.tensor(is_read)} | ({"values": torch.cat(encoded)} if encoded else {})
                replace_file(file, partial(save_file, shard))
            values += [shard["values"]] if "values" in shard else []
            rows += (num_done + shard["is_read"].nonzero().flatten()).tolist()
    if not values:
        raise ValueError(f"None of the {len(dataset)} videos can be read.")
    return Features(torch.cat(values), torch.tensor(rows))


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
