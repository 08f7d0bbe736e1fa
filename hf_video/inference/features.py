"""Features of videos from a frozen classifier, kept on disk so that each video is read and encoded once."""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_video.data import ClipDataset, ReadAheadLoader
from hf_video.data.stored_videos import stored_sha256
from hf_video.io import replace_file, replace_text

from .feature_key import feature_key, video_identity

logger = logging.getLogger(__name__)

FEATURE_KINDS = ("pooled", "tokens")
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


@contextmanager
def watch_features(model: Any, kind: str = "pooled") -> Iterator[list[torch.Tensor]]:
    """Collects the features of every forward pass within the context, one tensor for each pass.

    Args:
        model: a classifier of Transformers with a `classifier` as its head.
        kind: "pooled" for the input of the head, (num_clips, hidden_size), or "tokens" for the last hidden state of
            the base model, (num_clips, num_tokens, hidden_size).

    Raises:
        ValueError: the model has no `classifier`, or the kind is unknown.
    """
    found: list[torch.Tensor] = []
    if kind not in FEATURE_KINDS:
        raise ValueError(f"kind is {kind!r}; {' or '.join(FEATURE_KINDS)} is expected.")
    if not isinstance(getattr(model, "classifier", None), nn.Module):
        raise ValueError(f"{type(model).__name__} has no head `classifier`, whose input would be the features.")
    if kind == "pooled":
        hook = model.classifier.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0]))
    else:
        hook = model.base_model.register_forward_hook(lambda module, inputs, outputs: found.append(outputs[0]))
    try:
        yield found
    finally:
        hook.remove()


def extract_features(
    model: PreTrainedModel,
    dataset: ClipDataset,
    folder: str | os.PathLike,
    *,
    kind: str = "pooled",
    batch_size: int = 8,
    num_workers: int = 0,
    reading_threads: int | None = None,
    progress: bool = True,
) -> Features:
    """The features of all videos of a data set. They are read from `folder`, or computed and written there.

    The name of a file of features follows from everything that determines them: weights and configuration of the
    model without its head, the processor, the version of this package, and path, size, time of change and segment of
    each video. If one of these changes, the features are computed anew. An interruption loses less than `SHARD_SIZE`
    videos.

    Args:
        model: a video classifier; put into evaluation mode.
        dataset: made with `training=False`.
        folder: made if it does not exist; may hold features of other models and data.
        kind: see `watch_features`.
        batch_size: videos in one forward pass, each with all its views.
        num_workers: processes that read videos; 0 reads in this one.
        reading_threads: threads that read videos ahead where no processes do; see `ReadAheadLoader`.
        progress: shows a progress bar.

    Raises:
        ValueError: the data set is for training, none of its videos can be read, or the kind is unknown.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    if dataset.training:
        raise ValueError("Features are computed of fixed clips: make the data set with training=False.")
    shards = _shards(dataset, _folder_of(model, dataset, Path(folder), kind))
    missing = [(path, rows) for path, rows in shards if not _is_whole(path)]
    unknown = [row for _, rows in missing for row in rows]
    loader = ReadAheadLoader(
        dataset,
        batch_size=batch_size,
        sampler=unknown,
        num_workers=num_workers,
        reading_threads=reading_threads,
        collate_fn=list,
    )
    model.eval()
    bar = tqdm(total=len(unknown), desc="Features", unit="video", disable=not progress or not missing)
    features = _stream(model, loader, kind, bar)
    try:
        with bar:
            for path, rows in missing:
                _write_shard(path, list(islice(features, len(rows))))
    except KeyboardInterrupt:
        done = sum(len(rows) for path, rows in shards if path.is_file())
        raise KeyboardInterrupt(
            f"The features of {done} of {len(dataset)} videos are kept in {folder}; the same command continues."
        ) from None
    values, read_rows = [], []
    for path, rows in shards:
        shard = load_file(path)
        read_rows += [row for row, is_read in zip(rows, shard["is_read"].tolist(), strict=True) if is_read]
        values += [shard["values"]] if "values" in shard else []
    if not values:
        raise ValueError(f"None of the {len(dataset)} videos can be read.")
    return Features(torch.cat(values), torch.tensor(read_rows))


def _stream(model: PreTrainedModel, loader: DataLoader, kind: str, bar: tqdm) -> Iterator[torch.Tensor | None]:
    """The features of one item after another; None for a video that cannot be read."""
    for items in loader:
        encoded = _encode(model, items, kind)
        bar.update(len(items))
        yield from encoded


@torch.inference_mode()
def _encode(model: PreTrainedModel, items: Sequence[Mapping[str, Any] | None], kind: str) -> list[torch.Tensor | None]:
    """Features (num_views, ...) of each item; None for a video that cannot be read."""
    clips = [item["pixel_values"] for item in items if item is not None]
    if not clips:
        return [None] * len(items)
    with watch_features(model, kind) as found:
        model(**{model.main_input_name: torch.cat(clips).to(model.device, model.dtype)})
    encoded = iter(found[0].cpu().split([len(views) for views in clips]))
    return [None if item is None else next(encoded) for item in items]


def _is_whole(path: Path) -> bool:
    """Whether a file of features exists and is neither cut off nor damaged."""
    if not path.is_file():
        return False
    try:
        with safe_open(path, "pt") as shard:
            return "is_read" in shard.keys()
    except SafetensorError as error:
        logger.warning(f"{path} is damaged and computed again: {error}")
        return False


def _write_shard(path: Path, features: Sequence[torch.Tensor | None]) -> None:
    tensors = {"is_read": torch.tensor([feature is not None for feature in features])}
    if tensors["is_read"].any():
        tensors["values"] = torch.stack([feature for feature in features if feature is not None])
    replace_file(path, lambda partial: save_file(tensors, partial))


def _folder_of(model: PreTrainedModel, dataset: ClipDataset, folder: Path, kind: str) -> Path:
    """The folder for the features of one model and processor. It is made, with a file that describes both."""
    key = feature_key(model, dataset.processor, features=kind)
    text = json.dumps(key, indent=2, sort_keys=True)
    folder = folder / _short_digest(text)
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / "features.json", text + "\n")
    return folder


def _shards(dataset: ClipDataset, folder: Path) -> list[tuple[Path, range]]:
    """The file and the rows of each `SHARD_SIZE` videos. The name of a file follows from its videos."""
    identities = [
        [*video_identity(row["video"], stored_sha256(row)), row.get("start"), row.get("end")]
        for row in dataset.dataset
    ]
    starts = range(0, len(identities), SHARD_SIZE)
    rows = [range(start, min(start + SHARD_SIZE, len(identities))) for start in starts]
    return [
        (folder / f"{_short_digest(json.dumps(identities[part.start : part.stop]))}.safetensors", part)
        for part in rows
    ]


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
