"""The rows of a folder say what is left to do, whatever happened to it."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from hf_video.bulk.rows import RowFolder
from hf_video.bulk.run import run
from hf_video.bulk.tasks import Piece, Task
from hf_video.data.video_listing import ListedVideo


class Mean:
    """A model that says how bright a piece is."""

    def eval(self):
        return self


def read(source):
    """As many pieces as the file has bytes, which are their values; a 0 cannot be read."""
    with open(source, "rb") as file:
        for number, value in enumerate(file.read()):
            if value == 0:
                raise ValueError("no picture")
            yield Piece(np.full((1, 2, 2), value, np.uint8), number, number + 1)


TASK = Task(
    "means",
    {"task": "mean"},
    pa.schema({"start": pa.float64(), "mean": pa.float32()}),
    read,
    lambda model, values: values.float().mean((1, 2, 3)).numpy(),
    lambda piece, output: (piece.start, output),
)


@pytest.fixture
def videos(tmp_path):
    for name, content in {"a": b"\1\2\3", "b": b"\4", "c": b"\5\6\0", "d": b""}.items():
        (tmp_path / name).write_bytes(content)
    return [ListedVideo(name, str(tmp_path / name)) for name in "abcd"]


@pytest.fixture
def folder(tmp_path):
    return RowFolder(str(tmp_path / "rows"), TASK)


def write(folder, videos, part_size=2, limit=None, **options):
    """Writes what is left, at most `limit` rows; the videos and known pieces of it."""
    folder.claim()
    todo = folder.left(videos, **options)
    rows = run(TASK, Mean(), todo, 2)
    folder.write((row for _, row in zip(range(limit or 99), rows)), part_size)  # noqa: B905
    return [(each.video.id, sorted(each.known)) for each in todo]


def rows_of(folder):
    rows = ds.dataset(str(folder), format="parquet").to_table().to_pylist()
    return sorted((row["key"], row["piece"], row["mean"], row["is_last"], row["error"]) for row in rows)


WHOLE = [
    *[("a", 0, 1.0, False, None), ("a", 1, 2.0, False, None), ("a", 2, 3.0, True, None), ("b", 0, 4.0, True, None)],
    *[("c", 0, 5.0, False, None), ("c", 1, None, True, "no picture"), ("d", 0, None, True, None)],
]


def test_every_piece_has_one_row_wherever_a_run_ends(folder, videos):
    for limit in range(1, 8):
        assert write(folder, videos, limit=limit) or limit > 4
        assert len(rows_of(folder)) == len(set(rows_of(folder)))
    assert rows_of(folder) == WHOLE and write(folder, videos) == []


def test_only_the_pieces_that_are_missing_are_computed(folder, videos):
    write(folder, videos, limit=2)
    assert write(folder, videos) == [("a", [0, 1]), ("b", []), ("c", []), ("d", [])]
    assert rows_of(folder) == WHOLE


def test_a_part_that_was_cut_off_is_done_again(folder, videos, tmp_path, caplog):
    write(folder, videos)
    path = max((tmp_path / "rows").glob("part-*"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1])
    assert write(folder, videos) and "is damaged, and its videos are done again" in caplog.text
    assert len(folder.facts()) == 7 and rows_of(folder) == WHOLE


def test_rows_that_are_there_twice_are_removed(folder, videos, tmp_path):
    write(folder, videos)
    for path in [*(tmp_path / "rows").glob("part-*")]:
        path.with_name(f"part-{path.stat().st_size}.parquet").write_bytes(path.read_bytes())
    assert write(folder, videos) == [] and rows_of(folder) == WHOLE


def test_rows_follow_the_content_of_a_video(folder, videos, tmp_path):
    write(folder, videos)
    (tmp_path / "b").write_bytes(b"\7\x08")
    assert write(folder, videos) == [("b", [])]
    assert [row for row in rows_of(folder) if row[0] == "b"] == [("b", 0, 7.0, False, None), ("b", 1, 8.0, True, None)]
    # What is out of reach stays.
    os.remove(tmp_path / "a")
    assert write(folder, videos) == []


def test_errors_and_what_is_not_named_stay_unless_asked(folder, videos, tmp_path):
    write(folder, videos)
    assert write(folder, videos[:2]) == [] and rows_of(folder) == WHOLE
    assert write(folder, videos, retry_errors=True) == [("c", [])]
    assert write(folder, videos[1:], prune=True) == [] and {row[0] for row in rows_of(folder)} == {"b", "c", "d"}


def test_what_is_refused(folder, videos, tmp_path):
    write(folder, videos)
    with pytest.raises(ValueError, match="has /.*/a under the key 'a', which /elsewhere would have as well"):
        folder.left([ListedVideo("a", "/elsewhere")])
    other = RowFolder(str(folder), Task(**vars(TASK) | {"key": {"task": "median"}}))
    with pytest.raises(ValueError, match="has rows of other settings .task 'mean', not 'median'."):
        other.claim()
    assert rows_of(folder) == WHOLE
