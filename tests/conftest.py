"""One thread a process: tests run side by side, and whoever needs more threads sets their number."""

import os

# Read when torch is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
