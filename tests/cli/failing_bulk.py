"""Runs on Ray in which a video ends its decoder, or a model runs out of memory: `python -m tests.cli.failing_bulk`.

    failing_bulk TASK MODEL VIDEOS OUTPUT

TASK is a class of this file. It ends as a command does.
"""

import os
import sys

import torch
from transformers import AutoModelForVideoClassification, AutoVideoProcessor

from hf_video.cli.errors import run_guarded
from hf_video.data.video_listing import list_videos
from hf_video.jobs import ParquetParts, PredictTask, RayEngine, run


class EndsItsDecoder(PredictTask):
    """The fourth video ends whoever reads it."""

    def read(self, source):
        if source.endswith("0003.mp4"):
            os._exit(1)
        return super().read(source)


class RunsOutOfMemory(PredictTask):
    """No batch fits."""

    def encode(self, model, pixel_values):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")


def command(words):
    kind, model, videos, output = words
    network = AutoModelForVideoClassification.from_pretrained(model).eval()
    task = globals()[kind](AutoVideoProcessor.from_pretrained(model), list(network.config.id2label.values()), 2)
    sink = ParquetParts(output, task.key(network), part_size=1)
    print(run(task, list_videos([videos]), sink, RayEngine(network, device="cpu")))


if __name__ == "__main__":
    # Other processes find the classes here by the name of this module, not as those of `__main__`.
    from tests.cli import failing_bulk

    sys.exit(run_guarded("failing_bulk", sys.argv[1:], failing_bulk.command))
