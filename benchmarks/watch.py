"""
`hf-video watch` over 10,000 frames of one file: memory must stay flat, and frames per second steady.

A small model with random weights watches a video made on the spot, every frame of it, in a process of its own. Each
500 frames, with each answer, the speed and the memory of that process are taken. The first 2,000 frames warm up.

    python benchmarks/watch.py [--frames 10000] [--threads 2]
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import av
import numpy as np
import psutil
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import InstructBlipVisionConfig, LlamaConfig, PreTrainedTokenizerFast

from hf_video import MemoryBankQFormerConfig, MemoryBankQFormerForConditionalGeneration, MemoryBankQFormerProcessor
from hf_video.processing import VideoClipProcessor

FPS, IMAGE_SIZE, FRAMES_PER_MEASUREMENT, WARM_UP = 25, 56, 500, 4
MAX_GROWTH, MAX_SLOWDOWN = 0.05, 0.10


def write_model(folder: Path) -> None:
    words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", "what", "is", "shown"])}
    tokenizers = [
        PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")),
            **{"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        )
        for _ in range(2)
    ]
    sizes = {"size": {"shortest_edge": IMAGE_SIZE}, "crop_size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE}}
    processor = MemoryBankQFormerProcessor(VideoClipProcessor(**sizes), *tokenizers, num_query_tokens=8)
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MemoryBankQFormerConfig(
        vision_config=InstructBlipVisionConfig(**small, image_size=IMAGE_SIZE, patch_size=14),
        qformer_config={"vocab_size": 100, **small},
        text_config=LlamaConfig(**small, vocab_size=len(tokenizers[0])),
        num_query_tokens=8,
        video_token_id=processor.video_token_id,
    )
    MemoryBankQFormerForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)


def write_video(path: Path, num_frames: int) -> None:
    """A bright square that wanders over noise."""
    noise = np.random.default_rng(0).integers(0, 80, (48, 64, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"preset": "ultrafast"})
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for t in range(num_frames):
            frame = noise.copy()
            row, column = t // 7 % 40, t // 3 % 56
            frame[row : row + 8, column : column + 8] = 200
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def measure(model: Path, video: Path, threads: int) -> tuple[list[float], list[float]]:
    """Frames a second and MiB of memory, at each measurement."""
    words = ["watch", video, "--model", model, "--question", "what is shown", "--fps", FPS, "--json"]
    words += ["--every", FRAMES_PER_MEASUREMENT / FPS, "--max-new-tokens", 1, "--device", "cpu"]
    command = [sys.executable, "-m", "hf_video.cli", *map(str, words), "--memory", str(model / "memory")]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        watched = psutil.Process(process.pid)
        moments, frames, sizes = [], [], []
        for line in process.stdout or ():
            moments.append(time.perf_counter())
            frames.append(json.loads(line)["frames"])
            sizes.append(watched.memory_info().rss / 2**20)
    if process.returncode:
        sys.exit(f"`hf-video watch` ended with {process.returncode}.")
    speeds = np.diff(frames) / np.diff(moments)
    # The last answer comes after the end, not after as many frames.
    return speeds[:-1].tolist(), sizes[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        model, video = Path(temporary, "model"), Path(temporary, "video.mp4")
        write_model(model)
        write_video(video, arguments.frames)
        speeds, sizes = measure(model, video, arguments.threads)
    print(f"{datetime.date.today()}, torch {torch.__version__}, {arguments.threads} threads")
    print("frames a second: " + " ".join(f"{speed:.0f}" for speed in speeds))
    print("memory in MiB:   " + " ".join(f"{size:.0f}" for size in sizes))
    steady = speeds[WARM_UP:]
    quarter = max(len(steady) // 4, 1)
    early, late = statistics.median(steady[:quarter]), statistics.median(steady[-quarter:])
    growth = max(sizes[WARM_UP:]) / sizes[WARM_UP] - 1
    print(f"speed: {late / early - 1:+.1%} from the first quarter to the last; wanted: above -{MAX_SLOWDOWN:.0%}")
    print(f"memory: {growth:+.1%} at most; wanted: below {MAX_GROWTH:.0%}")


if __name__ == "__main__":
    main()
