"""Measures what `VideoTrainer` costs: clips per second beside a bare loop, and the time spent waiting for data.

Both train the same model on the same batches, held in memory. Waiting is measured on the demo's videos, read by two
workers. `python benchmarks/training.py` prints one line for each figure, and fails if a goal is missed.
"""

import copy
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import TrainerCallback, get_cosine_schedule_with_warmup, set_seed

from hf_video.data import ClipDataset, collate_clips, load_video_dataset, write_moving_digits
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.processing import VideoClipProcessor
from hf_video.training import VideoTrainer, VideoTrainingArguments
from hf_video.training.optimization import parameter_groups, parameter_settings

BATCH_SIZE = 16
NUM_STEPS = 40
WARM_UP_STEPS = 5
ROUNDS = 3
SPEED_GOAL = 0.95
WAITING_LIMIT = 0.10


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
    """Records the time when the last step of the warm-up ended, and the time when the last step of all ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, args, state, control, **kwargs) -> None:  # noqa: ANN001
        self.times.append(time.perf_counter())


def make_model() -> VideoViTForVideoClassification:
    """The model of `hf-video demo`."""
    set_seed(0)
    sizes = {"image_size": 48, "patch_size": 8, "num_frames": 8, "hidden_size": 128, "intermediate_size": 512}
    return VideoViTForVideoClassification(
        VideoViTConfig(**sizes, num_hidden_layers=4, num_attention_heads=4, num_labels=8)
    )


def trainer_speed(model: VideoViTForVideoClassification, folder: str) -> tuple[float, torch.Tensor]:
    """Clips per second through `VideoTrainer`, and a trained weight."""
    arguments = VideoTrainingArguments(
        output_dir=folder,
        max_steps=NUM_STEPS,
        per_device_train_batch_size=BATCH_SIZE,
        warmup_steps=4,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        disable_tqdm=True,
        logging_steps=NUM_STEPS,
        train_sampling_strategy="sequential",
        use_cpu=not torch.cuda.is_available(),
    )
    clock = Clock()
    trainer = VideoTrainer(
        model=copy.deepcopy(model), args=arguments, train_dataset=ClipsInMemory(NUM_STEPS * BATCH_SIZE)
    )
    trainer.add_callback(clock)
    trainer.train()
    return speed(clock.times), trainer.model.classifier.weight.detach().cpu()


def bare_speed(model: VideoViTForVideoClassification) -> tuple[float, torch.Tensor]:
    """Clips per second of a loop that does the same and nothing else, and a trained weight."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = copy.deepcopy(model).to(device).train()
    settings = parameter_settings(model, weight_decay=0.05)
    optimizer = torch.optim.AdamW(parameter_groups(model, settings, learning_rate=1e-4), fused=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, 4, NUM_STEPS)
    times = []
    for batch in DataLoader(ClipsInMemory(NUM_STEPS * BATCH_SIZE), BATCH_SIZE, collate_fn=collate_clips):
        loss = model(**{name: tensor.to(device) for name, tensor in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()
        times.append(time.perf_counter())
    return speed(times), model.classifier.weight.detach().cpu()


def speed(times: list[float]) -> float:
    return BATCH_SIZE * (len(times) - 1 - WARM_UP_STEPS) / (times[-1] - times[WARM_UP_STEPS])


def share_of_waiting(model: VideoViTForVideoClassification, folder: Path) -> float:
    """The share of the time of a training epoch without a batch, on the demo's videos, read by two workers."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = copy.deepcopy(model).to(device).train()
    data = load_video_dataset(write_moving_digits(folder, train_per_class=60, test_per_class=1))
    processor = VideoClipProcessor(num_frames=8, sampling_strategy="uniform", size=48, crop_size=48)
    clips = ClipDataset(data["train"], processor, training=True)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = iter(DataLoader(clips, BATCH_SIZE, num_workers=2, collate_fn=collate_clips, drop_last=True))
    next(loader)  # the start of the workers
    waited, begin = 0.0, time.perf_counter()
    while True:
        asked = time.perf_counter()
        batch = next(loader, None)
        waited += time.perf_counter() - asked
        if batch is None:
            return waited / (time.perf_counter() - begin)
        model(**{name: tensor.to(device) for name, tensor in batch.items()}).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> int:
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        # Alternating, so that a machine whose speed drifts favours neither; the best of each.
        rounds = [(trainer_speed(model, folder), bare_speed(model)) for _ in range(ROUNDS)]
        (through_trainer, weight), (bare, bare_weight) = (
            max(runs, key=lambda run: run[0]) for runs in zip(*rounds, strict=True)
        )
        if not torch.allclose(weight, bare_weight, atol=1e-5):
            print("The two do not train the same model: no figures.")
            return 1
        waiting = share_of_waiting(model, Path(folder, "digits"))
    print(f"VideoTrainer {through_trainer:.1f} clips/s, bare loop {bare:.1f} clips/s: {through_trainer / bare:.1%}")
    print(f"waiting for data, two workers: {waiting:.1%} of the time")
    return 0 if through_trainer >= SPEED_GOAL * bare and waiting <= WAITING_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
