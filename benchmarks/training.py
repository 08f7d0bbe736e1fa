"""
What `VideoTrainer` costs, in one process and in two: clips per second beside a bare loop, and the time spent waiting
for data.

Both train the same model on the same batches, held in memory: 16 clips a step in all processes together. torchrun
starts the processes, they speak gloo, and each computes with one thread. Several processes have the bare loop of
`DistributedDataParallel` beside them. The trained weights must be equal, those of two processes to those of one too,
otherwise no figure is printed. One and two processes take turns, so that a machine whose speed drifts favours neither;
the best of each counts.

Waiting is measured on the demo's videos, read by two workers. The script fails if a goal is missed. It takes about
four minutes on 2 CPU cores.

    python benchmarks/training.py [--processes 1 2] [--threads 2] [--smoke]
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from helpers.measurement import (
    GOAL_MISSED,
    in_own_process,
    make_parser,
    print_machine,
    print_ratio,
    require_agreement,
)
from helpers.training_loops import BATCH_SIZE, Trained, make_model, train_both
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.utils.data import DataLoader

from hf_video.data import ClipTask, VideoDataset, collate_clips, load_video_dataset
from hf_video.demo import write_moving_digits
from hf_video.processing import VideoClipProcessor

TOLERANCE = 1e-5
SPEED_GOAL = 0.95
WAITING_LIMIT = 0.10


def train_in_processes(num_processes: int, num_layers: int, num_steps: int) -> tuple[Trained, Trained]:
    """What the first of the processes that torchrun starts has trained. They are forks, so that none imports anew."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        max_restarts=0,
        monitor_interval=0.1,
        run_id="benchmark",
    )
    return elastic_launch(config, train_both)(num_layers, num_steps, 1)[0]


def require_equal_weights(outputs: str, found: Trained, expected: Trained) -> None:
    differences = [np.abs(weight - expected.weights[name]).max() for name, weight in found.weights.items()]
    require_agreement(outputs, float(np.max(differences)), TOLERANCE)


def share_of_waiting(num_layers: int, num_videos: int, folder: Path) -> float:
    """The share of the time of a training epoch without a batch, on the demo's videos, read by two workers."""
    model = make_model(num_layers).train()
    data = load_video_dataset(write_moving_digits(folder, train_per_class=num_videos, test_per_class=1))
    processor = VideoClipProcessor(num_frames=8, sampling_strategy="uniform", size=48, crop_size=48)
    clips = VideoDataset(data["train"], ClipTask(processor), training=True)
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
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", choices=[1, 2, 4, 8, 16], default=[1, 2])
    parser.add_argument("--threads", type=int, default=2, help="threads while waiting is measured")
    arguments = parser.parse_args()
    print_machine("torch", "transformers")
    # What this process computes takes no threads of PyTorch: they would not survive the fork below.
    torch.set_num_threads(1)
    smoke, full = (1, 4, 4, 1), (3, 40, 60, 4)
    num_rounds, num_steps, num_videos, num_layers = smoke if arguments.smoke else full
    runs: dict[int, list[tuple[Trained, Trained]]] = {number: [] for number in arguments.processes}
    first = None
    for _ in range(num_rounds):
        for number, found in runs.items():
            found.append(train_in_processes(number, num_layers, num_steps))
            first = first or found[0][1]
            for name, trained in zip(("VideoTrainer", "the bare loop"), found[-1], strict=True):
                outputs = f"The weights that {name} trained in {number} processes and those of the first bare loop"
                require_equal_weights(outputs, trained, first)
    with tempfile.TemporaryDirectory() as folder:
        digits = Path(folder, "digits")
        waiting = in_own_process(arguments.threads, share_of_waiting, num_layers, num_videos, digits)
    # Of a bare loop and of `VideoTrainer`, by the number of processes.
    best = {
        number: [max(each.speed for each in column) for column in zip(*found, strict=True)]
        for number, found in runs.items()
    }
    reaches_goals, few = waiting <= WAITING_LIMIT, min(best)
    for number, (ours, bare) in best.items():
        reaches_goals &= ours >= SPEED_GOAL * bare
        print(f"processes: {number}; VideoTrainer {ours:.1f} clips/s, bare loop {bare:.1f} clips/s: {ours / bare:.1%}")
        print_ratio(f"VideoTrainer, processes: {number}", bare / ours, "bare loop", quantity="time of a clip")
        for name, fewer, more in zip(("VideoTrainer", "bare loop"), best[few], (ours, bare), strict=True):
            if number > few:
                case, times = f"{name}, processes: {number}", number / few
                print(f"  {name}: {more / fewer:.2f}x the clips/s of processes: {few}")
                print_ratio(case, fewer / more, f"processes: {few}", quantity="time of a clip")
                limit = f"{times:g}x the speed"
                print_ratio(case, times * fewer / more, limit, quantity="time of a clip", is_limit=True)
    print(f"waiting for data, two workers: {waiting:.1%} of the time")
    return 0 if reaches_goals or arguments.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
