"""Lists videos with captions."""

import os
from typing import Any, cast

import datasets

from .stored_videos import BYTES
from .tables import find_dataset, known_splits, with_video_names
from .video_texts import load_video_texts

_TIMES = ("start", "end")


def load_captions(
    data: str | os.PathLike | datasets.DatasetDict | datasets.Dataset,
    *,
    video_root: str | os.PathLike | None = None,
) -> datasets.DatasetDict:
    """List the captions of videos.

    Args:
        data: A file of rows with `video`, `caption` and, optionally, `start` and `end` in seconds, or a folder of such
            files named after splits, see `load_video_texts`. Or a data set of the `datasets` library, as an object, as
            a folder of `save_to_disk` or Parquet files, or by its name on the Hub, with a column `video` of the
            feature `Video` or of paths, and a column `caption`. In JSON and in a data set, a caption may be a list of
            captions.
        video_root: The folder that relative paths of a file count from; by default that of the file.

    Returns:
        The splits found among "train", "validation" and "test"; data without splits are "train". A row is a caption.
        Columns: `video` (path), `caption`, `start` and `end` (float64, seconds, or None); if videos are stored inside
        the data set, `bytes` holds them and `video` is a name.

    Raises:
        FileNotFoundError: If `data`, or a video that a file names, does not exist.
        ValueError: If a file is not as `load_video_texts` expects it, or a data set lacks a column.
    """
    is_object = isinstance(data, datasets.Dataset | datasets.DatasetDict)
    found = data if is_object else find_dataset(cast(Any, data))
    if found is None:
        splits = load_video_texts(cast(Any, data), video_root=video_root)
        if asked := next((name for name, rows in splits.items() if any(rows["question"])), None):
            raise ValueError(f"The {asked} split of {data} has questions; captions are expected.")
        return splits.remove_columns("question").rename_column("answer", "caption")
    splits = found if isinstance(found, datasets.DatasetDict) else {"train": found}
    return datasets.DatasetDict({name: _caption_rows(rows) for name, rows in known_splits(splits, None, None).items()})


def _caption_rows(rows: datasets.Dataset) -> datasets.Dataset:
    """The rows of `load_captions` of a data set with columns of videos and captions."""
    if missing := {"video", "caption"}.difference(rows.column_names):
        raise ValueError(
            f"The data set has the columns {', '.join(rows.column_names)}: {min(missing, key=len)!r} is missing."
        )
    rows = rows.select_columns([name for name in ("video", "caption", BYTES, *_TIMES) if name in rows.column_names])
    rows = with_video_names(rows)
    for name in set(_TIMES).difference(rows.column_names):
        rows = rows.add_column(name, [None] * len(rows), feature=datasets.Value("float64"))
    lists = [each if isinstance(each, list) else [each] for each in rows["caption"]]
    rows = rows.select([index for index, captions in enumerate(lists) for _ in captions])
    return rows.remove_columns("caption").add_column("caption", [each for captions in lists for each in captions])
