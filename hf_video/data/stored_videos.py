"""Opens the video of a row of a data set: a file, a URL, or bytes in the row."""

import hashlib
import io
from collections.abc import Mapping
from typing import Any, BinaryIO

from datasets import Dataset

# The column of video files that are stored inside a data set.
BYTES = "bytes"


def open_video(row: Mapping[str, Any]) -> str | BinaryIO:
    """The video of a row of `load_video_dataset`, for `read_video`: a path or URL, or a file if the row stores it."""
    if row.get(BYTES) is None:
        return row["video"]
    file = io.BytesIO(row[BYTES])
    file.name = row["video"]  # for messages
    return file


def stored_sha256(row: Mapping[str, Any]) -> str | None:
    """The SHA-256 of a video that is stored in its row; None for a file of its own or a URL."""
    return None if row.get(BYTES) is None else hashlib.sha256(row[BYTES]).hexdigest()


def is_stored(dataset: Dataset) -> list[bool]:
    """Whether each row stores its video, without reading it."""
    if BYTES not in dataset.column_names:
        return [False] * len(dataset)
    batches = dataset.select_columns(BYTES).with_format("arrow").iter(1000)
    return [each for batch in batches for each in batch[BYTES].is_valid().to_pylist()]
