"""A file is written as a whole or not at all, and an error names the file."""

import errno
import os
import resource
import signal
import threading
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import save_file

from hf_video.io import replace_file, replace_text


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
        with pytest.raises(OSError, match="is not a regular file"):
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
