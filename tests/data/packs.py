"""Packs data sets for tests."""

import hashlib
import io
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hf_video.data import label_names, load_video_dataset
from hf_video.data.content_digest import content_digest
from hf_video.processing import VideoReadError, probe_video


def write_pack(data: Path, folder: Path, *, shard_size: int = 40_000) -> Path:
    """A pack of class folders. A video that cannot be read is not in it, but in its index."""
    folder.mkdir(parents=True)
    rows, shard, number = [], io.BytesIO(), 0
    for split, dataset in load_video_dataset(data).items():
        names = label_names(dataset)
        for row in dataset:
            path = Path(row["video"])
            key = path.relative_to(data).with_suffix("").as_posix()
            found = {
                "key": key,
                "path": f"{key.replace('.', '_')}{path.suffix}",
                "split": split,
                "label": names[row["label"]],
                "content": content_digest(path),
                "checked": "decoded",
            }
            rows.append(found)
            content = path.read_bytes()
            try:
                probe_video(content)
            except VideoReadError as error:
                found["error"] = f"{path} cannot be read: {error}"
                continue
            if shard.tell() + len(content) > shard_size:
                _finish(shard, folder, number)
                shard, number = io.BytesIO(), number + 1
            found |= {"shard": f"shard-{number:05d}.tar", "size": len(content)}
            found |= {"offset": _append(shard, found["path"], content), "sha256": hashlib.sha256(content).hexdigest()}
    _finish(shard, folder, number)
    kinds = {"size": pa.int64(), "offset": pa.int64()}
    columns = {**rows[0], **dict.fromkeys(("error", "shard", "size", "offset", "sha256"))}
    table = {name: pa.array([row.get(name) for row in rows], kinds.get(name, pa.string())) for name in columns}
    pq.write_table(pa.table(table), folder / "index.parquet")
    return folder


def change_index(folder: Path, row: int, **values: object) -> None:
    """Replaces values of one row of an index."""
    table = pq.read_table(folder / "index.parquet")
    for name, value in values.items():
        column = table[name].to_pylist()
        column[row] = value
        table = table.set_column(table.column_names.index(name), name, pa.array(column, table[name].type))
    pq.write_table(table, folder / "index.parquet")


def _append(shard: io.BytesIO, name: str, content: bytes) -> int:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    shard.write(header.tobuf())
    offset = shard.tell()
    shard.write(content + bytes(-len(content) % tarfile.BLOCKSIZE))
    return offset


def _finish(shard: io.BytesIO, folder: Path, number: int) -> None:
    (folder / f"shard-{number:05d}.tar").write_bytes(shard.getvalue() + bytes(2 * tarfile.BLOCKSIZE))
