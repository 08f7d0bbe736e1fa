"""`hf-video predict --engine ray` in which a video ends its decoder, or a model runs out of memory.

    python -m tests.cli.failing_bulk WHAT MODEL VIDEOS OUTPUT

WHAT is `decoder` or `memory`. It ends as a command does.
"""

import os
import sys
from dataclasses import replace
from functools import partial

import torch

from hf_video.bulk import commands
from hf_video.cli.errors import run_guarded
from hf_video.inference import PredictSettings


def end_decoder(read, source):
    """The fourth video ends whoever reads it."""
    if source.endswith("0003.mp4"):
        os._exit(1)
    return read(source)


def run_out_of_memory(model, pixel_values):
    """No batch fits."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")


def command(words):
    what, model, videos, output = words
    make = commands.predict_task

    def make_failing(*args):
        task = make(*args)
        if what == "memory":
            return replace(task, encode=run_out_of_memory)
        return replace(task, read=partial(end_decoder, task.read))

    commands.predict_task = make_failing
    settings = PredictSettings(videos=[videos], model=model, output=output, engine="ray", part_size=1, device="cpu")
    print(commands.predict(settings))


if __name__ == "__main__":
    # Other processes find the functions here by the name of this module, not as those of `__main__`.
    from tests.cli import failing_bulk

    sys.exit(run_guarded("failing_bulk", sys.argv[1:], failing_bulk.command))
