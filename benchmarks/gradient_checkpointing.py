"""
Memory and time of training with gradient checkpointing beside training without, VideoViT and VideoMamba, and the batch
that fits into the memory that it spares.

The models are 192 channels wide, with 12 and 24 layers; a step is forward, backward and AdamW in float32, for a batch
of 24 clips of 8 frames of 112 x 112 pixels. Both trainings must give equal losses and gradients, otherwise no figure
is printed. Memory is the peak of a process, less what it has before the model is made: weights, gradients, both
moments of AdamW, the batch and activations. glibc returns freed memory at once here, as the allocators of GPUs do; by
default it keeps blocks of up to 32 MiB. Time is that of processors, in turns, the least of each. The larger batch is
the one whose memory is that of training without, by its growth from half a batch to one; its memory is measured, too.

Then the task of `hf-video demo` is learned, on frames of 24 x 24 pixels: without and with at the same batch, where the
losses of all steps must be equal, and with a batch that is larger by the same factor, in as many epochs. The accuracy
is that on held-out digits. The script fails if a goal is missed: 0.36 of the memory and 1.36 of the time. It takes
about fifteen minutes on an idle core.

    python benchmarks/gradient_checkpointing.py [--batch-size 24] [--rounds 2] [--epochs 16] [--threads 1] [--smoke]
"""

import ctypes
import functools
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
SIZES = {"image_size": 112, "num_frames": 8, "hidden_size": 192, "num_labels": len(MOTIONS)}
DEPTHS = {
    "videovit": {"num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768},
    "videomamba": {"num_hidden_layers": 24},
}
# Models as those of `hf-video demo`, for frames of 24 x 24 pixels, with their batch size and learning rate.
DIGITS = {
    "videovit": ({"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}, 16, 1e-3),
    "videomamba": ({"hidden_size": 64, "tubelet_size": 2, "state_size": 8}, 32, 4e-3),
}
DIGIT_SIZES = {"image_size": 24, "patch_size": 8, "num_hidden_layers": 4}


def make_model(family: str, sizes: dict[str, int]) -> PreTrainedModel:
    set_seed(0)
    if family == "videomamba":
        return VideoMambaForVideoClassification(VideoMambaConfig(**SIZES | DEPTHS[family] | sizes))
    return VideoViTForVideoClassification(VideoViTConfig(**SIZES | DEPTHS[family] | sizes))


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


def compare_steps(
    family: str, sizes: dict[str, int], batch_size: int, rounds: int, threads: int
) -> tuple[bool, float]:
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


def read_digits(num_train: int, num_test: int) -> dict[str, list[Any]]:
    """The clips of the demo's videos, so many of each class."""
    with tempfile.TemporaryDirectory() as folder:
        digits = write_moving_digits(Path(folder, "digits"), train_per_class=num_train, test_per_class=num_test)
        data, size = load_video_dataset(digits, labels=list(MOTIONS)), DIGIT_SIZES["image_size"]
        processor = VideoClipProcessor(num_frames=8, sampling_strategy="uniform", size=size, crop_size=size)
        return {split: list(ClipDataset(data[split], processor, training=False)) for split in ("train", "test")}


def learn_digits(
    family: str, clips: dict[str, list[Any]], epochs: int, growth: float, is_checkpointed: bool
) -> tuple[list[float], float]:
    """The losses of all steps, and the accuracy on held-out digits. With a batch that is larger by a factor, the
    learning rate grows by its root."""
    sizes, batch_size, learning_rate = DIGITS[family]
    with tempfile.TemporaryDirectory() as folder:
        arguments = VideoTrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=int(batch_size * growth),
            per_device_eval_batch_size=50,
            learning_rate=learning_rate * math.sqrt(growth),
            activation_checkpointing=is_checkpointed,
            eval_strategy="no",
            save_strategy="no",
            load_best_model_at_end=False,
            logging_steps=1,
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = VideoTrainer(make_model(family, DIGIT_SIZES | sizes), arguments, train_dataset=clips["train"])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return losses, trainer.evaluate(clips["test"])["eval_top1_accuracy"]


def compare_learning(family: str, clips: dict[str, list[Any]], epochs: int, growth: float, threads: int) -> None:
    """Prints the accuracy without, with, and with a larger batch."""
    run = functools.partial(in_own_process, threads, learn_digits, family, clips, epochs)
    (expected, plain), (losses, same), (fewer, larger) = run(1, False), run(1, True), run(growth, True)
    difference = np.abs(np.subtract(losses, expected)).max()
    require_agreement(
        f"The losses of {FAMILIES[family]} with gradient checkpointing and without", difference, TOLERANCE
    )
    print(
        f"{FAMILIES[family]}, {epochs} epochs of the digits: {plain:.1%} without, {same:.1%} with, the losses of all "
        f"{len(losses)} steps differ by {difference:.0e} at most; {larger:.1%} with {growth:.1f} times the batch, in "
        f"{len(fewer)} steps",
        flush=True,
    )


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
        sizes = {"image_size": 32, "hidden_size": 48, "num_hidden_layers": 3}
    reaches_goals, growths = True, {}
    for family in FAMILIES:
        reached, growths[family] = compare_steps(family, sizes, batch_size, rounds, threads)
        reaches_goals &= reached
    clips = in_own_process(threads, read_digits, *videos)
    for family in FAMILIES:
        compare_learning(family, clips, epochs, growths[family], threads)
    return 0 if reaches_goals or arguments.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
