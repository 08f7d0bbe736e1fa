"""
Which digit flashed up? A short event in a long video, and which memory still knows of it at the end.

A handwritten digit wanders along the border of a 4 x 4 board for `NUM_FRAMES` frames. For a few of them, anywhere in the
clip and fewer than a frame of memory stands for, it is another digit. The label is which. The model reads frame by frame
with banks of `BANK_LENGTH` frames and answers after the last one.

    python examples/long_video_events.py OUTPUT_DIR [--steps 400]

One model is trained for each policy of compression, all alike, and `fifo` also on clips whose event lies inside its
window. Writes `events.json` and `events.png`, the accuracy on digits not seen in training by the event's place.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

from hf_video import MemoryBankQFormerConfig, MemoryBankQFormerForVideoClassification, VideoViTConfig

NUM_FRAMES, BANK_LENGTH, EVENT_FRAMES = 200, 8, 6
BOARD, CELL = 4, 8
ORDINARY, FLASHING = range(5), range(5, 10)
BORDER = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (3, 3), (3, 2), (3, 1), (3, 0), (2, 0), (1, 0)]


class FlashingDigits(Dataset):
    """
    Clips `(num_frames, 3, 32, 32)` in [-1, 1], drawn anew at every access.

    Args:
        held_out: whether to draw the scans that training does not see.
        size: clips a round.
        latest: events begin this many frames before the end at most; anywhere when not given.
        seed: for clips that stay the same from round to round.
    """

    def __init__(self, held_out: bool, size: int, latest: int | None = None, seed: int | None = None):
        scans, labels = load_digits(return_X_y=True)
        chosen = np.random.default_rng(0).random(len(scans)) < 0.2
        scans, labels = scans[chosen == held_out].reshape(-1, CELL, CELL) / 8 - 1, labels[chosen == held_out]
        self.scans = {digit: torch.tensor(scans[labels == digit], dtype=torch.float32) for digit in range(10)}
        self.size, self.latest, self.seed = size, latest, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = np.random.default_rng(None if self.seed is None else [self.seed, index])
        first = 0 if self.latest is None else NUM_FRAMES - self.latest
        start = int(rng.integers(first, NUM_FRAMES - EVENT_FRAMES + 1))
        ordinary, flashing = (
            self.scans[digit][rng.integers(len(self.scans[digit]))] for digit in (rng.choice(ORDINARY), rng.choice(FLASHING))
        )
        return {}
