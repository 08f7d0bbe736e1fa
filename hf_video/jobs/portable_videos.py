"""Videos that another process can open, without the data set that lists them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from datasets import Dataset

from hf_video.data.stored_videos import BYTES, open_video
from hf_video.data.video_listing import ListedVideo

from .bulk_batches import BulkVideo
from .bulk_parts import Part


@dataclass(frozen=True)
class PortableVideo:
    """A `BulkVideo` with its own row of the data set."""

    id: str
    source: str
    row: dict[str, Any]

    def open(self) -> Any:
        return open_video(self.row)


def make_portable(part: Part) -> Part:
    """A part that can be pickled: videos that a data set lists take their rows with them.

    Raises:
        ValueError: a video is stored inside its data set.
    """
    videos: list[BulkVideo] = []
    for _, group in groupby(part.videos, key=lambda video: id(getattr(video, "rows", None))):
        listed = list(group)
        first = listed[0]
        if isinstance(first, ListedVideo) and first.rows is not None:
            videos += _with_rows(listed, first.rows)
        else:
            videos += listed
    return part._replace(videos=videos)


def _with_rows(videos: Sequence[Any], dataset: Dataset) -> list[PortableVideo]:
    if BYTES in dataset.column_names:
        raise ValueError(
            f"{videos[0].source} is stored inside a data set, which would pass through the memory of Ray: use "
            "--engine local, or pack the videos with `hf-video pack`."
        )
    # Rows that are read one by one take several times as long.
    columns = dataset[[video.row for video in videos]]
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return [PortableVideo(video.id, video.source, row) for video, row in zip(videos, rows, strict=True)]
