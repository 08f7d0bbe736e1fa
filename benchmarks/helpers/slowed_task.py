"""A task for bulk use whose model takes long."""

import time

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_video.jobs import ExtractTask


class SlowedTask(ExtractTask):
    """Waits before each batch.

    Attributes:
        seconds: how long.
    """

    seconds = 0.2

    def encode(self, model: PreTrainedModel, pixel_values: torch.Tensor) -> np.ndarray:
        time.sleep(self.seconds)
        return super().encode(model, pixel_values)
