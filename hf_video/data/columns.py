"""Columns of a data set as arrays, without a Python object for each value."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset


def arrow_column(dataset: Dataset, name: str) -> pa.Array:
    """A column of a data set as one array."""
    column = dataset.select_columns(name).with_format("arrow")[:][name]
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def rows_without(dataset: Dataset, videos: Iterable[str]) -> np.ndarray:
    """The numbers of the rows whose video is none of these, int64."""
    is_among = pc.is_in(arrow_column(dataset, "video"), pa.array(videos, pa.string()))
    return np.flatnonzero(~is_among.to_numpy(zero_copy_only=False))


class VideoRows:
    """The different videos of a data set in the order of their first rows, and the rows of each.

    Args:
        dataset: rows of `load_video_dataset`.

    Attributes:
        videos: the value of the column `video` for each.
        of_row: (num_rows,) int, the number of each row's video.
        last_row: (num_videos,) int, the last row of each.
    """

    def __init__(self, dataset: Dataset):
        column = arrow_column(dataset, "video").dictionary_encode()
        self.videos: pa.Array = column.dictionary
        self.of_row = column.indices.to_numpy()
        self._sorted = np.argsort(self.of_row, kind="stable")
        self._first = np.searchsorted(self.of_row[self._sorted], np.arange(len(self.videos) + 1))
        self.last_row = self._sorted[self._first[1:] - 1]

    def __len__(self) -> int:
        return len(self.videos)

    def rows(self, video: int) -> list[int]:
        """The rows of a video, rising."""
        return self._sorted[self._first[video] : self._first[video + 1]].tolist()
