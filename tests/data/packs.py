"""Packs data sets for tests, and changes what was packed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hf_video.data import load_video_dataset
from hf_video.data.packs.packing import pack_videos
from hf_video.io import StoredFolder


def write_pack(data: Path, folder: Path, *, shard_size: int = 20_000) -> Path:
    """A pack of class folders or of a list. Small shards, so that a few videos have several."""
    base = data if data.is_dir() else data.parent
    pack_videos(load_video_dataset(data), StoredFolder(folder), base, shard_size=shard_size, progress=False)
    return folder


def change_index(folder: Path, row: int, **values: object) -> None:
    """Replaces values of one row of an index."""
    table = pq.read_table(folder / "index.parquet")
    for name, value in values.items():
        column = table[name].to_pylist()
        column[row] = value
        table = table.set_column(table.column_names.index(name), name, pa.array(column, table[name].type))
    pq.write_table(table, folder / "index.parquet")
