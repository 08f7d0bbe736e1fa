"""
Which digit flashed up? A short event in a long video, and the memories that still hold it at the end.

A handwritten digit wanders along the border of a board for 240 frames. For ten of them, anywhere in the clip, it is
another digit; that is fewer frames than an entry of the memory stands for. The label is the other digit. The model
reads frame by frame with banks of eight frames, and answers after the last one.

    python examples/long_video_events.py OUTPUT_DIR [--short-steps 400] [--long-steps 60]

One model is trained for each policy of compression, in the same way: first on clips of ten frames with an event of
one frame, which take a fraction of the time, then on long clips. Another one is trained with `fifo` on clips whose
event is inside its window. Writes `events.json`, and `events.png`: the accuracy on long clips of digits that were not
seen in training, by the place of the event.
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

NUM_FRAMES, EVENT_FRAMES, BANK_LENGTH = 240, 10, 8
NUM_SHORT_FRAMES = 10
CELLS, CELL_SIZE = 4, 8
WANDERING, FLASHING = range(5), range(5, 10)
BORDER = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (3, 3), (3, 2), (3, 1), (3, 0), (2, 0), (1, 0)]
WINDOW_RUN = "fifo, event inside its window"


class FlashingDigits(Dataset):
    """
    Clips `(num_frames, 1, 32, 32)` in [-1, 1] with the number of the digit that flashes up.

    Args:
        size: number of clips.
        held_out: whether they show scans that are not used for training.
        num_frames, event_frames: number of frames of a clip, and of the event in it.
        first_start: earliest frame for the event to begin at.
        seed: determines every clip.
    """

    def __init__(
        self,
        size: int,
        held_out: bool,
        num_frames: int = NUM_FRAMES,
        event_frames: int = EVENT_FRAMES,
        first_start: int = 0,
        seed: int = 0,
    ):
        scans, digits = load_digits(return_X_y=True)
        chosen = (np.random.default_rng(0).random(len(scans)) < 0.2) == held_out
        scans = (scans[chosen] / 8 - 1).reshape(-1, CELL_SIZE, CELL_SIZE).astype(np.float32)
        self.scans = [scans[digits[chosen] == digit] for digit in range(10)]
        self.size, self.num_frames, self.event_frames = size, num_frames, event_frames
        self.first_start, self.seed = first_start, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = np.random.default_rng([self.seed, index])
        flashing = int(rng.choice(FLASHING))
        wandering_scan, flashing_scan = (rng.choice(self.scans[digit]) for digit in (rng.choice(WANDERING), flashing))
        start = self.start_of_event(index)
        first_cell, direction = rng.integers(len(BORDER)), rng.choice([-1, 1])
        clip = np.full((self.num_frames, 1, CELLS * CELL_SIZE, CELLS * CELL_SIZE), -1, np.float32)
        for t, frame in enumerate(clip[:, 0]):
            row, column = BORDER[(first_cell + direction * (t * len(BORDER) // self.num_frames)) % len(BORDER)]
            cell = frame[row * CELL_SIZE : (row + 1) * CELL_SIZE, column * CELL_SIZE : (column + 1) * CELL_SIZE]
            cell[:] = flashing_scan if start <= t < start + self.event_frames else wandering_scan
        clip += rng.normal(0, 0.02, clip.shape).astype(np.float32)
        return {"pixel_values": torch.from_numpy(clip), "labels": flashing - FLASHING[0]}

    def start_of_event(self, index: int) -> int:
        rng = np.random.default_rng([self.seed, index, 1])
        return int(rng.integers(self.first_start, self.num_frames - self.event_frames, endpoint=True))


def make_model(policy: str) -> MemoryBankQFormerForVideoClassification:
    """A vision tower that only embeds patches, and two layers of Q-Former."""
    vision_config = VideoViTConfig(
        image_size=CELLS * CELL_SIZE,
        patch_size=CELL_SIZE,
        num_channels=1,
        num_frames=1,
        tubelet_size=1,
        hidden_size=64,
        num_hidden_layers=0,
        num_attention_heads=4,
        use_mean_pooling=False,
        initializer_range=0.1,
    )
    qformer_config = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    config = MemoryBankQFormerConfig(
        vision_config=vision_config,
        qformer_config=qformer_config,
        num_query_tokens=4,
        use_qformer_text_input=False,
        memory_bank_length=BANK_LENGTH,
        memory_policy=policy,
        max_num_frames=NUM_FRAMES,
        num_labels=len(FLASHING),
        # Small layers need larger weights than the published ones for their attention to differ from a mean.
        initializer_range=0.1,
    )
    return MemoryBankQFormerForVideoClassification(config)


def train_and_test(
    policy: str, short_steps: int, long_steps: int, output_dir: Path, first_start: int = 0
) -> dict[str, Any]:
    """The accuracy on all held-out clips, and on those whose event begins in each tenth of the clip."""
    set_seed(0)
    model = make_model(policy)
    short = FlashingDigits(64 * short_steps, held_out=False, num_frames=NUM_SHORT_FRAMES, event_frames=1)
    long = FlashingDigits(32 * long_steps, held_out=False, first_start=first_start)
    for data, steps, batch_size, learning_rate in ((short, short_steps, 64, 2e-3), (long, long_steps, 32, 5e-4)):
        arguments = TrainingArguments(
            output_dir=str(output_dir / "training"),
            max_steps=steps,
            per_device_train_batch_size=batch_size,
            per_device_eval_batch_size=50,
            learning_rate=learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=steps // 10,
            weight_decay=0.01,
            logging_steps=20,
            save_strategy="no",
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
        )
        trainer = Trainer(model, arguments, train_dataset=data)
        trainer.train()
    test_data = FlashingDigits(400, held_out=True, first_start=first_start, seed=1)
    prediction = trainer.predict(test_data)
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    tenths = [10 * test_data.start_of_event(i) // NUM_FRAMES for i in range(len(test_data))]
    by_place = [[bool(hit) for hit, tenth in zip(right, tenths, strict=True) if tenth == i] for i in range(10)]
    return {
        "accuracy": float(right.mean()),
        "by_place": [sum(hits) / len(hits) if hits else None for hits in by_place],
    }


def draw(results: dict[str, dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    for name, result in results.items():
        places = [(10 * i + 5, value * 100) for i, value in enumerate(result["by_place"]) if value is not None]
        label = f"{name}: {result['accuracy']:.0%}"
        axes.plot(*zip(*places, strict=True), marker="o", linestyle="" if len(places) == 1 else "-", label=label)
    axes.axhline(100 / len(FLASHING), color="grey", linestyle=":", label="guessing")
    axes.set(
        xlabel="where the event begins (% of the clip)",
        ylabel="accuracy (%)",
        ylim=(0, 103),
        title=f"An event of {EVENT_FRAMES} in {NUM_FRAMES} frames, asked for at the end; a memory of {BANK_LENGTH}",
    )
    figure.legend(loc="outside right center")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--short-steps", type=int, default=400, help="optimizer steps on short clips, for each model")
    parser.add_argument("--long-steps", type=int, default=60, help="then on long ones")
    parser.add_argument("--runs", nargs="+", default=["merge", "uniform", "fifo", WINDOW_RUN], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)

    results = {}
    for name in arguments.runs:
        # The bank holds this many frames before the last one, and the event ends with the last one at the latest.
        first_start = NUM_FRAMES - EVENT_FRAMES - BANK_LENGTH // 2 if name == WINDOW_RUN else 0
        steps = (arguments.short_steps, arguments.long_steps)
        results[name] = train_and_test(name.split(",")[0], *steps, arguments.output_dir, first_start)
        print(f"{name}: {results[name]['accuracy']:.1%}")
        (arguments.output_dir / "events.json").write_text(json.dumps(results, indent=1))
    draw(results, arguments.output_dir / "events.png")


if __name__ == "__main__":
    main()
