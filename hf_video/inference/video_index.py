"""An index of videos: how their clips are read, and the vectors of all clips with path, start and end."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import torch

from hf_video.io import StoredFolder
from hf_video.processing import VideoClipProcessor
from hf_video.reading.sources import kind_of

from .windows import window_batches

# What a run of `hf-video index` notes about its rows; hidden, as of every folder of Parquet parts.
SETTINGS_FILE = ".bulk.json"
# Columns of a row, which is one clip.
FACTS = ["key", "path", "start", "end"]


class IndexedClip(NamedTuple):
    """A clip of a video.

    Attributes:
        pixel_values: (num_frames, num_channels, height, width).
        start, end: seconds after the first frame of the video. The end of a folder of frames is 0.
    """

    pixel_values: torch.Tensor
    start: float
    end: float


def read_clips(
    processor: VideoClipProcessor,
    source: Any,
    windows: dict[str, Any] | None = None,
    *,
    source_fps: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> Iterator[IndexedClip]:
    """The clips of a video that an index has.

    Args:
        processor: prepares the frames.
        source: what `read_video` takes.
        windows: options of [`window_batches`]. None takes one clip of the whole video, as the processor samples it.
        source_fps: rate of a folder of frames.
        dtype: dtype of the windows.

    Raises:
        VideoReadError: the video cannot be read, or is damaged.
    """
    if windows is None:
        found = processor(source, num_clips=1, num_crops=1, return_metadata=True, return_tensors="pt")
        clip, metadata = found[processor.model_input_names[0]][0], found["video_metadata"][0]
        yield IndexedClip(clip, 0.0, metadata.duration or 0.0)
        return
    is_frame_folder = isinstance(source, str) and kind_of(source) == "folder"
    options = windows | {"source_fps": source_fps if is_frame_folder else None, "dtype": dtype}
    for batch in window_batches(processor, source, **options):
        yield IndexedClip(batch.pixel_values[0], batch.starts[0], batch.ends[0])


@dataclass
class VideoIndex:
    """The clips of videos, and their vectors.

    Attributes:
        place: path or URL of the folder.
        settings: what the vectors follow from, and in `notes` the name of the model.
        rows: a table with `key`, `path`, `start` and `end` of each clip.
        vectors: (num_clips, width) float32.
    """

    place: str
    settings: dict[str, Any]
    rows: pa.Table
    vectors: np.ndarray

    def find(self, vector: np.ndarray, top_k: int, *, cosine: bool = False) -> tuple[list[int], list[float]]:
        """The numbers of the rows with the largest products with a vector (width,), the largest first, and the
        products; or the same of the cosines."""
        vectors, query = torch.from_numpy(self.vectors), torch.from_numpy(vector)
        scores = vectors @ query
        if cosine:
            scores /= vectors.norm(dim=1) * query.norm()
        best = scores.topk(min(top_k, len(scores)))
        return best.indices.tolist(), best.values.tolist()

    def path(self, row: int) -> str:
        """The path of the video of a row, or its URL or name. In the files, bytes that are not UTF-8 are escaped."""
        path = self.rows["path"][row].as_py()
        original = re.sub(r"\\udc([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), path)
        return original if os.path.lexists(original) else path


def open_index(place: str | os.PathLike) -> VideoIndex:
    """The index that `hf-video index` wrote into a folder. Vectors are copied once, from Arrow's memory.

    Raises:
        FileNotFoundError: there is no index.
        ValueError: the folder has rows of another command, or no clips.
    """
    folder = StoredFolder(place)
    text = folder.read(SETTINGS_FILE)
    try:
        settings = {} if text is None else json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"{folder}/{SETTINGS_FILE} is damaged ({error}): make the index again, in another folder."
        ) from error
    if settings.get("task") != "index":
        kind = FileNotFoundError if text is None else ValueError
        raise kind(f"{folder} is no index of videos: `hf-video index VIDEOS --model M --output {folder}` writes one.")
    try:
        rows, vectors = _read_clips(folder, settings["width"])
    except (pa.ArrowInvalid, OSError) as error:  # Arrow raises both for damaged files
        raise ValueError(
            f"A part of {folder} cannot be read. If it is damaged, the same `hf-video index` again makes it anew "
            f"({error})"
        ) from error
    if not rows:
        raise ValueError(f"{folder} has no clip of a video: none was read without an error.")
    return VideoIndex(str(folder), settings, pa.Table.from_batches(rows), vectors)


def _read_clips(folder: StoredFolder, width: int) -> tuple[list[pa.RecordBatch], np.ndarray]:
    """The facts of the clips without an error, in batches, and their vectors (num_clips, width)."""
    dataset = _dataset(folder)
    vectors = np.empty((dataset.count_rows() if dataset else 0, width), np.float32)
    rows, filled = [], 0
    for batch in dataset.to_batches(columns=[*FACTS, "vector", "error"]) if dataset else ():
        if batch["error"].null_count < len(batch):
            batch = batch.filter(pc.is_null(batch["error"]))
        if len(batch):
            vectors[filled : filled + len(batch)] = batch["vector"].flatten().to_numpy().reshape(-1, width)
            filled += len(batch)
            rows.append(batch.select(FACTS))
    return rows, vectors[:filled]


def _dataset(folder: StoredFolder) -> Any:
    """The rows of all parts; None if there are none."""
    system, root = folder.find()
    names = [name for name in folder.names() if name.startswith("part-") and name.endswith(".parquet")]
    files = [f"{root}/{name}" for name in names]
    return ds.dataset(files, format="parquet", filesystem=system) if files else None
