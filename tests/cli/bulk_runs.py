"""Runs of `hf-video extract | predict --engine` as programs that are killed, and what their folders hold."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.dataset as ds

from tests.testing.videos import encode_video, make_frames


def write_videos(folder: Path, num_videos: int, num_broken: int) -> Path:
    """Writes videos of 20 and 24 frames, evenly mixed with files that are no videos."""
    folder.mkdir()
    whole = [encode_video(folder / f".{length}.mp4", make_frames(length, 32, 32)) for length in (20, 24)]
    for number in range(num_videos):
        path = folder / f"{number:04d}.mp4"
        if number % (num_videos // num_broken) == 1:
            path.write_bytes(b"not a video")
        else:
            shutil.copy(whole[number % 2], path)
    for path in whole:
        os.remove(path)
    return folder


def read_rows(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of a folder by key and piece, none of which is there twice."""
    rows = ds.dataset(folder, format="parquet").to_table().to_pylist()
    found = {(row["key"], row["piece"]): row for row in rows}
    assert len(found) == len(rows)
    return dict(sorted(found.items()))


def assert_same_rows(found: dict, expected: dict, column: str) -> None:
    """Equal rows, but for the last digits of what a model gave, as batches hold other pieces."""
    assert found.keys() == expected.keys()
    for place, row in found.items():
        other = expected[place]
        assert {name: row[name] for name in row if name != column} == {n: other[n] for n in other if n != column}
        assert (row[column] is None) == (other[column] is None)
        if row[column] is not None:
            np.testing.assert_allclose(row[column], other[column], rtol=0, atol=1e-6)


def parts_of(folder: Path) -> dict[str, int]:
    """When each part was written, by its name."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*.parquet")}


def num_new(said: str) -> int:
    """The rows that a run says it has added."""
    return int(re.search(r"rows? of .*, (\d+) of them new", said)[1])


def processes_of(driver: subprocess.Popen) -> list[psutil.Process]:
    """The driver and all that it started."""
    root = psutil.Process(driver.pid)
    return [root, *root.children(recursive=True)]


def kill_all(driver: subprocess.Popen) -> None:
    """Kills the driver and all that it started, Ray's own processes included."""
    for process in processes_of(driver):
        process.kill()


@contextmanager
def started(*words: Any) -> Iterator[subprocess.Popen]:
    """A command in a session of its own, which has ended after the block with all that it started."""
    program = [sys.executable, "-m", "hf_video.cli", *map(str, words)]
    driver = subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield driver
    finally:
        if driver.poll() is None:
            kill_all(driver)
        driver.communicate()


def finish(driver: subprocess.Popen, timeout: float = 400) -> tuple[int, str]:
    """Its exit code, and what it said."""
    said, _ = driver.communicate(timeout=timeout)
    return driver.returncode, said


def wait_for_parts(driver: subprocess.Popen, folder: Path, number: int) -> None:
    """Waits until a run has written so many parts."""
    while len(parts_of(folder)) < number:
        assert driver.poll() is None, driver.communicate()[0]
        time.sleep(0.01)


def run_killed(words: list[Any], folder: Path, number: int, kill: Callable[[subprocess.Popen], None]) -> set[str]:
    """Kills a run after so many parts; the parts that it left."""
    with started(*words) as driver:
        wait_for_parts(driver, folder, number)
        kill(driver)
        assert driver.wait(timeout=60) == -signal.SIGKILL
    return set(parts_of(folder))
