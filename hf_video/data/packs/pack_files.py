"""The files of a pack: shards in the layout of WebDataset, and the index with a row for each clip."""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hf_video.data.manifest import CLASS_NAMES, INDEX_FILE, OFFSET, SHA256, SHARD, manifest_schema
from hf_video.data.places import free_name
from hf_video.io import StoredFolder
from hf_video.reading.sources import is_url

_CHUNK = 2**20
_WAY_OUT = "Check the disk or network, and run the same command again: it writes this shard anew."
# The entry in its metadata that says what was packed.
_PACK = b"hf_video_pack"
# In a part: the number of the row in the data set that a row of the index is from.
ROW = "row"
_ROWS_AT_A_TIME = 2**16


class Member(NamedTuple):
    """A video in a shard: its name there, the place of its first byte, its size in bytes, and its SHA-256."""

    path: str
    offset: int
    size: int
    sha256: str


class ShardWriter:
    """Appends samples to an empty file; `digests` holds offset and SHA-256 of each member, by name."""

    def __init__(self, file: BinaryIO):
        self._tar: Any = tarfile.TarFile(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, copybufsize=_CHUNK)
        self._stems: set[str] = set()
        self.digests: dict[str, tuple[int, str]] = {}

    def add(self, key: str, suffix: str, video: BinaryIO, facts: Mapping[str, Any], label: int | None) -> Member:
        """Appends a sample. A large video is never in memory as a whole.

        Args:
            key: decides the name, in which dots become underscores.
            suffix: of the video, with its dot.
            video: an open file, which is read from its start.
            facts: content of the `.json` member.
            label: class id in the `.cls` member; None for no such member.

        Raises:
            OSError: writing failed, or the video was cut off meanwhile.
        """
        stem = self._choose_stem(key)
        size = video.seek(0, io.SEEK_END)
        video.seek(0)
        member = self._append(f"{stem}{suffix}", video, size)
        texts = {".json": json.dumps(facts, ensure_ascii=False)} | ({} if label is None else {".cls": str(label)})
        for ending, text in texts.items():
            content = text.encode()
            self._append(stem + ending, io.BytesIO(content), len(content))
        return member

    def close(self) -> None:
        """Writes the end of the archive. The file stays open."""
        self._tar.close()

    def _choose_stem(self, key: str) -> str:
        """A relative path without dots that no other sample has."""
        parts = [part.replace(".", "_") for part in key.split("/") if part]
        return free_name("/".join(parts) or "video", self._stems, "_")

    def _append(self, name: str, file: BinaryIO, size: int) -> Member:
        # The rest of a `TarInfo` is the same everywhere: owner and time are zero.
        header = tarfile.TarInfo(name)
        header.size = size
        source = _Hashing(file)
        try:
            self._tar.addfile(header, source)
        except OSError as error:
            if error.errno is not None:
                raise
            raise OSError(f"{getattr(file, 'name', name)} became shorter while it was packed: {error}") from error
        self._tar.members = []  # otherwise all headers stay in memory
        padded = -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        self.digests[name] = self._tar.offset - padded, source.sha256.hexdigest()
        return Member(name, self._tar.offset - padded, size, self.digests[name][1])


def verify_shard(file: BinaryIO, digests: Mapping[str, tuple[int, str]], name: str) -> None:
    """Reads a shard, and raises `OSError` if a member is not what `ShardWriter` wrote by its `digests`."""
    found = {}
    try:
        tar: Any
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for header in tar:
                source = _Hashing(tar.extractfile(header) or io.BytesIO())
                while source.read(_CHUNK):
                    pass
                found[header.name] = header.offset_data, source.sha256.hexdigest()
                tar.members = []  # otherwise the headers of all members stay in memory
    except tarfile.TarError as error:
        raise OSError(f"{name} cannot be read back: {error}. {_WAY_OUT}") from error
    if found != digests:
        wrong = next((each for each in digests if found.get(each) != digests[each]), "a member that nobody wrote")
        raise OSError(f"{name} is not what was written: {wrong} differs when it is read back. {_WAY_OUT}")


def video_suffix(video: str) -> str:
    """The suffix of a video by its path or URL; `.mp4` if it has none."""
    found = re.search(r"\.[A-Za-z0-9]{1,5}$", re.sub(r"[?#].*$", "", video) if is_url(video) else video)
    return found[0] if found else ".mp4"


class _Hashing:
    """A file that is read, and the SHA-256 of the bytes read so far."""

    def __init__(self, file: Any):
        self._file = file
        self.sha256 = hashlib.sha256()

    def read(self, size: int) -> bytes:
        piece = self._file.read(size)
        self.sha256.update(piece)
        return piece


@dataclass
class PackedCounts:
    """What a pack holds.

    Attributes:
        num_shards, num_videos, num_rows: the numbers of shards, of videos in them, and of rows in the index.
        num_bytes: bytes of the videos.
        broken: the videos that could not be read, with the reasons.
        num_long: videos in shards that are longer than they were to be, but for those of segments.
    """

    num_shards: int = 0
    num_videos: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    num_long: int = 0

    def add(self, part: pa.Table, max_duration: float | None) -> None:
        """Counts the part of a shard."""
        self.num_shards += 1
        self.num_rows += len(part)
        is_broken = pc.is_valid(part["error"])
        for row in part.filter(is_broken).select(["path", "error"]).to_pylist():
            self.broken[row["path"]] = row["error"]
        packed = part.filter(pc.invert(is_broken))
        _, first = np.unique(packed["offset"].to_numpy(), return_index=True)
        self.num_videos += len(first)
        self.num_bytes += int(packed["size"].to_numpy()[first].sum())
        if max_duration is not None:
            whole = packed.filter(pc.and_(pc.is_null(packed["start"]), pc.is_null(packed["end"])))
            long = whole.filter(pc.greater(whole["duration"], max_duration))
            self.num_long += pc.count_distinct(long["offset"]).as_py()


def part_schema(multi_label: bool, class_names: Sequence[str]) -> pa.Schema:
    """The columns of a part: those of the index, and the number of the row in the data set. The metadata do not say
    when it was written: the same data give the same bytes."""
    schema = manifest_schema(multi_label).with_metadata({CLASS_NAMES: json.dumps([*class_names])})
    for name, kind in ((SHARD, pa.string()), (OFFSET, pa.int64()), (SHA256, pa.string()), (ROW, pa.int64())):
        schema = schema.append(pa.field(name, kind))
    return schema


def encode_part(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    """The rows of a shard as a Parquet file."""
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([*rows], schema=schema), file)
    return file.getvalue()


def write_index(
    folder: StoredFolder, parts: Iterable[str], facts: Mapping[str, Any], max_duration: float | None
) -> PackedCounts:
    """Joins the parts, named in the order of the shards, in the order of the data set.

    Args:
        facts: what was packed, for the metadata.
        max_duration: seconds beyond which a video counts as long.
    """
    counts, tables = PackedCounts(), []
    for name in parts:
        with folder.open(name) as file:
            tables.append(pq.read_table(file))
        counts.add(tables[-1], max_duration)
    # The order is stable: the pieces of a video stay in their order.
    rows = pa.concat_tables(tables).sort_by(ROW).drop_columns(ROW)
    rows = rows.replace_schema_metadata({**rows.schema.metadata, _PACK: json.dumps(facts)})
    with folder.writing(INDEX_FILE) as file:
        pq.write_table(rows, file, row_group_size=_ROWS_AT_A_TIME)
    return counts


def read_pack_facts(folder: StoredFolder) -> dict[str, Any] | None:
    """What was packed, as the index says; None if it is not the index of a pack."""
    with folder.open(INDEX_FILE) as file:
        try:
            metadata = pq.read_schema(file).metadata or {}
        except pa.ArrowException:
            return None
    return json.loads(metadata[_PACK]) if _PACK in metadata else None
