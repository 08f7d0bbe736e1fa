"""
`hf-video watch` over 10,000 frames of one file: memory must stay flat, and frames per second steady.

A small model with random weights watches a video made on the spot, every frame of it, in a process of its own. Each
500 frames, with each answer, the speed and the memory of that process are taken. The first 2,000 frames warm up. It
takes about five minutes on 2 CPU cores.

    python benchmarks/watch.py [--frames 10000] [--threads 2] [--smoke]
"""

import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import av
import numpy as np
import psutil
import torch
from helpers.measurement import in_own_process, make_parser, print_machine
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import InstructBlipVisionConfig, LlamaConfig, PreTrainedTokenizerFast

from hf_video import MemoryBankQFormerConfig, MemoryBankQFormerForConditionalGeneration, MemoryBankQFormerProcessor
from hf_video.cli.main import main as hf_video
from hf_video.processing import VideoClipProcessor

FPS, IMAGE_SIZE, WARM_UP = 25, 56, 4
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


def watch(words: list[str], output: int, threads: int) -> None:
    sys.stdout = open(output, "w")
    torch.set_num_threads(threads)
    sys.exit(hf_video(["watch", *words]))


def measure(model: Path, video: Path, interval: int, threads: int) -> tuple[list[float], list[float]]:
    """Frames a second and MiB of memory, at each measurement, which are `interval` frames apart."""
    words = [video, "--model", model, "--question", "what is shown", "--fps", FPS, "--json", "--every", interval / FPS]
    words += ["--max-new-tokens", 1, "--device", "cpu", "--memory", model / "memory"]
    reader, writer = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=watch, args=([*map(str, words)], writer, threads))
    process.start()
    os.close(writer)
    watched = psutil.Process(process.pid)
    moments, frames, sizes = [], [], []
    with open(reader) as lines:
        for line in lines:
            moments.append(time.perf_counter())
            frames.append(json.loads(line)["frames"])
            sizes.append(watched.memory_info().rss / 2**20)
    process.join()
    if process.exitcode:
        sys.exit(f"`hf-video watch` ended with {process.exitcode}.")
    speeds = np.diff(frames) / np.diff(moments)
    # The last answer comes after the end, not after as many frames.
    return speeds[:-1].tolist(), sizes[:-1]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    num_frames, interval = (80, 10) if arguments.smoke else (arguments.frames, 500)
    print_machine("torch", "transformers", threads=arguments.threads)
    with tempfile.TemporaryDirectory() as temporary:
        model, video = Path(temporary, "model"), Path(temporary, "video.mp4")
        in_own_process(arguments.threads, write_model, model)
        write_video(video, num_frames)
        speeds, sizes = measure(model, video, interval, arguments.threads)
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
