"""
What the settings for classes of different sizes give, each alone: 100, 10 and 3 training videos of three classes.

The videos are digits that go around a square; the class is how the round begins (see `hf_video/demo.py`). A small
VideoViT is trained from scratch by `hf_video.training.train`, with the same steps for each setting, and its last
weights are measured on 50 videos of each class, of other digits. Videos, digits and weights are others for each seed.
The mean class accuracy counts all classes alike; chance is a third.

It prints mean and standard deviation over the seeds. It takes about eight minutes on a core.

    python benchmarks/imbalance.py [--seeds 3] [--threads 1] [--smoke]
"""

import contextlib
import csv
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.measurement import make_parser, print_machine

from hf_video.demo import write_moving_digits
from hf_video.metrics import recognised_shares
from hf_video.training import TrainSettings, train

SIZES = {"right-down": 100, "left-up": 10, "up-left": 3}
CURES: dict[str, dict[str, Any]] = {
    "none": {},
    "--class-weights balanced": {"class_weights": "balanced"},
    "--class-weights effective": {"class_weights": "effective"},
    "--loss focal": {"loss": "focal"},
    "--sampler balanced": {"sampler": "balanced"},
    "--sampler sqrt": {"sampler": "sqrt"},
}
SETTINGS: dict[str, Any] = {
    "num_frames": 8,
    "image_size": 48,
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "per_device_train_batch_size": 16,
    "learning_rate": 1e-3,
    # The last weights count: a checkpoint is not chosen on videos that a user would not have either.
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "disable_tqdm": True,
    "device": "cpu",
}


def write_data(folder: Path, sizes: dict[str, int], num_test: int, seed: int) -> Path:
    """CSV files of a training split of these sizes, a test split of equal ones, and a validation split, which is not
    used."""
    largest = max(sizes.values())
    digits = folder / "digits"
    write_moving_digits(digits, train_per_class=largest + 1, test_per_class=num_test, num_frames=16, seed=seed)
    rows = {
        "train": [(f"train/{name}/{number:04d}", name) for name, size in sizes.items() for number in range(size)],
        "validation": [(f"train/{name}/{largest:04d}", name) for name in sizes],
        "test": [(f"test/{name}/{number:04d}", name) for name in sizes for number in range(num_test)],
    }
    data = folder / "data"
    data.mkdir()
    for split, listed in rows.items():
        with open(data / f"{split}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "label"])
            writer.writerows([digits / f"{path}.mp4", label] for path, label in listed)
    return data


def recalls(data: Path, folder: Path, cure: dict[str, Any], seed: int, epochs: int) -> list[float]:
    """The recall of each class of SIZES by a model that is trained with a cure."""
    settings = TrainSettings(
        data=str(data), output_dir=str(folder), seed=seed, num_train_epochs=epochs, **SETTINGS, **cure
    )
    with contextlib.redirect_stdout(io.StringIO()):
        _, metrics = train(settings)
    shares = recognised_shares(np.array(metrics["confusion_matrix"]))
    return [shares[metrics["class_names"].index(name)] for name in SIZES]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine("torch", "transformers", threads=arguments.threads)
    num_seeds, num_test, epochs = (1, 2, 1) if arguments.smoke else (arguments.seeds, 50, 30)
    sizes = {name: min(size, 4) for name, size in SIZES.items()} if arguments.smoke else SIZES
    found: dict[str, list[list[float]]] = {name: [] for name in CURES}
    for seed in range(num_seeds):
        with tempfile.TemporaryDirectory() as folder:
            data = write_data(Path(folder), sizes, num_test, seed)
            for number, (name, cure) in enumerate(CURES.items()):
                found[name].append(recalls(data, Path(folder, str(number)), cure, seed, epochs))
    print(f"{'':26}{'mean class accuracy':>20}" + "".join(f"{f'recall of {size}':>16}" for size in sizes.values()))
    for name, rows in found.items():
        columns = np.column_stack([np.mean(rows, axis=1), np.array(rows)])
        cells = [
            f"{mean:.1%} ± {deviation:.1%}" for mean, deviation in zip(columns.mean(0), columns.std(0), strict=True)
        ]
        print(f"{name:26}{cells[0]:>20}" + "".join(f"{cell:>16}" for cell in cells[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
