"""The index of a pack of many videos, without the pack."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hf_video.data.manifest import INDEX_FILE

ROWS_OF_A_SHARD = 5000


def write_index(folder: Path, num_rows: int) -> None:
    """Writes the index of a pack that does not exist, with 100 classes."""
    numbers = np.arange(num_rows)
    generator = np.random.default_rng(0)
    digests = [pa.array([generator.bytes(32).hex() for _ in numbers], pa.string()) for _ in range(2)]
    keys = [f"train/class_{number % 100:03d}/{number:08d}" for number in numbers]
    columns = {
        "key": keys,
        "path": [f"{key}.mp4" for key in keys],
        "split": ["train"] * num_rows,
        "label": [f"class_{number % 100:03d}" for number in numbers],
        "size": np.full(num_rows, 192_000),
        "checked": ["decoded"] * num_rows,
        "error": pa.nulls(num_rows, pa.string()),
        "content": digests[0],
        "shard": [f"shard-{number // ROWS_OF_A_SHARD:05d}.tar" for number in numbers],
        "offset": numbers % ROWS_OF_A_SHARD * 200_000,
        "sha256": digests[1],
    }
    pq.write_table(pa.table(columns), folder / INDEX_FILE)
