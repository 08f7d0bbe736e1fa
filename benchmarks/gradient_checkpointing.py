"""
Memory and time of training with gradient checkpointing beside training without, VideoViT and VideoMamba, and the batch
that fits into the memory that it spares.

The models are 192 channels wide, with 12 and 24 layers; a step is forward, backward and AdamW in float32, for a batch
of 24 clips. Both trainings must give equal losses and gradients, otherwise no figure is printed. Memory is the peak of
a process, less what it has before the model is made: weights, gradients, both moments of AdamW, the batch and
activations, in two steps. glibc returns freed memory at once here, as the allocators of GPUs do; by default it keeps
blocks of up to 32 MiB. Time is that of processors, in turns, the least of each. The larger batch is the one whose
memory is that of training without, by its growth from half a batch to one; its memory is measured as well.

Then the task of `hf-video demo` is learned with both: the losses of all steps at the same batch and the accuracy on
held-out digits, and the accuracy with a batch that is larger by the same factor, with as many epochs. The script
fails if a goal is missed: 0.36 of the memory and 1.36 of the time. It takes about twenty minutes on an idle core.

    python benchmarks/gradient_checkpointing.py [--batch-size 24] [--rounds 2] [--epochs 16] [--threads 1] [--smoke]
"""

import ctypes
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch
from helpers.measurement import (
    GOAL_MISSED,
    fastest,
    in_own_process,
    make_parser,
    peak_memory,
    print_machine,
    print_ratio,
    require_agreement,
)
from transformers import PreTrainedModel, PrinterCallback, set_seed

from hf_video import (
    VideoClipProcessor,
    VideoMambaConfig,
    VideoMambaForVideoClassification,
    VideoViTConfig,
    VideoViTForVideoClassification,
)
from hf_video.data import ClipDataset, load_video_dataset
from hf_video.demo import MOTIONS, write_moving_digits
from hf_video.training import VideoTrainer, VideoTrainingArguments

MEMORY_GOAL, TIME_GOAL = 0.36, 1.36
TOLERANCE = 1e-5
# What glibc's `mallopt` calls the size from which a block of memory is returned as soon as it is freed.
M_MMAP_THRESHOLD = -3
FAMILIES = {"videovit": "VideoViT", "videomamba": "VideoMamba"}
SIZES = {"image_size": 96, "num_frames": 8, "hidden_size": 192, "num_labels": len(MOTIONS)}
# The models of `hf-video demo`, with their batch size and learning rate.
DIGITS = {
    "videovit": ({"image_size": 48, "patch_size": 8, "hidden_size": 128, "num_hidden_layers": 4}, 16, 1e-3),
    "videomamba": (
        {"image_size": 24, "patch_size": 8, "tubelet_size": 2, "hidden_size": 64, "num_hidden_layers": 4}
        | {"state_size": 8},
        32,
        4e-3,
    ),
}


class Learned(NamedTuple):
    losses: list[float]  # of each step
    accuracy: float  # on the held-out digits
    seconds: float  # of processors


def make_model(family: str, sizes: dict[str, int]) -> PreTrainedModel:
    set_seed(0)
    if family == "videomamba":
        return VideoMambaForVideoClassification(VideoMambaConfig(**SIZES | {"num_hidden_layers": 24} | sizes))
    sizes = SIZES | {"num_hidden_layers": 12} | sizes
    width = sizes["hidden_size"]
    heads = 4 if width == DIGITS["videovit"][0]["hidden_size"] else width // 64 or 1
    return VideoViTForVideoClassification(
        VideoViTConfig(num_attention_heads=heads, intermediate_size=4 * width, **sizes)
    )


class Training:
    """Steps on one batch, with gradient checkpointing or without."""

    def __init__(self, family: str, sizes: dict[str, int], batch_size: int) -> None:
        self.model = make_model(family, sizes).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        size = self.model.config.image_size
        generator = torch.Generator().manual_seed(0)
        self.clips = torch.randn(batch_size, self.model.config.num_frames, 3, size, size, generator=generator)
        self.labels = torch.arange(batch_size) % self.model.config.num_labels

    def backward(self, is_checkpointed: bool) -> float:
        if is_checkpointed:
            self.model.activation_checkpointing_enable()
        else:
            self.model.activation_checkpointing_disable()
        loss = self.model(self.clips, labels=self.labels).loss
        loss.backward()
        return loss.item()

    def step(self, is_checkpointed: bool) -> None:
        self.backward(is_checkpointed)
        self.optimizer.step()
        self.optimizer.zero_grad()


def memory_of(family: str, sizes: dict[str, int], batch_size: int, is_checkpointed: bool) -> float:
    """GiB of a process at its peak, less what it has before the model is made."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 17)
    Training(family, sizes, 1).step(is_checkpointed)  # kernels are loaded
    before = psutil.Process().memory_info().rss / 2**30
    training = Training(family, sizes, batch_size)
    batch = training.clips, training.labels
    training.clips, training.labels = (part[:1] for part in batch)
    training.step(is_checkpointed)  # makes the moments
    training.clips, training.labels = batch
    training.step(is_checkpointed)
    return peak_memory() - before


def difference_of(family: str, sizes: dict[str, int]) -> float:
    """The largest difference of the loss and of a gradient, by the largest value of each."""
    training, found = Training(family, sizes, 2), []
    for is_checkpointed in (False, True):
        training.optimizer.zero_grad()
        loss = torch.tensor(training.backward(is_checkpointed))
        found.append([loss, *(weight.grad for weight in training.model.parameters())])
    pairs = zip(*found, strict=True)
    return max(((ours - other).abs().max() / other.abs().max().clamp_min(1e-6)).item() for other, ours in pairs)


def seconds_of(family: str, sizes: dict[str, int], batch_size: int, rounds: int) -> dict[str, float]:
    """The least seconds of processors of a step without and with."""
    training = Training(family, sizes, batch_size)
    runs = {"without": lambda: training.step(False), "with": lambda: training.step(True)}
    return fastest(runs, rounds=rounds, clock=time.process_time)


def compare_steps(family: str, sizes: dict[str, int], batch_size: int, rounds: int, threads: int) -> tuple[bool, float]:
    """Whether the goals are reached, and by how much a batch grows in the same memory."""
    name = FAMILIES[family]
    difference = in_own_process(threads, difference_of, family, sizes)
    require_agreement(f"Losses or gradients of {name} with gradient checkpointing and without", difference, TOLERANCE)
    without, half, whole = (
        in_own_process(threads, memory_of, family, sizes, size, is_checkpointed)
        for size, is_checkpointed in ((batch_size, False), (batch_size // 2, True), (batch_size, True))
    )
    larger = batch_size + int(batch_size / 2 * max(without - whole, 0) / max(whole - half, 1e-3))
    filled = in_own_process(threads, memory_of, family, sizes, larger, True)
    seconds = in_own_process(threads, seconds_of, family, sizes, batch_size, rounds)
    for kind, memory, taken in (("without", without, seconds["without"]), ("with", whole, seconds["with"])):
        print(f"{name:12}{kind:9}batch {batch_size:4}{memory * 1024:8.0f} MiB{taken:8.2f} s")
    print(f"{name:12}{'with':9}batch {larger:4}{filled * 1024:8.0f} MiB", flush=True)
    print_ratio(f"{name}, gradient checkpointing", whole / without, "without", quantity="memory")
    print_ratio(f"{name}, gradient checkpointing", seconds["with"] / seconds["without"], "without")
    reached = whole <= MEMORY_GOAL * without and seconds["with"] <= TIME_GOAL * seconds["without"]
    return reached, larger / batch_size


def learn_digits(family: str, digits: Path, epochs: int, growth: float, is_checkpointed: bool) -> Learned:
    """The demo's training, with a batch that is larger by a factor, and a learning rate by its root."""
    sizes, batch_size, learning_rate = DIGITS[family]
    model, start = make_model(family, sizes), time.process_time()
    data, edge = load_video_dataset(digits, labels=list(MOTIONS)), sizes["image_size"]
    processor = VideoClipProcessor(num_frames=8, sampling_strategy="uniform", size=edge, crop_size=edge)
    with tempfile.TemporaryDirectory() as folder:
        arguments = VideoTrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=int(batch_size * growth),
            per_device_eval_batch_size=32,
            learning_rate=learning_rate * math.sqrt(growth),
            activation_checkpointing=is_checkpointed,
            eval_strategy="no",
            save_strategy="no",
            load_best_model_at_end=False,
            logging_steps=1,
            use_cpu=True,
            disable_tqdm=True,
        )
        train, test = (ClipDataset(data[split], processor, training=split == "train") for split in ("train", "test"))
        trainer = VideoTrainer(model, arguments, train_dataset=train, processing_class=processor)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return Learned(losses, trainer.evaluate(test)["eval_top1_accuracy"], time.process_time() - start)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    print_machine("torch", "transformers", threads=arguments.threads)
    threads, epochs, videos, sizes = arguments.threads, arguments.epochs, (100, 25), {}
    batch_size, rounds = arguments.batch_size, arguments.rounds
    if arguments.smoke:
        batch_size, rounds, epochs, videos = 4, 1, 1, (2, 1)
        sizes = {"image_size": 32, "hidden_size": 32, "num_hidden_layers": 3}
    reaches_goals, growths = True, {}
    for family in FAMILIES:
        reached, growths[family] = compare_steps(family, sizes, batch_size, rounds, threads)
        reaches_goals &= reached
    with tempfile.TemporaryDirectory() as folder:
        digits = Path(folder, "digits")
        in_own_process(1, write_digits, digits, *videos)
        for family, name in FAMILIES.items():
            plain, checkpointed, larger = (
                in_own_process(threads, learn_digits, family, digits, epochs, growth, is_checkpointed)
                for growth, is_checkpointed in ((1, False), (1, True), (growths[family], True))
            )
            difference = np.abs(np.subtract(plain.losses, checkpointed.losses)).max()
            require_agreement(f"The losses of {name} with gradient checkpointing and without", difference, TOLERANCE)
            print(
                f"{name}, {epochs} epochs of the digits: {plain.accuracy:.1%} without, {checkpointed.accuracy:.1%} with,"
                f" the losses of {len(plain.losses)} steps differ by {difference:.0e} at most; {larger.accuracy:.1%} "
                f"with a batch {growths[family]:.1f} times as large, in {len(larger.losses)} steps",
                flush=True,
            )
    return 0 if reaches_goals or arguments.smoke else GOAL_MISSED


def write_digits(folder: Path, train_per_class: int, test_per_class: int) -> None:
    write_moving_digits(folder, train_per_class=train_per_class, test_per_class=test_per_class)


if __name__ == "__main__":
    sys.exit(main())
