"""
Each process has one thread, because tests run side by side. A test that needs more threads sets their number.

What was imported to collect the tests stays until the end: the garbage collector need not look through it again.
"""

import gc
import os

# Read when torch is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()
