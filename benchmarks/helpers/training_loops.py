"""The same training through `VideoTrainer` and in a bare loop, in one process or in each of several."""

import os
import tempfile
import time
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset
from transformers import PrinterCallback, TrainerCallback, get_cosine_schedule_with_warmup, set_seed

from hf_video.data import collate_clips
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.training import VideoTrainer, VideoTrainingArguments
from hf_video.training.optimization import parameter_groups, parameter_settings

# Clips of a step, in all processes together.
BATCH_SIZE = 16


class Trained(NamedTuple):
    speed: float  # clips per second of all processes
    weights: dict[str, np.ndarray]


class ClipsInMemory(Dataset):
    def __init__(self, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.clips = torch.randn(BATCH_SIZE, 1, 8, 3, 48, 48, generator=generator)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict:
        return {"pixel_values": self.clips[index % BATCH_SIZE], "labels": index % 8}


class Clock(TrainerCallback):
    """Records the time at the end of each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, args, state, control, **kwargs) -> None:  # noqa: ANN001
        self.times.append(time.perf_counter())


def make_model(num_layers: int) -> VideoViTForVideoClassification:
    """The model of `hf-video demo`."""
    set_seed(0)
    sizes = {"image_size": 48, "patch_size": 8, "num_frames": 8, "hidden_size": 128, "intermediate_size": 512}
    return VideoViTForVideoClassification(
        VideoViTConfig(**sizes, num_hidden_layers=num_layers, num_attention_heads=4, num_labels=8)
    )


def train_both(num_layers: int, num_steps: int, threads: int) -> tuple[Trained, Trained]:
    """What `VideoTrainer` and the bare loop make of the same model on the same clips, one after the other.

    Every process that torchrun has started calls it, or one alone.
    """
    torch.set_num_threads(threads)
    # Otherwise accelerate gives all cores to a process that is alone.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return train_with_trainer(make_model(num_layers), num_steps), train_bare(make_model(num_layers), num_steps)


def train_with_trainer(model: VideoViTForVideoClassification, num_steps: int) -> Trained:
    with tempfile.TemporaryDirectory() as folder:
        arguments = VideoTrainingArguments(
            output_dir=folder,
            max_steps=num_steps,
            per_device_train_batch_size=BATCH_SIZE // num_processes(),
            warmup_steps=4,
            eval_strategy="no",
            save_strategy="no",
            load_best_model_at_end=False,
            disable_tqdm=True,
            logging_steps=num_steps,
            train_sampling_strategy="sequential",
            use_cpu=True,
        )
        clock = Clock()
        trainer = VideoTrainer(model=model, args=arguments, train_dataset=ClipsInMemory(num_steps * BATCH_SIZE))
        trainer.remove_callback(PrinterCallback)  # its lines are no figures
        trainer.add_callback(clock)
        trainer.train()
    return Trained(speed(clock.times), weights_of(model))


def train_bare(model: VideoViTForVideoClassification, num_steps: int) -> Trained:
    """A loop that does the same and nothing else: with `DistributedDataParallel` if there are several processes."""
    model.train()
    optimizer = torch.optim.AdamW(
        parameter_groups(model, parameter_settings(model, weight_decay=0.05), learning_rate=1e-4), fused=True
    )
    schedule = get_cosine_schedule_with_warmup(optimizer, 4, num_steps)
    clips, part = ClipsInMemory(num_steps * BATCH_SIZE), BATCH_SIZE // num_processes()
    if num_processes() > 1:
        rank = int(os.environ["RANK"])
        own = [i for i in range(len(clips)) if i % BATCH_SIZE // part == rank]
        loader, network = (
            DataLoader(Subset(clips, own), part, collate_fn=collate_clips),
            DistributedDataParallel(model),
        )
    else:
        loader, network = DataLoader(clips, part, collate_fn=collate_clips), model
    times = []
    for batch in loader:
        loss = network(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()
        times.append(time.perf_counter())
    return Trained(speed(times), weights_of(model))


def num_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def weights_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: weight.numpy(force=True).copy() for name, weight in model.named_parameters()}


def speed(times: list[float]) -> float:
    """Clips per second after the first steps, which are slower."""
    timed = times[len(times) // 8 :]
    return BATCH_SIZE * (len(timed) - 1) / (timed[-1] - timed[0])
