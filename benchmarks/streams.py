"""
A training on a stream of 2,000 clips by two processes that is killed, and goes on: how often each clip is trained on,
how far the losses are from those of a training that nothing disturbed, and the peak memory beside a data set in
memory.

The clips are moving digits of 8 frames inside eight Parquet files. Each process reads its own files. All processes are
killed in the middle of the first epoch, some steps after a checkpoint; the run then goes on from there to the end of
the second epoch. The script fails if a clip is not trained on once an epoch, or a loss differs. It takes about three
minutes on 2 CPU cores.

    python benchmarks/streams.py [--smoke]
"""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, Features, Video, disable_progress_bars
from helpers.measurement import GOAL_MISSED, make_parser, print_machine
from transformers import PrinterCallback, TrainerCallback, set_seed

from hf_video.data import ClipDataset, ClipStream, collate_clips, load_video_dataset, load_video_stream
from hf_video.demo import write_moving_digits
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.processing import VideoClipProcessor
from hf_video.training import VideoTrainer, VideoTrainingArguments

# All that needs threads runs in forks of this process, which has imported everything.
FORK = multiprocessing.get_context("fork")
NUM_PROCESSES, NUM_SHARDS, NUM_CLASSES, BATCH_SIZE = 2, 8, 8, 10


class Death(TrainerCallback):
    """Kills the process behind a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def write_shards(folder: Path, num_clips: int) -> None:
    digits = write_moving_digits(
        folder / "mp4", train_per_class=num_clips // NUM_CLASSES, test_per_class=1, num_frames=8, image_size=48
    )
    paths = sorted((digits / "train").rglob("*.mp4"))
    names = sorted({path.parent.name for path in paths})
    features = Features({"video": Video(decode=False), "label": ClassLabel(names=names)})
    for shard in range(NUM_SHARDS):
        rows = [
            {"video": {"bytes": path.read_bytes(), "path": path.name}, "label": path.parent.name}
            for path in paths[shard::NUM_SHARDS]
        ]
        target = folder / "parquet" / f"train-{shard}.parquet"
        target.parent.mkdir(exist_ok=True)
        Dataset.from_list(rows, features=features).cast_column("video", Video()).to_parquet(target)


def work(rank: int, port: int, shards: Path, folder: Path, steps: int, killed_at: int, is_stream: bool) -> None:
    """Trains in one process of two."""
    group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": NUM_PROCESSES, "LOCAL_WORLD_SIZE": NUM_PROCESSES}
    os.environ.update({name: str(value) for name, value in group.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    processor = VideoClipProcessor(num_frames=4, sampling_strategy="dense", size=32, crop_size=24)
    clips: Any
    if is_stream:
        clips = ClipStream(load_video_stream(shards)[0], processor, shuffle_buffer_size=64)
    else:
        clips = ClipDataset(load_video_dataset(shards)["train"], processor, training=True)
    set_seed(0)
    sizes = {"image_size": 24, "patch_size": 8, "num_frames": 4, "hidden_size": 24, "intermediate_size": 48}
    config = VideoViTConfig(**sizes, num_hidden_layers=2, num_attention_heads=2, num_labels=NUM_CLASSES)
    arguments = VideoTrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=BATCH_SIZE,
        logging_steps=1,
        eval_strategy="no",
        load_best_model_at_end=False,
        save_strategy="steps",
        save_steps=max(steps // 10, 1),
        use_cpu=True,
        disable_tqdm=True,
        reading_threads=1,
    )

    def collate(items: list[Any]) -> Any:
        with open(folder / f"seen_{rank}.jsonl", "a") as file:
            print(json.dumps([trainer.state.global_step, [item["sample_key"][1:] for item in items]]), file=file)
        return collate_clips(items)

    trainer = VideoTrainer(
        model=VideoViTForVideoClassification(config),
        args=arguments,
        train_dataset=clips,
        data_collator=collate,
        callbacks=[Death(killed_at)] if killed_at else [],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")) or None)
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (folder / f"result_{rank}.json").write_text(json.dumps({"losses": losses, "peak": peak}))
    sys.stdout.flush()
    os._exit(0)  # a thread of a process group that is late may abort the process while it ends


def train(shards: Path, folder: Path, steps: int, killed_at: int = 0, is_stream: bool = True) -> float:
    """Seconds of a training by all processes."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.perf_counter()
    words = (port, shards, folder, steps, killed_at, is_stream)
    processes = [FORK.Process(target=work, args=(rank, *words)) for rank in range(NUM_PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != 0 and not killed_at:
            sys.exit(f"A process of the training ended with {process.exitcode}.")
        if process.exitcode == 0 and killed_at:
            sys.exit("A process was not killed.")
    return time.perf_counter() - start


def read_results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"result_{rank}.json").read_text()) for rank in range(NUM_PROCESSES)]


def count_clips(folder: Path) -> Counter[tuple[int, ...]]:
    """How often each clip of each epoch was trained on, by the steps that the last model is made of."""
    seen: Counter[tuple[int, ...]] = Counter()
    for rank in range(NUM_PROCESSES):
        lines = map(json.loads, (folder / f"seen_{rank}.jsonl").read_text().splitlines())
        for keys in dict(lines).values():  # a step that was trained again stands further down
            seen.update(map(tuple, keys))
    return seen


def main() -> int:
    arguments = make_parser(__doc__).parse_args()
    num_clips = 160 if arguments.smoke else 2000
    steps = 2 * num_clips // (NUM_PROCESSES * BATCH_SIZE)
    disable_progress_bars()
    print_machine("torch", "datasets", "av")
    folder = Path(tempfile.mkdtemp())
    try:
        writer, shards = FORK.Process(target=write_shards, args=(folder, num_clips)), folder / "parquet"
        writer.start()
        writer.join()
        whole, killed, memory = (folder / name for name in ("whole", "killed", "memory"))
        seconds = train(shards, whole, steps)
        train(shards, killed, steps, killed_at=steps // 4 + 1)
        resumed = train(shards, killed, steps)
        in_memory = train(shards, memory, steps, is_stream=False)
        seen, (first, *_), (again, *_) = count_clips(killed), read_results(whole), read_results(killed)
        difference = max(abs(again["losses"][step] - loss) for step, loss in first["losses"].items())
        peaks = {path.name: max(each["peak"] for each in read_results(path)) for path in (whole, memory)}
    finally:
        shutil.rmtree(folder)
    times = Counter(seen.values())
    print(f"{num_clips:,} clips, {NUM_PROCESSES} processes, {steps} steps, killed behind step {steps // 4 + 1}")
    for epoch in range(2):
        counts = Counter(number for (of_epoch, _), number in seen.items() if of_epoch == epoch)
        print(f"epoch {epoch}: " + ", ".join(f"{n:,} clips trained on {k} times" for k, n in sorted(counts.items())))
    print(f"largest difference of a loss: {difference:g} over {len(first['losses'])} steps")
    print(f"seconds: stream {seconds:.1f}, after the kill {resumed:.1f}, data set in memory {in_memory:.1f}")
    print(f"peak memory of a process: stream {peaks['whole']:.0f} MiB, data set in memory {peaks['memory']:.0f} MiB")
    is_good = times == {1: 2 * num_clips} and difference == 0
    return 0 if is_good else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
