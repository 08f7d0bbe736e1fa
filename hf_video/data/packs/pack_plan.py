"""Plans the shards of a pack from the sizes of the videos, before any of them is opened."""

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from datasets import Dataset

from hf_video.data.annotation_files import listed
from hf_video.data.columns import VideoRows, arrow_column
from hf_video.data.manifest import CONTENT, ERROR, SIZE
from hf_video.data.stored_videos import stored_sizes
from hf_video.reading.sources import is_url

# The size of a video behind a URL is known only when it has been fetched.
_SIZE_OF_URL = 10 * 10**6
# Network disks answer many at a time.
_THREADS = 16
_AT_A_TIME = 8192
_FOLDER = "folder"
# The columns of a row that decide what is written of it.
_DECIDING = ("key", "split", "label", "labels", "start", "end")


@dataclass(frozen=True)
class PlannedShard:
    """A run of videos of a data set.

    Attributes:
        first, stop: numbers of its first video and of the one after the last, in the order of their first rows.
        first_row: the first row of the first video.
        sources: a digest of what tells whether one of its videos was changed.
    """

    first: int
    stop: int
    first_row: int
    sources: str


@dataclass(frozen=True)
class PackPlan:
    """What is packed, and how it is divided.

    Attributes:
        settings: the options that decide what is written.
        rows: a digest of keys, splits, classes and segments.
        class_names: the class names by id.
        shards: the shards in their order.
    """

    settings: dict[str, Any]
    rows: str
    class_names: list[str]
    shards: list[PlannedShard]

    def facts(self) -> dict[str, Any]:
        """What tells this plan from others, for a file."""
        facts = asdict(self)
        shards = json.dumps(facts.pop("shards"))
        return facts | {"digest": hashlib.sha256(shards.encode()).hexdigest()}

    def difference(self, known: Mapping[str, Any]) -> str | None:
        """How a plan of which the `facts` were put down differs from this one, for a message; None if it does not."""
        told = [
            f"{name.replace('_', '-')} {known['settings'].get(name)}, not {value}"
            for name, value in self.settings.items()
            if known["settings"].get(name) != value
        ]
        if told:
            return f"other settings ({'; '.join(told)})"
        if (known["class_names"], known["rows"]) != (self.class_names, self.rows):
            return "other data: keys, splits, classes or segments differ"
        same = known["digest"] == self.facts()["digest"]
        return None if same else "videos that were changed since: they have other sizes or dates"


def plan_pack(rows: Dataset, listing: VideoRows, settings: Mapping[str, Any], class_names: Sequence[str]) -> PackPlan:
    """Divides the videos of a data set into shards of about `settings["shard_size"]` bytes. A larger video has a shard
    of its own. The same data give the same plan. Folders of frames raise `ValueError`."""
    sources = _find_sources(rows, listing)
    if folders := [video.as_py() for video, (_, kind) in zip(listing.videos, sources, strict=True) if kind == _FOLDER]:
        raise ValueError(
            f"{len(folders)} videos are folders of frames, and a pack holds files: {listed(folders)}. Encode them "
            "first, for example with `ffmpeg -framerate 25 -i %05d.jpg -crf 17 VIDEO.mp4`."
        )
    firsts, filled = [0], 0
    for number, (size, _) in enumerate(sources):
        if filled and filled + size > settings["shard_size"]:
            firsts.append(number)
            filled = 0
        filled += size
    shards = []
    for first, stop in zip(firsts, [*firsts[1:], len(sources)], strict=True):
        digest = hashlib.sha256(json.dumps(sources[first:stop]).encode()).hexdigest()
        shards.append(PlannedShard(first, stop, listing.rows(first)[0], digest))
    return PackPlan(dict(settings), _digest_rows(rows), [*class_names], shards)


def _digest_rows(rows: Dataset) -> str:
    columns = rows.select_columns([name for name in rows.column_names if name in _DECIDING])
    digest = hashlib.sha256()
    for first in range(0, len(rows), _AT_A_TIME):
        digest.update(json.dumps(columns[first : first + _AT_A_TIME], sort_keys=True).encode())
    return digest.hexdigest()


def _find_sources(rows: Dataset, listing: VideoRows) -> list[tuple[int, Any]]:
    """The size in bytes of each video, and what changes with its content: what a manifest says, else what the disk
    says. The size of a video that is not there is 0."""
    first_rows = [listing.rows(video)[0] for video in range(len(listing))]
    nothing = [None] * len(first_rows)
    known = [
        arrow_column(rows, name).take(pa.array(first_rows)).to_pylist() if name in rows.column_names else nothing
        for name in (SIZE, CONTENT, ERROR)
    ]
    stored = stored_sizes(rows)
    found: list[tuple[int, Any]] = []
    asked: list[int] = []
    paths = listing.videos.to_pylist()
    for video, (size, content, error) in enumerate(zip(*known, strict=True)):
        found.append((0, "broken"))
        if size is not None and content is not None:
            found[video] = size, content
        elif (size := stored[first_rows[video]]) is not None:
            found[video] = size, "stored"
        elif is_url(paths[video]):
            found[video] = _SIZE_OF_URL, "url"
        elif error is None:
            asked.append(video)
    with ThreadPoolExecutor(_THREADS) as threads:
        for first in range(0, len(asked), _AT_A_TIME):
            some = asked[first : first + _AT_A_TIME]
            for video, source in zip(some, threads.map(_ask_disk, (paths[video] for video in some)), strict=True):
                found[video] = source
    return found


def _ask_disk(path: str) -> tuple[int, Any]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, "missing"
    return (0, _FOLDER) if stat.S_ISDIR(found.st_mode) else (found.st_size, found.st_mtime_ns)
