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

from hf_video import MemoryBank, MemoryBankQFormerConfig, MemoryBankQFormerModel
from hf_video.models.memory_bank_qformer.modeling_memory_bank_qformer import MemoryBankQFormerModelOutput

TOLERANCE = 1e-4
TEXT_LENGTH, NUM_TOKENS, BANK_LENGTH = 32, 257, 20
TARGET_SPEEDUP, TARGET_DRIFT = 5.0, 0.05


def timed_frame(
    model: MemoryBankQFormerModel, frame: torch.Tensor, memory: MemoryBank | None, **text: torch.Tensor
) -> tuple[float, MemoryBankQFormerModelOutput]:
    """Seconds for a frame `(1, 1, num_tokens, channels)`, and what came of it."""
    start = time.perf_counter()
    with torch.no_grad():
        outputs = model(vision_embeds=frame, memory=memory, **text)
    return time.perf_counter() - start, outputs


def measure_frame(num_frames: int) -> float:
    """
    Median seconds of a frame with kept keys and values, once the banks are full. The two ways take turns, so that
    whatever else the machine does slows both.
    """
    torch.manual_seed(0)
    model = MemoryBankQFormerModel(MemoryBankQFormerConfig(memory_bank_length=BANK_LENGTH)).eval()
    frames = torch.randn(1, BANK_LENGTH + num_frames, NUM_TOKENS, model.config.qformer_config.encoder_hidden_size)
    text = {"qformer_input_ids": torch.randint(1, 30000, (1, TEXT_LENGTH))}
    kept_memory = computed_memory = None
    pairs = []
    for frame in frames.split(1, dim=1):
        kept_seconds, kept = timed_frame(model, frame, kept_memory, **text)
        if computed_memory is not None:
            computed_memory.drop_projections()
        computed_seconds, computed = timed_frame(model, frame, computed_memory, **text)
        kept_memory, computed_memory = kept.memory, computed.memory
        pairs.append((kept_seconds, computed_seconds))
        difference = (kept.last_hidden_state - computed.last_hidden_state).abs().max().item()
        if difference > TOLERANCE:
            sys.exit(f"The outputs differ by {difference:.1e}, so no figure means anything.")
    kept_time, computed_time = (statistics.median(column) for column in zip(*pairs[BANK_LENGTH:], strict=True))
    ratio = statistics.median(computed / kept for kept, computed in pairs[BANK_LENGTH:])
    print(f"Q-Former, a frame: kept {kept_time * 1e3:.0f} ms, computed {computed_time * 1e3:.0f} ms, {ratio:.1f}x")
    print(f"  after the last, outputs differ by {difference:.1e}; wanted: {TARGET_SPEEDUP:.0f}x")
    return kept_time


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
    frames = torch.randn(10_000, 1, 1, 16, 64)
    memory, seconds, peaks = None, [], []
    for t, frame in enumerate(frames):
        duration, outputs = timed_frame(model, frame, memory)
        memory = outputs.memory
        seconds.append(duration)
        if t in (199, 9_999):
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)
    early, late = statistics.median(seconds[100:200]), statistics.median(seconds[9_900:])
    print(
        f"10,000 frames: {early * 1e3:.2f} ms at 101-200, {late * 1e3:.2f} ms at 9,901-10,000, {late / early - 1:+.1%}"
    )
    # The machine itself drifts over half a minute. A second video, read in turns with the end of the first, does not.
    second, pairs = None, []
    for frame in frames[:200]:
        late_seconds, outputs = timed_frame(model, frame, memory)
        early_seconds, second_outputs = timed_frame(model, frame, second)
        memory, second = outputs.memory, second_outputs.memory
        pairs.append((late_seconds, early_seconds))
    late, early = (statistics.median(column) for column in zip(*pairs[100:], strict=True))
    print(
        f"  in turns: {early * 1e3:.2f} ms at 101-200, {late * 1e3:.2f} ms at 10,101-10,200, {late / early - 1:+.1%}"
    )
    print(f"  peak memory {peaks[0]:.0f} MiB, then {peaks[1]:.0f} MiB; wanted: within {TARGET_DRIFT:.0%}, and flat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=12, help="frames timed behind those that fill the banks")
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
