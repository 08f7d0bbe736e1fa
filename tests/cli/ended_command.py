"""A command that ends at a given moment: `ended_command.py MOMENT HOW N RANK WORD...` ends at the N-th
time that MOMENT comes on the process RANK of a launcher, HOW: SIGKILL, SIGTERM, SIGINT or full_disk.
"""

import contextlib
import errno
import os
import signal
import sys

from transformers import Trainer

from hf_video.cli.main import main
from hf_video.training import trainer

# By name, the function around which they lie and whether it has run; in the order in which they come.
OF_CHECKPOINT = {
    "a checkpoint begins": (Trainer, "_save_checkpoint", False),
    "weights of a checkpoint": (Trainer, "_save", True),
    "states of a checkpoint": (Trainer, "_save_rng_state", True),
    "before the mark": (trainer, "mark_complete", False),
    "after the mark": (trainer, "mark_complete", True),
}
OF_FINAL_SAVE = {
    "first file is moved": (os, "replace", True),
    "weights are moved": (os, "replace", True),
    "the result is written": (os, "replace", False),
}
MOMENTS = OF_CHECKPOINT | OF_FINAL_SAVE
STEP = {"a step ends": (Trainer, "training_step", True)}


def end(how):
    if how == "full_disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    signal.raise_signal(getattr(signal, how))


@contextlib.contextmanager
def ending(moment, how, number=1):
    """Within it, the N-th coming of a moment is the end of the command."""
    owner, name, is_behind = (MOMENTS | STEP)[moment]
    whole, count = getattr(owner, name), 0

    def counts(*args):
        if moment == "weights of a checkpoint":
            return args[0]._is_in_checkpoint
        if moment in ("first file is moved", "weights are moved"):
            source = str(args[0])
            return ".partial/" in source and source.endswith(".safetensors") == (moment == "weights are moved")
        if moment == "the result is written":
            return os.path.basename(args[1]) in ("report.md", "answers.json")
        return True

    def changed(*args, **kwargs):
        nonlocal count
        count += counts(*args)
        is_now = counts(*args) and count == number
        if is_now and not is_behind:
            end(how)
        result = whole(*args, **kwargs)
        if is_now and is_behind:
            end(how)
        return result

    setattr(owner, name, changed)
    # A shell starts what runs behind it with SIGINT ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        setattr(owner, name, whole)
        signal.signal(signal.SIGINT, handler)


if __name__ == "__main__":
    moment, how, number, rank, *words = sys.argv[1:]
    is_ended = moment != "never" and os.environ.get("RANK", "0") == rank
    with ending(moment, how, int(number)) if is_ended else contextlib.nullcontext():
        sys.exit(main(words))
