"""Parts that are damaged inside, where their footers are whole."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_video.jobs import ParquetParts

WHOLE, DAMAGED = (f"part-{number:06d}-{'0' * 16}.parquet" for number in range(2))


@pytest.fixture
def folder(tmp_path):
    folder = ParquetParts(str(tmp_path / "rows"), {})
    folder.claim()
    for key, name in (("whole", WHOLE), ("damaged", DAMAGED)):
        row = {"key": [key], "path": [f"/{key}"], "error": pa.array([None], pa.string()), "scores": [1.5]}
        folder.write_rows(name, [pa.table(row)])
    path = tmp_path / "rows" / DAMAGED
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)
    return folder


def test_a_part_with_a_damaged_page_is_done_again(folder):
    assert folder.read_finished()["key"].to_pylist() == ["whole"]
    assert folder.part_names() == [WHOLE]


def test_errors_are_forgotten_beside_a_damaged_part(folder):
    folder.forget_errors()
    assert folder.part_names() == [WHOLE]


def test_a_file_of_another_name_is_left_alone(folder, tmp_path):
    pq.write_table(pa.table({"error": [1]}), tmp_path / "rows" / "part-of-mine.parquet")
    folder.forget_errors()
    assert len(folder.read_finished()) == 1 and (tmp_path / "rows" / "part-of-mine.parquet").exists()
