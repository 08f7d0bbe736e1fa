"""Writes the features of a video into a file, batch by batch.

A writer is a context manager. It gives a function that appends a batch, and the file is whole after the block.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.lib.format import write_array_header_1_0
from safetensors.torch import save_file

from hf_video.inference.window_features import WindowFeatures

FileFormat = Literal["npy", "safetensors", "parquet"]
Append = Callable[[WindowFeatures], None]


@contextmanager
def write_npy(path: Path, video: str, shape: Sequence[int]) -> Iterator[Append]:
    """An array (num_windows, *shape) float32, as `numpy.load` reads it. Memory holds one batch."""
    num_windows = 0

    def write_header() -> None:
        # NumPy leaves room in a header for any number of rows.
        file.seek(0)
        write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (num_windows, *shape)})

    def append(batch: WindowFeatures) -> None:
        nonlocal num_windows
        file.write(np.ascontiguousarray(batch.features, dtype="<f4").data)
        num_windows += len(batch.features)

    with open(path, "wb") as file:
        write_header()
        yield append
        write_header()


@contextmanager
def write_safetensors(path: Path, video: str, shape: Sequence[int]) -> Iterator[Append]:
    """Tensors `features` (num_windows, *shape) float32, `starts` and `ends` (num_windows,) float64 seconds. The format
    begins with all sizes, so memory holds all features of the video."""
    batches: list[WindowFeatures] = []
    yield batches.append
    tensors = {"features": torch.cat([torch.empty(0, *shape), *(torch.from_numpy(each.features) for each in batches)])}
    for name in ("starts", "ends"):
        times = [time for batch in batches for time in getattr(batch, name)]
        tensors[name] = torch.tensor(times, dtype=torch.float64)
    save_file(tensors, path)


@contextmanager
def write_parquet(path: Path, video: str, shape: Sequence[int]) -> Iterator[Append]:
    """A row for each window: `video`, `start`, `end` and `feature`, with their types of `datasets`. A row for each
    video would be too large, since `datasets` reads a thousand rows at a time. Memory holds one batch."""
    from datasets import Array2D, Dataset, Features, List, Value
    from pyarrow.parquet import ParquetWriter

    feature = List(Value("float32"), length=shape[0]) if len(shape) == 1 else Array2D(tuple(shape), "float32")
    columns = Features(
        {"video": Value("string"), "start": Value("float64"), "end": Value("float64"), "feature": feature}
    )

    def append(batch: WindowFeatures) -> None:
        rows = {"video": [video] * len(batch.features), "start": batch.starts, "end": batch.ends}
        table = Dataset.from_dict({**rows, "feature": list(batch.features)}, features=columns)
        writer.write_table(table.with_format("arrow")[:])

    with ParquetWriter(path, columns.arrow_schema) as writer:
        yield append


WRITERS: dict[FileFormat, Callable[[Path, str, Sequence[int]], AbstractContextManager[Append]]] = {
    "npy": write_npy,
    "safetensors": write_safetensors,
    "parquet": write_parquet,
}
