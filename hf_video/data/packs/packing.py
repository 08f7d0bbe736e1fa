"""Packs the videos of a data set into shards with an index; `docs/packed_data.md` describes the files.

Each shard is written by one process, read back, and noted. A run that is ended at any moment is continued by the same
call, and the pack comes out the same.
"""

import hashlib
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import active_children
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import torch
from datasets import Dataset, concatenate_datasets
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from tqdm.auto import tqdm

from hf_video.data.annotation_files import listed
from hf_video.data.columns import VideoRows, arrow_column, is_multi_label, label_names
from hf_video.data.inspection import make_keys, tell_reason
from hf_video.data.manifest import (
    CHECKED,
    CONTENT,
    DURATION,
    ERROR,
    FRAMES,
    INDEX_FILE,
    KEY,
    OPENED,
    SIZE,
    load_manifest,
)
from hf_video.data.places import absolute, free_name, segment_suffix
from hf_video.data.stored_videos import BYTES, bytes_digest, check_shards, content_digest, open_bytes, stored_sizes
from hf_video.io import FULL_DISK, StoredFolder, write_error_number
from hf_video.reading import probe_video
from hf_video.reading.sources import describe, is_url
from hf_video.settings import few

from .pack_files import (
    ROW,
    PackedCounts,
    ShardWriter,
    encode_part,
    part_schema,
    read_pack_facts,
    verify_shard,
    video_suffix,
    write_index,
)
from .video_cutting import Piece, PieceOfClip, cut_video

# Gone when the pack is whole.
_WORKING = ".packing"
_PLAN = f"{_WORKING}/plan.json"
# The columns of a row that decide what is written of it.
_DESCRIBING = (KEY, "split", "label", "labels", "start", "end")
# The size of a video behind a URL is known only when it has been fetched.
_SIZE_OF_URL = 10 * 10**6
# Network disks answer many at a time.
_THREADS = 16
_AT_A_TIME = 8192
_FOLDER = "folder"


def pack_videos(
    splits: Mapping[str, Dataset],
    folder: StoredFolder,
    base: Path,
    *,
    shard_size: int = 10**9,
    max_duration: float | None = None,
    num_workers: int = 1,
    progress: bool = True,
) -> PackedCounts | None:
    """Writes a pack, or what is missing of it.

    A video that cannot be read has a row with an `error` in the index, and is not in the pack.

    Args:
        splits: Data sets of `load_video_dataset`.
        folder: Where to write: a folder without other files. Of a local one, the caller holds the lock.
        base: The folder that keys count from, unless the data have keys.
        shard_size: Bytes of a shard, about. A larger video has a shard of its own.
        max_duration: Longer videos, in seconds, are cut at key frames, without encoding them again, see `cut_video`.
            Segments keep their frames. A video that cannot be cut is packed whole.
        num_workers: Processes that write shards; this one writes them if it is 0 or 1.
        progress: Whether to show a progress bar.

    Returns:
        What the pack holds; None if it was finished before.

    Raises:
        ValueError: The folder has other files, or a pack of other data or settings; or videos are folders of frames.
        StaleManifestError: The pack was finished before, or the data are a pack, and a shard is missing or too short.
        OSError: Writing failed, or a shard is not what was written.
    """
    for split in splits.values():
        check_shards(split)
    rows = _with_keys(splits, base)
    listing = VideoRows(rows)
    plan = _plan_pack(rows, listing, {"shard_size": shard_size, "max_duration": max_duration})
    if _is_finished(folder, plan):
        for split in load_manifest({"": f"{absolute(str(folder))}/{INDEX_FILE}"}).values():
            check_shards(split)
        folder.remove(_WORKING)
        return None
    if folder.read(_PLAN) is None:
        with folder.writing(_PLAN) as file:
            file.write(json.dumps(plan.facts()).encode())
    shards = _Shards(rows, listing, plan, folder)
    loader = DataLoader(
        shards,
        batch_size=None,
        num_workers=num_workers if num_workers > 1 else 0,
        in_order=False,  # no worker waits for another
        generator=torch.Generator(),  # a loader draws a seed, which must not be missing in the draws of a training
        worker_init_fn=_exit_when_terminated,
    )
    disable = None if progress else True
    others = active_children()
    try:
        with tqdm(total=len(listing), initial=shards.num_done, desc="Packing", unit="video", disable=disable) as bar:
            for _ in loader:
                bar.update()
    except BaseException:
        for worker in set(active_children()).difference(others):
            worker.terminate()
            worker.join()
        raise
    parts = [_part_of(number) for number in range(len(plan.shards))]
    counts = write_index(folder, parts, plan.facts(), max_duration)
    folder.remove(_WORKING)
    return counts


def _exit_when_terminated(worker: int) -> None:
    """Makes a process that is terminated remove the file that it is writing."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())


@dataclass(frozen=True)
class _PlannedShard:
    """The videos from `first` up to `stop`, in the order of their first rows; the first row of the first one; and a
    digest of what tells whether one of them was changed."""

    first: int
    stop: int
    first_row: int
    sources: str


@dataclass(frozen=True)
class _PackPlan:
    """What is packed, and how it is divided: the options that decide what is written, a digest of keys, splits,
    classes and segments, the class names by id, and the shards in their order."""

    settings: dict[str, Any]
    rows: str
    class_names: list[str]
    shards: list[_PlannedShard]

    def facts(self) -> dict[str, Any]:
        """What tells this plan from others, for a file."""
        facts = asdict(self)
        return facts | {"digest": _digest(facts.pop("shards"))}

    def difference(self, known: Mapping[str, Any]) -> str | None:
        """How the plan with the `facts` that are known differs from this one, for a message; None if it does not."""
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


def _plan_pack(rows: Dataset, listing: VideoRows, settings: dict[str, Any]) -> _PackPlan:
    """Divides the videos of a data set into shards of about `settings["shard_size"]` bytes, before any of them is
    opened. A larger video has a shard of its own. The same data give the same plan."""
    sources = _find_sources(rows, listing)
    paths = listing.videos.to_pylist()
    if folders := [path for path, (_, kind) in zip(paths, sources, strict=True) if kind == _FOLDER]:
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
    shards = [
        _PlannedShard(first, stop, listing.rows(first)[0], _digest(sources[first:stop]))
        for first, stop in pairwise([*firsts, len(sources)])
    ]
    columns = rows.select_columns([name for name in rows.column_names if name in _DESCRIBING])
    digest = hashlib.sha256()
    for first in range(0, len(rows), _AT_A_TIME):
        digest.update(json.dumps(columns[first : first + _AT_A_TIME], sort_keys=True).encode())
    return _PackPlan(settings, digest.hexdigest(), label_names(rows), shards)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _find_sources(rows: Dataset, listing: VideoRows) -> list[tuple[int, Any]]:
    """The size in bytes of each video, and what changes with its content: what a manifest says, else what the disk
    says. The size of a video that is not there is 0."""
    first_rows = [listing.rows(video)[0] for video in range(len(listing))]
    known = [
        arrow_column(rows, name).take(pa.array(first_rows)).to_pylist()
        if name in rows.column_names
        else [None] * len(listing)
        for name in (SIZE, CONTENT, ERROR)
    ]
    stored = stored_sizes(rows)
    paths = listing.videos.to_pylist()
    sources: list[tuple[int, Any]] = []
    asked = []
    for video, (size, content, error) in enumerate(zip(*known, strict=True)):
        if size is not None and content is not None:
            sources.append((size, content))
        elif (size := stored[first_rows[video]]) is not None:
            sources.append((size, "stored"))
        elif is_url(paths[video]):
            sources.append((_SIZE_OF_URL, "url"))
        else:
            sources.append((0, "broken"))
            asked += [video] if error is None else []
    with ThreadPoolExecutor(_THREADS) as threads:
        for first in range(0, len(asked), _AT_A_TIME):
            some = asked[first : first + _AT_A_TIME]
            for video, source in zip(some, threads.map(_ask_disk, [paths[video] for video in some]), strict=True):
                sources[video] = source
    return sources


def _ask_disk(path: str) -> tuple[int, Any]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, "missing"
    return (0, _FOLDER) if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)


def _with_keys(splits: Mapping[str, Dataset], base: Path) -> Dataset:
    """The rows of all splits, with the columns `split` and `key`."""
    rows = concatenate_datasets([*splits.values()])
    rows = rows.add_column("split", [name for name, split in splits.items() for _ in range(len(split))])
    return rows if KEY in rows.column_names else rows.add_column(KEY, make_keys(rows, base).to_pylist())


def _is_finished(folder: StoredFolder, plan: _PackPlan) -> bool:
    """Whether the folder has the whole pack. Refuses a folder with anything but this pack or a part of it."""
    names = [name for name in folder.names() if not name.startswith(".")]
    known = None
    if INDEX_FILE in names:
        known = read_pack_facts(folder)
    elif (text := folder.read(_PLAN)) is not None:
        known = json.loads(text)
    if known is None:
        if names:
            raise ValueError(f"{folder} has other files ({few(names)}): choose another folder for the pack.")
        return False
    if difference := plan.difference(known):
        raise ValueError(
            f"{folder} has {'a pack' if INDEX_FILE in names else 'the beginning of a pack'} of {difference}. Choose "
            "another folder, or take the same data and settings."
        )
    return INDEX_FILE in names


def _shard_name(number: int) -> str:
    return f"shard-{number:05d}.tar"


def _part_of(number: int) -> str:
    return f"{_WORKING}/{_shard_name(number)}.parquet"


class _Shards(IterableDataset):
    """Writes the shards that are missing; an item is the number of a video that is done."""

    def __init__(self, rows: Dataset, listing: VideoRows, plan: _PackPlan, folder: StoredFolder):
        self.rows, self.listing, self.plan, self.folder = rows, listing, plan, folder
        self.names = label_names(rows)
        # Readers of the shards by themselves want the same members beside each video.
        self.has_ids = "label" in rows.column_names and len(listing) == len(rows)
        self.schema = part_schema(is_multi_label(rows), self.names)
        self.about = rows.select_columns([name for name in rows.column_names if name in _DESCRIBING])
        noted, written = {*folder.names(_WORKING)}, {*folder.names()}
        self.missing = [
            n for n in range(len(plan.shards)) if Path(_part_of(n)).name not in noted or _shard_name(n) not in written
        ]
        in_missing = sum(plan.shards[n].stop - plan.shards[n].first for n in self.missing)
        self.num_done = len(listing) - in_missing

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        for number in self.missing[worker.id :: worker.num_workers] if worker else self.missing:
            yield from self._write(number)

    def _write(self, number: int) -> Iterator[int]:
        shard, name = self.plan.shards[number], _shard_name(number)
        found: list[dict[str, Any]] = []
        with self.folder.writing(name) as file:
            writer = ShardWriter(file)
            for video in range(shard.first, shard.stop):
                found += [row if row[ERROR] else {**row, "shard": name} for row in self._add(writer, video)]
                yield video
            writer.close()
        with self.folder.open(name) as file:
            verify_shard(file, writer.digests, f"{self.folder}/{name}")
        with self.folder.writing(_part_of(number)) as file:
            file.write(encode_part(found, self.schema))

    def _add(self, writer: ShardWriter, video: int) -> list[dict[str, Any]]:
        """Appends a video to a shard; its rows in the index."""
        row = self.rows[self.listing.rows(video)[0]]
        clips = [self._describe(number) for number in self.listing.rows(video)]
        # An address may hold keys, and a pack may be given away.
        source = describe(row["video"])
        facts: dict[str, Any] = {"path": source, CHECKED: row.get(CHECKED) or OPENED, ERROR: row.get(ERROR)}
        with ExitStack() as stack:
            try:
                facts |= _identify(row)
                if facts[ERROR] is None:
                    file = stack.enter_context(open_bytes(row))
                    facts |= _examine(file, row, clips)
            except Exception as error:  # Damaged files make decoders raise errors of any kind.
                if isinstance(error, MemoryError) or write_error_number(error) in FULL_DISK:
                    raise
                facts[ERROR] = tell_reason(source, error)
            if facts[ERROR] is not None:
                return [{**clip, **facts} for clip in clips]
            suffix = video_suffix(row["video"])
            key = clips[0][KEY].removesuffix(segment_suffix(clips[0]["start"], clips[0]["end"]))
            longest = self.plan.settings["max_duration"]
            if longest is not None and (facts[DURATION] or 0) > longest:
                times = [(clip["start"], clip["end"]) for clip in clips]
                cut = stack.enter_context(cut_video(file, suffix, times, longest))
                if cut is not None:
                    return self._add_pieces(writer, key, suffix, facts, clips, cut)
            member = writer.add(key, suffix, file, *self._tell(key, clips, facts[DURATION]))
        return [{**clip, **facts, **member._asdict()} for clip in clips]

    def _add_pieces(
        self,
        writer: ShardWriter,
        key: str,
        suffix: str,
        facts: Mapping[str, Any],
        clips: Sequence[Mapping[str, Any]],
        cut: Sequence[Sequence[PieceOfClip]],
    ) -> list[dict[str, Any]]:
        """Appends the pieces of a video to a shard; their rows in the index. A row of the whole video becomes one for
        each piece, whose key says where it lies in the video."""
        of_piece: dict[Piece, list[dict[str, Any]]] = {}
        rows = []
        taken = {clip[KEY] for clip in clips}
        for clip, places in zip(clips, cut, strict=True):
            for piece, start, end in places:
                name = clip[KEY]
                if clip["start"] is None and clip["end"] is None:
                    name = name.removesuffix(segment_suffix(None, None)) + _time_of(piece)
                    name = free_name(name, taken, "#")
                row = {**clip, KEY: name, "start": start, "end": end}
                of_piece.setdefault(piece, []).append(row)
                rows.append((row, piece))
        found = {}
        for piece, inside in of_piece.items():
            name = key + _time_of(piece)
            with open(piece.path, "rb") as file:
                member = writer.add(name, suffix, file, *self._tell(name, inside, piece.duration))
            about = {CONTENT: content_digest(piece.path), FRAMES: piece.num_frames, DURATION: piece.duration}
            found[piece] = {**facts, **about, **member._asdict()}
        return [{**row, **found[piece]} for row, piece in rows]

    def _tell(
        self, key: str, clips: Sequence[Mapping[str, Any]], duration: float | None
    ) -> tuple[dict[str, Any], int | None]:
        """What stands beside a video in its shard: its clips, and the class id if all videos have one. Each clip has
        numbers as start and end, for readers that take the types of all samples from the first ones."""
        segments = [
            {name: value for name, value in clip.items() if name != ROW}
            | {"start": clip["start"] or 0.0, "end": duration if clip["end"] is None else clip["end"]}
            for clip in clips
        ]
        return {KEY: key, "segments": segments}, self.names.index(clips[0]["label"]) if self.has_ids else None

    def _describe(self, number: int) -> dict[str, Any]:
        """A row of the data set, by the names of its classes."""
        row = self.about[number]
        if "label" in row:
            classes: dict[str, Any] = {"label": self.names[row["label"]]}
        else:
            classes = {"labels": [self.names[label] for label in row["labels"]]}
        return {ROW: number, KEY: row[KEY], "split": row["split"], **classes, "start": row["start"], "end": row["end"]}


def _time_of(piece: Piece) -> str:
    """The end of a key: seconds in the source, to milliseconds."""
    return segment_suffix(round(piece.start, 3), round(piece.end, 3))


def _identify(row: Mapping[str, Any]) -> dict[str, Any]:
    """Size and `content_digest` of a video; those of its manifest if there is one."""
    video = row["video"]
    if row.get(CONTENT) is not None:
        return {SIZE: row[SIZE], CONTENT: row[CONTENT]}
    if row.get(BYTES) is not None:
        return {SIZE: len(row[BYTES]), CONTENT: bytes_digest(row[BYTES])}
    return {SIZE: None if is_url(video) else os.path.getsize(video), CONTENT: content_digest(video)}


def _examine(file: BinaryIO, row: Mapping[str, Any], clips: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Number of frames and duration of a video, in which each clip must have a frame. A manifest is trusted."""
    if row.get(CHECKED) is not None and row[FRAMES] is not None:
        return {FRAMES: row[FRAMES], DURATION: row[DURATION]}
    segments = [(clip["start"], clip["end"]) for clip in clips if (clip["start"], clip["end"]) != (None, None)]
    metadata = probe_video(file, segments)
    return {FRAMES: metadata.total_num_frames, DURATION: metadata.duration}
