"""
What a frame costs with a full memory bank: keys and values kept between frames, against computed for every frame.

The published size: 32 queries, 257 tokens of 1,408 channels a frame, banks of 20 frames, 12 layers, 32 tokens of text;
random weights. Both ways read the same frames in the same run, and a figure is printed only when their outputs agree.
With `--tower` a frame also goes through an EVA-ViT of the published size. With `--long` a small model reads 10,000
frames: time and memory must stay where they were.

    python benchmarks/memory_bank.py [--frames 8] [--threads 2] [--tower] [--long]
"""

import argparse
import datetime
import resource
import statistics
import sys
import time

import torch
from transformers import InstructBlipVisionConfig

from hf_video import MemoryBankQFormerConfig, MemoryBankQFormerModel

TOLERANCE = 1e-4
TEXT_LENGTH, NUM_TOKENS, BANK_LENGTH = 32, 257, 20
TARGET_SPEEDUP, TARGET_DRIFT = 5.0, 0.05


def frame_times(
    model: MemoryBankQFormerModel, frames: torch.Tensor, text: dict[str, torch.Tensor], keep: bool
) -> tuple[list[float], torch.Tensor]:
    """Seconds for each frame of `(1, num_frames, num_tokens, channels)`, and the queries after the last."""
    memory, seconds = None, []
    for frame in frames.split(1, dim=1):
        if memory is not None and not keep:
            memory.drop_projections()
        start = time.perf_counter()
        with torch.no_grad():
            outputs = model(vision_embeds=frame, memory=memory, **text)
        seconds.append(time.perf_counter() - start)
        memory = outputs.memory
    return seconds, outputs.last_hidden_state


def measure_frame(num_frames: int) -> float:
    """Median seconds of a frame with kept keys and values, once the banks are full."""
    torch.manual_seed(0)
    model = MemoryBankQFormerModel(MemoryBankQFormerConfig(memory_bank_length=BANK_LENGTH)).eval()
    frames = torch.randn(1, BANK_LENGTH + num_frames, NUM_TOKENS, model.config.qformer_config.encoder_hidden_size)
    text = {"qformer_input_ids": torch.randint(1, 30000, (1, TEXT_LENGTH))}
    medians, outputs = [], []
    for keep in (True, False):
        seconds, output = frame_times(model, frames, text, keep)
        medians.append(statistics.median(seconds[BANK_LENGTH:]))
        outputs.append(output)
    difference = (outputs[0] - outputs[1]).abs().max().item()
    if difference > TOLERANCE:
        sys.exit(f"The outputs differ by {difference:.1e}, so no figure means anything.")
    kept, computed = medians
    print(f"Q-Former, a frame: kept {kept * 1e3:.0f} ms, computed {computed * 1e3:.0f} ms, {computed / kept:.1f}x")
    print(f"  outputs differ by {difference:.1e}; wanted: {TARGET_SPEEDUP:.0f}x")
    return kept


def measure_tower(qformer_seconds: float) -> None:
    """EVA-ViT-g on one frame beside the Q-Former."""
    config = MemoryBankQFormerConfig(vision_config=InstructBlipVisionConfig(), qformer_config={"num_hidden_layers": 1})
    model = MemoryBankQFormerModel(config).eval()
    seconds = []
    for _ in range(3):
        pixel_values = torch.randn(1, 1, 3, 224, 224)
        start = time.perf_counter()
        with torch.no_grad():
            model.get_vision_embeds(pixel_values)
        seconds.append(time.perf_counter() - start)
    tower = statistics.median(seconds)
    share = tower / (tower + qformer_seconds)
    print(f"Whole frame: {tower + qformer_seconds:.2f} s, of which the vision tower takes {share:.0%}")


def measure_long() -> None:
    """Drift of time and memory over 10,000 frames of a small model."""
    qformer_config = {
        "vocab_size": 100,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "encoder_hidden_size": 64,
    }
    config = MemoryBankQFormerConfig(qformer_config=qformer_config, num_query_tokens=8, memory_bank_length=BANK_LENGTH)
    model = MemoryBankQFormerModel(config).eval()
    memory, seconds, peaks = None, [], []
    for t in range(10_000):
        frame = torch.randn(1, 1, 16, 64)
        start = time.perf_counter()
        with torch.no_grad():
            memory = model(vision_embeds=frame, memory=memory).memory
        seconds.append(time.perf_counter() - start)
        if t in (199, 9_999):
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)
    early, late = statistics.median(seconds[100:200]), statistics.median(seconds[9_900:])
    print(
        f"10,000 frames: {early * 1e3:.2f} ms at 101-200, {late * 1e3:.2f} ms at 9,901-10,000, {late / early - 1:+.1%}"
    )
    print(f"  peak memory {peaks[0]:.0f} MiB, then {peaks[1]:.0f} MiB; wanted: within {TARGET_DRIFT:.0%}, and flat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=8, help="frames timed behind those that fill the banks")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tower", action="store_true", help="time the vision tower too (4 GB of weights)")
    parser.add_argument("--long", action="store_true", help="read 10,000 frames as well")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{datetime.date.today()}, torch {torch.__version__}, {arguments.threads} threads, float32, batch 1")
    # First, while the process has not yet needed more memory than the small model does.
    if arguments.long:
        measure_long()
    seconds = measure_frame(arguments.frames)
    if arguments.tower:
        measure_tower(seconds)


if __name__ == "__main__":
    main()
