import os
import shutil
import signal
import sys
import time

import pytest
from filelock import FileLock

from hf_video.cli.main import main
from hf_video.output_folders import LOCK_FILE

from ..data.broken_videos import spread_broken_videos


def words(data, output, *options):
    return ["pack", str(data), "--output", str(output), *options]


def test_broken_videos_are_listed_and_the_others_packed(digits, tmp_path, capsys):
    data = shutil.copytree(digits, tmp_path / "data")
    broken = spread_broken_videos(tmp_path / "broken", sorted((data / "train").iterdir()))
    assert main(words(data, tmp_path / "pack", "--num-workers", "1")) == 1
    out, error = capsys.readouterr()
    assert f"pack {tmp_path / 'pack'}\n32 videos, 0.1 MB, in 1 shard; 38 rows in index.parquet" in out
    assert "6 of the videos cannot be read and are not in the pack:\n" in error
    assert sum(str(path) in error for path in broken) == 6
    assert main(words(data, tmp_path / "pack", "--num-workers", "1")) == 0
    assert "finished before, nothing was written" in capsys.readouterr().out


def test_folders_and_options_that_are_refused(digits, tmp_path, fails):
    assert "has other files (0000.mp4)" in fails(*words(digits / "train", digits / "test" / "left-up"))
    (tmp_path / "file").touch()
    assert "is a file; a folder is expected" in fails(*words(digits, tmp_path / "file"))
    assert "lies inside" in fails(*words(digits, digits / "train" / "pack"))
    for size in ("1", "0GB", "-1GB", "big"):
        assert "--shard-size is" in fails(*words(digits, tmp_path / "pack", f"--shard-size={size}"))
    assert not (tmp_path / "pack").exists()
    assert "does not exist" in fails(*words(tmp_path / "none", tmp_path / "pack"))
    (tmp_path / "pack").mkdir()
    with FileLock(tmp_path / "pack" / LOCK_FILE):
        assert "is being written by" in fails(*words(digits, tmp_path / "pack"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_of_several_processes_that_is_ended_is_continued(digits, tmp_path, number):
    data = tmp_path / "data"
    for name in range(100):
        shutil.copytree(digits / "test" / "left-up", data / f"class {name}")
    process = os.fork()
    if process == 0:
        # Who starts the tests in the background has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(tmp_path / "stderr", os.O_WRONLY | os.O_CREAT), 2)
        sys.stderr = open(2, "w", closefd=False)
        os._exit(main(words(data, tmp_path / "pack", "--shard-size", "10KB", "--num-workers", "2")))
    while len(list((tmp_path / "pack" / ".packing").glob("*.tar.parquet"))) < 2:
        assert os.waitpid(process, os.WNOHANG) == (0, 0)
        time.sleep(0.001)
    os.kill(process, number)
    _, status = os.waitpid(process, 0)
    error = (tmp_path / "stderr").read_text()
    assert os.waitstatus_to_exitcode(status) == (130 if number == signal.SIGINT else -signal.SIGKILL), error
    assert not (tmp_path / "pack" / "index.parquet").exists()
    if number == signal.SIGINT:
        assert "interrupted. The finished shards in" in error and "the same command continues" in error
        assert not list((tmp_path / "pack").rglob("*.partial"))
    assert main(words(data, tmp_path / "pack", "--shard-size", "10KB", "--num-workers", "2")) == 0
    assert main(words(data, tmp_path / "whole", "--shard-size", "10KB", "--num-workers", "1")) == 0
    names = sorted(os.listdir(tmp_path / "whole"))
    assert names == sorted(os.listdir(tmp_path / "pack")) and len(names) > 10
    for name in names:
        assert (tmp_path / "pack" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
