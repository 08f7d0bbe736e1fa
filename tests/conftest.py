"""
Each process has one thread, because tests run side by side. A test that needs more threads sets their number.

What was imported to collect the tests stays until the end: the garbage collector need not look through it again.
"""

import gc
import os
from pathlib import Path

import pytest

# Read when torch is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no process has one of them left when the others have ended.

    `longest_files.txt` names those of four seconds and more, the longest first, by `make test ARGS=--durations=0`.
    """
    names = (TESTS / "longest_files.txt").read_text().split()
    places = {TESTS / name: place for place, name in enumerate(names)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Moving digits: eight classes of three videos in train/ and of one in test/, of eight frames."""
    from hf_video.demo import write_moving_digits

    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_moving_digits(folder, train_per_class=3, test_per_class=1, num_frames=8, image_size=32)
