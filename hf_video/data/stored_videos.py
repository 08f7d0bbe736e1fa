"""Opens the video of a row of a data set: a file, a URL, bytes in the row, or a range of bytes of a pack.

The index of a pack is a manifest with the columns `shard`, `offset` and `sha256`; `docs/packed_data.md` describes the
files.
"""

import errno
import hashlib
import io
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hf_video.io import check_regular_file
from hf_video.reading import VideoReadError
from hf_video.reading.remote import open_address
from hf_video.reading.sources import is_url, kind_of, public_url

from .columns import arrow_column
from .manifest import CONTENT, ERROR, KEY, OFFSET, SHA256, SHARD, SIZE, StaleManifestError
from .places import file_system

# The column of video files that are stored inside a data set.
BYTES = "bytes"
_CHUNK = 2**20
# What `content_digest` reads of a file.
_NUM_BLOCKS, _BLOCK_SIZE = 4, 16 * 1024
# What `open_packed` takes of a row, besides the name of the video.
COLUMNS = (KEY, SHARD, OFFSET, SIZE, SHA256, ERROR)
# Object stores answer many requests at a time.
_THREADS = 16
# What a key has where several rows are segments of one video, see `make_keys`.
_SEGMENT = r"#t=[0-9.e+-]*,[0-9.e+-]*(#[0-9]+)?$"


def open_video(row: Mapping[str, Any]) -> str | BinaryIO:
    """The video of a row of `load_video_dataset`, for `read_video`: a path or URL, or a file if it is stored in the
    row or in a pack.

    Raises:
        StaleManifestError: A manifest lists the video, and the file is gone or was changed; or a shard of a pack was.
        VideoReadError: The video is not in the pack.
    """
    if SHARD in row:
        return open_packed(row)
    if row.get(BYTES) is None:
        check_unchanged(row)
        return row["video"]
    file = io.BytesIO(row[BYTES])
    file.name = row["video"]  # for messages
    return file


def stored_sha256(row: Mapping[str, Any]) -> str | None:
    """The SHA-256 of a video that is stored in its row or in a pack; None for a file of its own or a URL."""
    if row.get(SHA256) is not None or row.get(BYTES) is None:
        return row.get(SHA256)
    return hashlib.sha256(row[BYTES]).hexdigest()


def check_unchanged(row: Mapping[str, Any]) -> None:
    """Raises `StaleManifestError` for a file that is gone or was changed since it was checked. It is compared by its
    `content_digest`; of rows without one, of folders of frames and of URLs nothing is compared."""
    expected, path = row.get(CONTENT), row["video"]
    if expected is None or kind_of(path) in ("address", "folder"):
        return
    way_out = "Check the data again: `hf-video inspect DATA --output NEW.parquet`"
    try:
        found = content_digest(path)
    except OSError as error:
        raise StaleManifestError(
            f"{path} is listed in the manifest, but cannot be read ({error.strerror or error}). {way_out}; or, if "
            "the videos lie elsewhere, say where with `video_root`."
        ) from error
    if found != expected:
        raise StaleManifestError(f"{path} is not the file that the manifest describes: it was changed. {way_out}.")


def stored_sizes(dataset: Dataset) -> list[int | None]:
    """The sizes of the videos that are stored in rows, without reading them; None for all others."""
    if BYTES not in dataset.column_names:
        return [None] * len(dataset)
    batches = dataset.select_columns(BYTES).with_format("arrow").iter(1000)
    return [size for batch in batches for size in pc.binary_length(batch[BYTES]).to_pylist()]


@contextmanager
def open_bytes(row: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """An open file with the bytes of a video, at its start. That of a URL is first fetched to a temporary file.

    Raises:
        VideoReadError: The video is not what its manifest describes, or its URL cannot be fetched.
        OSError: The file does not exist or cannot be read.
        ValueError: It is a folder, FIFO, socket or device.
    """
    source = open_video(row)
    if not isinstance(source, str):
        yield source
    elif is_url(source):
        with tempfile.TemporaryFile() as file:
            _fetch(source, file)
            file.seek(0)
            yield file
    else:
        check_regular_file(source)
        with open(source, "rb") as file:
            yield file


def _fetch(url: str, file: Any) -> None:
    file.raw.name = public_url(url)  # for messages
    with open_address(url) as remote:
        if isinstance(remote, str):
            with open(remote, "rb") as local:
                copyfileobj(local, file, _CHUNK)
            return
        copyfileobj(remote, file, _CHUNK)


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
    """Raises `StaleManifestError` for a pack that is not whole: each shard must exist, and be as long as its rows say.
    None is opened. Data of no pack pass."""
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


def content_digest(path: str | os.PathLike) -> str:
    """SHA-256 of the size of a file and of four blocks of 16 KiB: the first, the last and two between them. A file of
    up to 64 KiB is read whole. In a larger one a change between the blocks that keeps the size is not seen.

    The digest of a folder is that of the names and digests of the files directly inside, that of a URL of its text.
    What is not there, cannot be read, or is neither file nor folder, such as a FIFO, raises `OSError`.
    """
    digest = hashlib.sha256()
    if is_url(path):
        digest.update(os.fsencode(path))
    elif kind_of(path) == "folder":
        for file in sorted(Path(path).iterdir()):
            if file.is_file():
                digest.update(os.fsencode(file.name) + b"\0" + _file_digest(file))
    else:
        digest.update(_file_digest(path))
    return digest.hexdigest()


def path_digest(path: str | os.PathLike) -> str | None:
    """The `content_digest` of a path or URL; None for what cannot be read."""
    try:
        return content_digest(path)
    except OSError:
        return None


def bytes_digest(content: bytes) -> str:
    """The `content_digest` of a file that holds these bytes."""
    return hashlib.sha256(_sample(io.BytesIO(content), len(content))).hexdigest()


def _file_digest(path: str | os.PathLike) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):  # Opening a FIFO would wait for its other end.
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    with open(path, "rb", buffering=0) as file:
        return _sample(file, os.fstat(file.fileno()).st_size)


def _sample(file: BinaryIO | io.RawIOBase, size: int) -> bytes:
    digest = hashlib.sha256(size.to_bytes(8))
    last = max(size - _BLOCK_SIZE, 0)
    for block in range(_NUM_BLOCKS):
        file.seek(last * block // (_NUM_BLOCKS - 1))
        digest.update(file.read(_BLOCK_SIZE) or b"")
    return digest.digest()
