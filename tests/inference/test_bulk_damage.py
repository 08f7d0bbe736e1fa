"""Parts of a bulk run that are damaged inside, where their footers are whole."""

import pyarrow as pa
import pytest

from hf_video.inference.bulk_parts import PartFolder


@pytest.fixture
def folder(tmp_path):
    folder = PartFolder(str(tmp_path / "rows"))
    folder.claim({})
    for key in ("whole", "damaged"):
        row = {"key": [key], "path": [f"/{key}"], "error": pa.array([None], pa.string()), "scores": [1.5]}
        folder.write(f"part-{key}.parquet", [pa.table(row)])
    path = tmp_path / "rows" / "part-damaged.parquet"
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)
    return folder


def test_a_part_with_a_damaged_page_is_done_again(folder):
    assert folder.read_finished().rows["key"].to_pylist() == ["whole"]
    assert folder.part_names() == ["part-whole.parquet"]


def test_errors_are_forgotten_beside_a_damaged_part(folder):
    folder.forget_errors()
    assert folder.part_names() == ["part-whole.parquet"]
