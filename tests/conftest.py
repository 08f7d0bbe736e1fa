"""Each process has one thread, because tests run side by side. A test that needs more threads sets their number."""

import os

# Read when torch is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
