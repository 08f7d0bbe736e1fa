"""Writes the manifest of a data set while its videos are inspected."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, concatenate_datasets

from hf_video.data.columns import VideoRows, arrow_column, is_multi_label, label_names
from hf_video.data.inspection import InspectedVideo
from hf_video.data.manifest import DECODED, KEY, OPENED, manifest_schema
from hf_video.data.places import segment_suffix, video_id
from hf_video.data.stored_videos import BYTES, is_packed
from hf_video.reading.sources import is_url, public_url

_ROWS_AT_A_TIME = 8192


def check_can_list(splits: Mapping[str, Dataset]) -> None:
    """Raises `ValueError` for videos that are stored inside a data set or a pack: a manifest lists files."""
    if any(BYTES in split.column_names for split in splits.values()):
        raise ValueError(
            "A manifest lists files, but videos of this data set are stored inside its table: train on the data set "
            "itself, or leave out --output."
        )
    if any(map(is_packed, splits.values())):
        raise ValueError(
            "A pack has a manifest already, its index: give the pack itself to other commands, or leave out --output."
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
    """Writes a manifest. Few rows are kept at a time.

    Args:
        path: The file to write.
        splits: Data sets of `load_video_dataset`, without videos that are stored inside.
        inspected: A result for each video of the splits, in the order of their first rows.
        base: The folder from which keys count: a key is the path without suffix. Where several rows would have one
            key, it also has the suffix or segment, or a number.
        decoded: Whether the videos were decoded to their ends.
        folder: Where the manifest will be: paths count from there if they are below.
    """
    rows = concatenate_datasets([*splits.values()])
    multi_label, names = is_multi_label(rows), label_names(rows)
    schema = manifest_schema(multi_label)
    keys = arrow_column(rows, KEY) if KEY in rows.column_names else make_keys(rows, base)
    split_names = chain.from_iterable([name] * len(split) for name, split in splits.items())
    results = _of_rows(VideoRows(rows), inspected)
    column = "labels" if multi_label else "label"
    path_of = _paths_from(folder)
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, len(rows), _ROWS_AT_A_TIME):
            part = rows.select_columns([column, "start", "end"])[first : first + _ROWS_AT_A_TIME]
            videos = [*islice(results, _ROWS_AT_A_TIME)]
            found: dict[str, Any] = {
                KEY: keys[first : first + len(videos)],
                "path": [path_of(video.path) for video in videos],
                "split": [*islice(split_names, len(videos))],
                column: [[names[id] for id in ids] if multi_label else names[ids] for ids in part[column]],
                "start": part["start"],
                "end": part["end"],
                "duration": [video.duration for video in videos],
                "frames": [video.num_frames if video.error is None else None for video in videos],
                "size": [video.size for video in videos],
                "checked": [DECODED if decoded else OPENED] * len(videos),
                "error": [video.error for video in videos],
                "content": [video.content for video in videos],
            }
            writer.write_table(pa.table(found, schema=schema))


def _paths_from(folder: Path) -> Callable[[str], str]:
    """Gives the path of a video from a folder if it lies below, also where links lead there; else the whole path."""
    resolve = cache(os.path.realpath)
    prefix = f"{folder}{os.sep}"

    def path_of(video: str) -> str:
        if is_url(video) or video.startswith(prefix):
            return video.removeprefix(prefix)
        place, name = os.path.split(video)
        found = Path(resolve(place), name)
        return str(found.relative_to(resolve(folder))) if found.is_relative_to(resolve(folder)) else video

    return path_of


def _of_rows(listed: VideoRows, inspected: Iterable[InspectedVideo]) -> Iterator[InspectedVideo]:
    """The result for each row. A result is kept until the last row of its video."""
    kept: dict[int, InspectedVideo] = {}
    results = enumerate(inspected)
    for row, video in enumerate(listed.of_row.tolist()):
        if video not in kept:
            number, kept[video] = next(results)
            if number != video:
                raise RuntimeError(f"The result {number} came where that of video {video} was expected.")
        yield kept.pop(video) if listed.last_row[video] == row else kept[video]
    next(results, None)  # lets the generator end


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
    found = [
        key + segment_suffix(start, end) if key in shared else key
        for key, (start, end) in zip(keys.to_pylist(), times, strict=True)
    ]
    taken: set[str] = set()
    for row, key in enumerate(found):
        numbered = (f"{key}#{number}" for number in count(2))
        found[row] = key if key not in taken else next(name for name in numbered if name not in taken)
        taken.add(found[row])
    return pa.array(found, pa.string())


def _bare_url(url: str) -> str:
    return public_url(url).removesuffix("?...")


def _repeated(keys: pa.Array) -> set[str]:
    counts = pc.value_counts(keys)
    return set(counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist())
