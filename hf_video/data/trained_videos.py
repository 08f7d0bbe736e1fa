"""Which videos a model was trained on, by digests of their content: kept by a training, counted by an evaluation."""

import functools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset

from hf_video.files import read_own_json, replace_text

from .content_digest import bytes_digest, path_digest
from .manifest import CONTENT
from .packed_videos import is_packed
from .video_column import BYTES

TRAINED_VIDEOS_FILE = "trained_videos.json"
# Rows whose videos are read for their digests at most, some seconds of work; and digests that are kept at most, 7 MB.
MAX_READ, MAX_KEPT = 5_000, 100_000


class TrainedVideos(NamedTuple):
    """
    How many rows have a video that a model knows.

    Attributes:
        by_split: the number of rows for each split of the training, "train" and "validation".
        is_least: whether there may be more, because only a sample of many videos was compared.
    """

    by_split: dict[str, int]
    is_least: bool


def write_trained_videos(folder: Path, splits: Mapping[str, Dataset]) -> None:
    """Writes `trained_videos.json`: the `content_digest`s of the videos of each split, and no name.

    Of a split with more than `MAX_READ` rows whose videos would have to be read, or more than `MAX_KEPT` whose digests
    a manifest or pack knows, an evenly spaced sample is kept.

    Args:
        folder: that of the model.
        splits: data sets of `load_video_dataset` by name, "train" and "validation".
    """
    digests = {name: sorted({*filter(None, _digests(rows))}) for name, rows in splits.items()}
    samples = [name for name, rows in splits.items() if _step(rows) > 1]
    replace_text(folder / TRAINED_VIDEOS_FILE, json.dumps({"samples": samples, "digests": digests}) + "\n")


def count_trained(folder: Path, rows: Dataset) -> TrainedVideos | None:
    """How many rows have a video that a model was trained on, or that its checkpoint was chosen on. None if the folder
    does not say so.

    Args:
        folder: that of a model, or of a checkpoint inside.
        rows: a data set of `load_video_dataset`. Of many, a sample is compared, as in `write_trained_videos`.
    """
    folder = folder.absolute()
    kept = read_own_json((folder.parent if folder.name.startswith("checkpoint-") else folder) / TRAINED_VIDEOS_FILE)
    if not isinstance(kept, dict) or not {"samples", "digests"} <= kept.keys():
        return None
    found = list(_digests(rows))
    known = {name: set(digests) for name, digests in kept["digests"].items()}
    counts = {name: sum(digest in digests for digest in found) for name, digests in known.items()}
    return TrainedVideos(counts, bool(kept["samples"]) or _step(rows) > 1)


def _step(rows: Dataset) -> int:
    """Every how manieth row is looked at."""
    return math.ceil(len(rows) / (MAX_KEPT if CONTENT in rows.column_names else MAX_READ)) or 1


def _digests(rows: Dataset) -> Iterator[str | None]:
    """The digest of the video of each row that is looked at; None for a video that cannot be read."""
    rows = rows.select(range(0, len(rows), _step(rows)))
    if CONTENT in rows.column_names:
        yield from rows[CONTENT][:]
    elif BYTES in rows.column_names:
        yield from (path_digest(row["video"]) if row[BYTES] is None else bytes_digest(row[BYTES]) for row in rows)
    elif not is_packed(rows):
        yield from map(functools.cache(path_digest), rows["video"][:])
