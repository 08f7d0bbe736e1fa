"""Reads every video of a data set, finds those that are broken, and writes a manifest."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from accelerate.utils import gather_object
from datasets import Dataset, concatenate_datasets
from torch import distributed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from hf_video.io import check_regular_file
from hf_video.reading import probe_video, read_video
from hf_video.reading.sources import is_url, kind_of, public_url

from .columns import VideoRows, arrow_column, is_multi_label, label_names
from .manifest import CHECKED, CONTENT, DECODED, DURATION, ERROR, FRAMES, KEY, OPENED, SIZE, manifest_schema
from .places import free_name, segment_suffix, video_id
from .stored_videos import BYTES, content_digest, is_packed, open_video
from .stored_videos import COLUMNS as PACKED_COLUMNS

# Frames decoded at a time: a video need not fit into memory.
_CHUNK = 64

# Rows of a manifest that are Python objects at a time.
_ROWS_AT_A_TIME = 8192
_RESULTS = pa.schema(
    {
        **dict.fromkeys(("path", "error", "content"), pa.string()),
        **dict.fromkeys(("num_frames", "size"), pa.int64()),
        "duration": pa.float64(),
    }
)

# Start and end in seconds; None stands for the beginning or the end of the video.
Segment = tuple[float | None, float | None]


@dataclass(frozen=True)
class InspectedVideo:
    """The result of reading a video.

    Attributes:
        path: the file, the folder of frames, or the name of a video that is stored inside a data set.
        error: why the video cannot be read, None if it can be.
        num_frames: number of frames, 0 if unknown.
        duration: duration in seconds, None if unknown.
        height, width: size of a frame in pixels, 0 if unknown.
        size: bytes of the file, None if it is not a file or was not asked for.
        content: its `content_digest`, None if there is none or it was not asked for.
    """

    path: str
    error: str | None = None
    num_frames: int = 0
    duration: float | None = None
    height: int = 0
    width: int = 0
    size: int | None = None
    content: str | None = None


def inspect_videos(
    dataset: Dataset, *, decode: bool = True, num_workers: int = 1, progress: bool = True
) -> list[InspectedVideo]:
    """Reads every video of a data set once.

    Args:
        dataset: rows of `load_video_dataset`. A segment without a frame is an error of its video.
        decode: whether to decode all frames; otherwise only the structure of a file and one frame are read.
        num_workers: number of processes that read videos; this one reads them if it is 0 or 1.
        progress: whether to show a progress bar.

    Returns:
        One entry for each video, in the order of their first rows. A broken video raises no error.
    """
    return list(iterate_inspected(dataset, decode=decode, num_workers=num_workers, progress=progress))


def iterate_inspected(
    dataset: Dataset,
    *,
    decode: bool = True,
    digest: bool = False,
    num_workers: int = 1,
    progress: bool = True,
    chosen: Sequence[int] | None = None,
) -> Iterator[InspectedVideo]:
    """The results of `inspect_videos` one after the other. Few are kept at a time.

    Args:
        dataset, decode, num_workers, progress: see `inspect_videos`.
        digest: whether to find out size and `content_digest` of each file, too.
        chosen: the numbers of the videos to read, in the order of their first rows; by default all.
    """
    videos = _Videos(dataset, decode, digest)
    numbers = range(len(videos)) if chosen is None else chosen
    loader = DataLoader(
        videos,
        batch_size=None,
        sampler=numbers,
        num_workers=num_workers if num_workers > 1 else 0,
        generator=torch.Generator(),  # a loader draws a seed, which must not be missing in the draws of a training
    )
    yield from tqdm(loader, total=len(numbers), desc="Checking videos", disable=None if progress else True)


def find_broken(dataset: Dataset, *, decode: bool, num_workers: int = 1, at_most: int | None = None) -> dict[str, str]:
    """The videos that cannot be read, with the reasons; of more than `at_most`, a random sample is read. If there are
    several processes, each of them must call this: each reads its share of the videos, and all get the whole answer.
    """
    together = distributed.is_available() and distributed.is_initialized()
    rank, num_processes = (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)
    num_videos = pc.count_distinct(arrow_column(dataset, "video")).as_py()
    if at_most is None or num_videos <= at_most:
        chosen = np.arange(num_videos)
    else:
        chosen = np.sort(np.random.default_rng(0).choice(num_videos, at_most, replace=False))
    share = chosen[rank::num_processes].tolist()
    found = [
        (number, video.path, video.error)
        for number, video in zip(
            share,
            iterate_inspected(dataset, decode=decode, num_workers=num_workers, progress=rank == 0, chosen=share),
            strict=True,
        )
        if video.error is not None
    ]
    everywhere = gather_object(found) if together else found
    return {path: error for _, path, error in sorted(everywhere)}


class _Videos(torch.utils.data.Dataset):
    """The results for the videos of a data set, in the order of their first rows."""

    def __init__(self, dataset: Dataset, decode: bool, digest: bool):
        self.listed = VideoRows(dataset)
        has_times = {"start", "end"} <= {*dataset.column_names} and any(
            arrow_column(dataset, name).null_count < len(dataset) for name in ("start", "end")
        )
        self.times = dataset.select_columns(["start", "end"]) if has_times else None
        needed = ("video", BYTES, *(PACKED_COLUMNS if is_packed(dataset) else ()))
        self.files = dataset.select_columns([name for name in needed if name in dataset.column_names])
        self.decode = decode
        self.digest = digest

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, video: int) -> InspectedVideo:
        rows = self.listed.rows(video)
        segments: list[Segment] = []
        if self.times is not None:
            found = self.times[rows]
            segments = [*zip(found["start"], found["end"], strict=True)]
        return inspect_video(self.files[rows[0]], segments, self.decode, self.digest)


def inspect_video(video: Mapping[str, Any], segments: list[Segment], decode: bool, digest: bool) -> InspectedVideo:
    """What a file holds. What keeps it from being read is in the result."""
    path = video["video"]
    make = partial(InspectedVideo, path)
    try:
        opened = open_video(video)
        is_file = isinstance(opened, str) and kind_of(path) == "path"
        if is_file:
            check_regular_file(path)
        if digest:
            make = partial(make, size=os.path.getsize(path) if is_file else None, content=content_digest(path))
        metadata = probe_video(opened, segments)
        if decode:
            for first in range(0, metadata.total_num_frames, _CHUNK):
                read_video(
                    opened,
                    lambda metadata, first=first: np.arange(first, metadata.total_num_frames)[:_CHUNK],
                )
    except Exception as error:  # Damaged files make decoders raise errors of any kind.
        return make(error=tell_reason(path, error))
    return make(
        num_frames=metadata.total_num_frames,
        duration=metadata.duration,
        height=metadata.height or 0,
        width=metadata.width or 0,
    )


def tell_reason(video: str, error: Exception) -> str:
    """A sentence that says why a video cannot be read, and names it."""
    # Names of frames that are not UTF-8 have characters that no file of text can hold.
    reason = (str(error) or type(error).__name__).encode(errors="backslashreplace").decode()
    return reason if video in reason else f"{video} cannot be read: {reason}"


def check_can_list(splits: Mapping[str, Dataset]) -> None:
    """Raises `ValueError` for videos that are stored inside a data set or a pack: a manifest lists files."""
    if any(BYTES in split.column_names or is_packed(split) for split in splits.values()):
        raise ValueError(
            "A manifest lists files, but these videos are stored inside a data set or a pack: give it to the other "
            "commands as it is, or leave out --output."
        )


def write_manifest(
    path: Path,
    splits: Mapping[str, Dataset],
    inspected: Iterable[InspectedVideo],
    base: Path,
    *,
    decoded: bool,
    folder: Path,
) -> None:
    """Writes a manifest.

    Args:
        path: The file to write.
        splits: Data sets of `load_video_dataset`, without videos that are stored inside.
        inspected: The results of `iterate_inspected` for the rows of all splits.
        base: The folder from which keys count, see `make_keys`.
        decoded: Whether the videos were decoded to their ends.
        folder: Where the manifest will be: paths count from there if they are below.
    """
    rows = concatenate_datasets([*splits.values()])
    label = "labels" if is_multi_label(rows) else "label"
    inspected = iter(inspected)
    parts = iter(lambda: [vars(video) for video in islice(inspected, _ROWS_AT_A_TIME)], [])
    videos = pa.Table.from_batches([pa.RecordBatch.from_pylist(part, _RESULTS) for part in parts])
    paths = pa.array(map(_paths_from(folder), videos["path"].to_pylist()), pa.string())
    results = videos.set_column(0, "path", paths).take(VideoRows(rows).of_row)
    ids, names = arrow_column(rows, label), pa.array(label_names(rows), pa.string())
    is_multi = pa.types.is_list(ids.type)
    columns = {
        KEY: arrow_column(rows, KEY) if KEY in rows.column_names else make_keys(rows, base),
        "path": results["path"],
        "split": pa.array([name for name, split in splits.items() for _ in range(len(split))], pa.string()),
        label: pa.ListArray.from_arrays(ids.offsets, names.take(ids.values)) if is_multi else names.take(ids),
        "start": arrow_column(rows, "start"),
        "end": arrow_column(rows, "end"),
        DURATION: results["duration"],
        FRAMES: pc.if_else(pc.is_null(results["error"]), results["num_frames"], None),
        SIZE: results["size"],
        CHECKED: pa.repeat(DECODED if decoded else OPENED, len(rows)),
        ERROR: results["error"],
        CONTENT: results["content"],
    }
    pq.write_table(pa.table(columns, schema=manifest_schema(is_multi)), path)


def _paths_from(folder: Path) -> Callable[[str], str]:
    """Gives the path of a video from a folder if it lies below it, through links or not; else the whole path."""
    resolve = cache(os.path.realpath)
    prefix = f"{folder}{os.sep}"

    def path_of(video: str) -> str:
        if is_url(video) or video.startswith(prefix):
            return video.removeprefix(prefix)
        place, name = os.path.split(video)
        whole = Path(resolve(place), name)
        return str(whole.relative_to(resolve(folder))) if whole.is_relative_to(resolve(folder)) else video

    return path_of


def make_keys(rows: Dataset, base: Path) -> pa.Array:
    """A key for each row, all different: the path of its video without suffix. Where several rows would have one key,
    it also has the suffix or segment, or a number. What may be a key of access in a URL is not part of it."""
    listed = VideoRows(rows)
    ids = pa.array((video_id(video.as_py(), base) for video in listed.videos), pa.string())
    ways = (
        lambda video: _bare_url(video) if is_url(video) else os.path.relpath(video, base),
        lambda video: f"{_bare_url(video)}-{sha256(video.encode()).hexdigest()[:16]}" if is_url(video) else video,
    )
    for name_of in ways:
        if not (shared := _repeated(ids)):
            break
        pairs = zip(ids.to_pylist(), listed.videos.to_pylist(), strict=True)
        ids = pa.array([name_of(video) if key in shared else key for key, video in pairs], pa.string())
    keys = ids.take(pa.array(listed.of_row))
    if not (shared := _repeated(keys)):
        return keys
    times = zip(*(arrow_column(rows, name).to_pylist() for name in ("start", "end")), strict=True)
    taken: set[str] = set()
    names = (
        key + segment_suffix(start, end) if key in shared else key
        for key, (start, end) in zip(keys.to_pylist(), times, strict=True)
    )
    return pa.array((free_name(name, taken, "#") for name in names), pa.string())


def _bare_url(url: str) -> str:
    return public_url(url).removesuffix("?...")


def _repeated(keys: pa.Array) -> set[str]:
    counts = pc.value_counts(keys)
    return set(counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist())
