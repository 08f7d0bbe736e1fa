"""A file or folder is written as a whole or not at all, and an error names it."""

import errno
import os
import resource
import signal
import threading
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import save_file

from hf_video.io import new_folder, replace_file, replace_text


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


def fill(path):
    with new_folder(path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a.txt").write_text("a")
        assert not (path / "inner").exists()


def test_a_folder_is_there_once_it_is_whole(tmp_path):
    fill(tmp_path / "some" / "new")
    assert [str(path.relative_to(tmp_path / "some")) for path in sorted((tmp_path / "some").rglob("*"))] == [
        *("new", "new/inner", "new/inner/a.txt")
    ]


@pytest.mark.parametrize("is_mounted", [False, True])
def test_an_empty_folder_is_filled(tmp_path, monkeypatch, is_mounted):
    target = tmp_path / "target"
    target.mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: is_mounted)
    fill(target)
    assert os.listdir(target) == ["inner"] and os.listdir(tmp_path) == ["target"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_of_a_folder_that_fails(tmp_path, error):
    with pytest.raises(error), new_folder(tmp_path / "new") as folder:
        (folder / "a.txt").write_text("a")
        raise error
    assert not list(tmp_path.iterdir())


def test_what_came_meanwhile_is_left_alone(tmp_path):
    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path / "new"):
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "mine.txt").write_text("mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "mine.txt"]
