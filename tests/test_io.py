"""Reading the text files of users, refusing files that cannot be read, and folders that appear once they are whole."""

import errno
import os
import resource
import signal
import threading
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import save_file

from hf_video.io import (
    lines_of,
    new_folder,
    read_csv,
    read_json,
    read_json_lines,
    read_text,
    read_yaml,
    replace_file,
    replace_text,
)
from tests.testing.files import ODD_FILES, make_odd_file


def read_rows(path):
    return list(read_csv(path))


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_file_is_refused_without_waiting(tmp_path, kind):
    path = make_odd_file(tmp_path / "file", kind)
    with pytest.raises((ValueError, OSError), match=f"^{path} {ODD_FILES[kind]}"):
        read_json(path)


@pytest.mark.parametrize(
    ("content", "place"),
    [("path\ncafé".encode("latin-1"), "0xe9 in line 2"), ("path\n".encode("utf-16"), "0x(ff|fe) in line 1")],
)
def test_another_encoding_is_refused_by_byte_and_line(tmp_path, content, place):
    path = write(tmp_path, "file", content)
    with pytest.raises(ValueError, match=f"^{path} .*{place}"):
        read_text(path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = write(tmp_path, "file", '{"naïve": "1"}'.encode("utf-8-sig"))
    assert read_json(path) == read_yaml(path) == {"naïve": "1"}
    assert read_json_lines(path) == [(1, {"naïve": "1"})]


@pytest.mark.parametrize(
    ("read", "content", "named"),
    [
        (read_yaml, "a: 1\nb: 2\n'a': 3\n", "'a'.*line 3"),
        (read_json, '{"a": 1,\n}', "line 2, column 1"),
        (read_json_lines, "{}\r\n\r\n{", "line 3, column 2"),
        (read_yaml, "a: 1\nb: [", "line 2, column 5"),
        (read_rows, 'path,label\na.mp4,"run\nb.mp4,sit\n', "line 2"),
    ],
    ids=range(5),
)
def test_what_cannot_be_read_is_refused_by_its_place(tmp_path, read, content, named):
    path = write(tmp_path, "file", content)
    with pytest.raises(ValueError, match=f"(?s)^{path}.*{named}"):
        read(path)


def test_yaml_values_stay_as_they_are_written(tmp_path):
    found = read_yaml(write(tmp_path, "a.yaml", "a: 1e-3\nb: no\nc:\nd: [01, '2']\n"))
    assert found == {"a": "1e-3", "b": "no", "c": "", "d": ["01", "2"]}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_cells_with_quotes_and_any_line_ends(tmp_path, end):
    lines = ["path,label", 'a.mp4, "run, fast"', "", 'b.mp4,"say ""x"""', f'"c{end}d",e']
    assert list(read_csv(write(tmp_path, "a.csv", end.join(lines) + end))) == [
        (1, ["path", "label"]),
        (2, ["a.mp4", "run, fast"]),
        (4, ["b.mp4", 'say "x"']),
        (6, [f"c{end}d", "e"]),
    ]


def test_lines_end_at_line_ends_alone():
    assert lines_of("a\u2028b\r\nc\x0cd\re\n") == ["a\u2028b", "c\x0cd", "e", ""]


def test_a_table_of_excel_is_windows_1252_and_the_log_shows_what_was_read(tmp_path, caplog):
    path = write(tmp_path, "a.csv", "path,label\r\na.mp4,Käfig\r\n,\r\n".encode("cp1252"))
    assert read_rows(path) == [(1, ["path", "label"]), (2, ["a.mp4", "Käfig"])]
    (record,) = caplog.records
    assert "Windows-1252" in record.getMessage() and "Käfig" in record.getMessage()


@pytest.mark.parametrize("content", ["path\n".encode("utf-16"), b"path\n\xe4\x81\n"])
def test_a_table_in_neither_encoding_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match="is not UTF-8"):
        read_rows(write(tmp_path, "a.csv", content))


@pytest.mark.parametrize("is_mounted", [None, False, True])
def test_a_folder_is_there_once_it_is_whole(tmp_path, is_mounted, monkeypatch):
    """New, or empty, also where a disk is mounted."""
    target = tmp_path / "some" / "new"
    if is_mounted is not None:
        target.mkdir(parents=True)
        monkeypatch.setattr("os.path.ismount", lambda path: is_mounted)
    with new_folder(target) as folder:
        (folder / "inner").mkdir()
        assert not (target / "inner").exists()
    assert [path.name for path in target.iterdir()] == ["inner"]
    assert [path.name for path in target.parent.iterdir()] == ["new"]


def test_nothing_is_left_of_a_folder_that_fails(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "new") as folder:
        (folder / "a.txt").write_text("a")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_what_came_meanwhile_is_left_alone(tmp_path):
    with pytest.raises(OSError), new_folder(tmp_path / "new"):
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "mine.txt").write_text("mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "mine.txt"]


@contextmanager
def small_files():
    """Files of at most 5,000 bytes, beyond which a write fails as on a full disk.

    Not a fixture: pytest writes its own progress, perhaps to a longer file, before a fixture is torn down.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[0][1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        signal.signal(signal.SIGXFSZ, before[1])


TENSORS = {"weight": torch.zeros(10_000)}


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(bytes(10_000)),
        lambda path: save_file(TENSORS, path),
        lambda path: torch.save(TENSORS, path),
    ],
    ids=["bytes", "safetensors", "torch"],
)
def test_a_full_disk_keeps_the_old_file_and_is_named(tmp_path, write):
    file = tmp_path / "weights"
    replace_text(file, "old")
    with small_files(), pytest.raises(OSError, match=r"weights'$") as caught:
        replace_file(file, write)
    assert caught.value.errno in (errno.EFBIG, errno.ENOSPC)
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["weights"]


def test_another_error_is_not_renamed(tmp_path):
    def fail(path):
        path.write_text("half")
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="^a bug$"):
        replace_file(tmp_path / "file", fail)
    assert os.listdir(tmp_path) == []


def test_a_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    replace_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "new"


def test_folders_and_pipes_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("", "pipe"):
        with pytest.raises(OSError, match=name):
            replace_text(tmp_path / name, "text")
    with pytest.raises(FileNotFoundError):
        replace_text(tmp_path / "missing" / "file", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_reader_sees_a_whole_file_at_any_time(tmp_path):
    file, texts = tmp_path / "file", ["a" * 50_000, "b" * 70_000]
    replace_text(file, texts[0])
    writer = threading.Thread(target=lambda: [replace_text(file, texts[turn % 2]) for turn in range(40)])
    writer.start()
    seen = [file.read_text()]
    while writer.is_alive():
        seen.append(file.read_text())
    writer.join()
    assert set(seen) <= set(texts)
