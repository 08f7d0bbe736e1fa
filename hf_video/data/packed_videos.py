"""Reads videos out of the tars of a pack, each by one range of bytes that its index names.

An index is a manifest with the columns `shard`, `offset` and `sha256`; `docs/packed_data.md` describes the files.
"""

import hashlib
import io
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hf_video.reading import VideoReadError
from hf_video.text_files import check_regular_file

from .columns import arrow_column
from .manifest import ERROR, KEY, OFFSET, SHA256, SHARD, SIZE, StaleManifestError
from .places import file_system

# What `open_packed` takes of a row, besides the name of the video.
COLUMNS = (KEY, SHARD, OFFSET, SIZE, SHA256, ERROR)
# Object stores answer many requests at a time.
_THREADS = 16
# What a key has where several rows are segments of one video, see `manifest_writing`.
_SEGMENT = r"#t=[0-9.e+-]*,[0-9.e+-]*(#[0-9]+)?$"


def is_packed(dataset: Dataset) -> bool:
    """Whether a data set of `load_video_dataset` is that of a pack."""
    return SHARD in dataset.column_names


def open_packed(row: Mapping[str, Any]) -> BinaryIO:
    """The video of a row of a pack, read whole and compared with what the index says.

    Raises:
        StaleManifestError: The shard cannot be read, or has other bytes there.
        VideoReadError: The video is not in the pack.
    """
    key, shard = row[KEY], row[SHARD]
    if shard is None:
        raise VideoReadError(f"{key} is not in the pack, for it could not be read: {row.get(ERROR)}")
    start, size = row[OFFSET], row[SIZE]
    way_out = "Copy the shard again, or pack the videos again into a new folder: `hf-video pack`"
    try:
        content = _read_range(shard, start, size)
    except FileNotFoundError as error:
        raise StaleManifestError(f"{shard}, the shard of {key}, does not exist. {way_out}.") from error
    except Exception as error:  # Each file system has errors of its own.
        reason = str(error) or type(error).__name__
        raise StaleManifestError(f"{key} cannot be read from {shard}: {reason}") from error
    if len(content) != size:
        raise StaleManifestError(
            f"{shard} gave {len(content)} bytes for {key}, which has {size} from byte {start} on: the shard was cut "
            f"off, or its server does not answer to ranges. {way_out}."
        )
    if hashlib.sha256(content).hexdigest() != row[SHA256]:
        raise StaleManifestError(
            f"{key} is not what the index says: bytes {start} to {start + size - 1} of {shard} were changed. "
            f"{way_out}; `hf-video inspect PACK` finds all such videos."
        )
    file = io.BytesIO(content)
    file.name = row["video"]  # for messages
    return file


def check_shards(dataset: Dataset) -> None:
    """Refuses a pack that is not whole: each shard must exist, and be as long as its rows say. None is opened.

    Args:
        dataset: Rows of `load_video_dataset`; those of no pack pass.

    Raises:
        StaleManifestError: A shard is missing, too short, or cannot be examined.
    """
    if not is_packed(dataset):
        return
    table = pa.table({name: arrow_column(dataset, name) for name in (SHARD, OFFSET, SIZE)})
    table = table.filter(pc.is_valid(table[SHARD]))
    rows = pa.table({SHARD: table[SHARD], "end": pc.add(table[OFFSET], table[SIZE])})
    ends = rows.group_by(SHARD).aggregate([("end", "max"), ("end", "count")]).sort_by(SHARD).to_pydict()
    with ThreadPoolExecutor(_THREADS) as threads:
        for shard, end, count, size in zip(*ends.values(), threads.map(_size_of, ends[SHARD]), strict=True):
            if size is None:
                fault = "does not exist"
            elif size < end:
                fault = f"has {size} bytes, not the {end} that its videos take"
            else:
                continue
            raise StaleManifestError(
                f"{shard} {fault}, and {count} rows of the data are in it. Copy it again, or pack the videos again "
                "into a new folder: `hf-video pack`."
            )


def source_names(dataset: Dataset) -> pa.Array:
    """Names of the videos that differ only in their beginning between the files and the pack of them, one for each
    row: the path of a file, and in a pack the key of its video with the suffix of the file."""
    videos = arrow_column(dataset, "video")
    if not is_packed(dataset):
        return videos
    stems = pc.replace_substring_regex(arrow_column(dataset, KEY), _SEGMENT, "")
    suffixes = _suffixes(videos)
    # A key has its suffix already where two files differ in nothing else.
    suffixes = pc.if_else(pc.equal(_suffixes(stems), suffixes), "", suffixes)
    return pc.binary_join_element_wise(stems, suffixes, "")


def _suffixes(names: pa.Array) -> pa.Array:
    return pc.fill_null(pc.struct_field(pc.extract_regex(names, r"(?P<suffix>\.[^./]*)$"), "suffix"), "")


def _read_range(shard: str, start: int, size: int) -> bytes:
    system, path = file_system(shard)
    if system is not None:
        return system.cat_file(path, start=start, end=start + size)
    check_regular_file(path)
    with open(path, "rb") as file:
        # No more than there is: a reader makes room for all that it is asked for.
        size = min(size, max(os.fstat(file.fileno()).st_size - start, 0))
        file.seek(start)
        return file.read(size)


def _size_of(shard: str) -> int | None:
    """Bytes of a shard; None if it does not exist."""
    system, path = file_system(shard)
    try:
        return os.path.getsize(path) if system is None else system.size(path)
    except FileNotFoundError:
        return None
