"""
The cost of one frame when the memory banks are full. Keys and values are either kept between frames, or computed for
every frame.

The model has the published size and random weights: 32 queries, 257 tokens of 1,408 channels for a frame, banks of 20
frames, 12 layers, 32 tokens of text. Both ways read the same frames in one run, and figures are printed only if their
outputs agree. A frame also goes through an EVA-ViT of the published size, which takes 4 GB of memory. And a small
model reads 10,000 frames; time and memory must not grow. All of it takes about five minutes on 2 CPU cores.

    python benchmarks/memory_bank.py [--frames 12] [--threads 2] [--smoke]
"""

import statistics
import time
from typing import Any

import torch
from helpers.measurement import in_own_process, make_parser, peak_memory, print_machine, print_ratio, require_agreement
from transformers import InstructBlipVisionConfig

from hf_video import MemoryBank, MemoryBankQFormerConfig, MemoryBankQFormerModel
from hf_video.models.memory_bank_qformer.modeling_memory_bank_qformer import MemoryBankQFormerModelOutput

TOLERANCE = 1e-4
TEXT_LENGTH, NUM_TOKENS, BANK_LENGTH = 32, 257, 20
TARGET_SPEEDUP, TARGET_DRIFT = 5.0, 0.05
SMALL_QFORMER = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "encoder_hidden_size": 64,
}


def make_config(is_small: bool, **settings: Any) -> MemoryBankQFormerConfig:
    """Configuration of the published size, or a small one."""
    small = {"qformer_config": dict(SMALL_QFORMER)} if is_small else {}
    return MemoryBankQFormerConfig(memory_bank_length=BANK_LENGTH, **small, **settings)


def make_inputs(config: MemoryBankQFormerConfig, num_frames: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Random frames `(1, num_frames, num_tokens, num_channels)` and a random text."""
    qformer = config.qformer_config
    frames = torch.randn(1, num_frames, NUM_TOKENS, qformer.encoder_hidden_size)
    return frames, {"qformer_input_ids": torch.randint(1, qformer.vocab_size, (1, TEXT_LENGTH))}


def timed_frame(
    model: MemoryBankQFormerModel, frame: torch.Tensor, memory: MemoryBank | None, **text: torch.Tensor
) -> tuple[float, MemoryBankQFormerModelOutput]:
    """Seconds for a frame `(1, 1, num_tokens, num_channels)`, and the output of the model."""
    start = time.perf_counter()
    with torch.no_grad():
        outputs = model(vision_embeds=frame, memory=memory, **text)
    return time.perf_counter() - start, outputs


def measure_frame(num_frames: int, is_small: bool) -> float:
    """
    Median seconds of a frame with kept keys and values and full banks. The two ways take turns, so that other work of
    the machine slows both.
    """
    torch.manual_seed(0)
    model = MemoryBankQFormerModel(make_config(is_small)).eval()
    frames, text = make_inputs(model.config, BANK_LENGTH + num_frames)
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
        require_agreement("Outputs with kept and with computed keys and values", difference, TOLERANCE)
    kept_time, computed_time = (statistics.median(column) for column in zip(*pairs[BANK_LENGTH:], strict=True))
    ratio = statistics.median(computed / kept for kept, computed in pairs[BANK_LENGTH:])
    print(f"Q-Former, a frame: kept {kept_time * 1e3:.0f} ms, computed {computed_time * 1e3:.0f} ms, {ratio:.1f}x")
    print_ratio("Q-Former with kept keys and values", 1 / ratio, "computed anew")
    print(f"  after the last, outputs differ by {difference:.1e}; wanted: {TARGET_SPEEDUP:.0f}x")
    return kept_time


def measure_tower(qformer_seconds: float, is_small: bool) -> None:
    """Compare the time of EVA-ViT-g for one frame with that of the Q-Former."""
    vision_config = InstructBlipVisionConfig(**({"num_hidden_layers": 1} if is_small else {}))
    config = MemoryBankQFormerConfig(vision_config=vision_config, qformer_config={"num_hidden_layers": 1})
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


def measure_long(num_frames: int) -> None:
    """Measure how time and memory change over the frames of one video with a small model."""
    window = num_frames // 100
    config = make_config(True, num_query_tokens=8)
    model = MemoryBankQFormerModel(config).eval()
    frames = torch.randn(num_frames, 1, 1, 16, 64)
    memory, seconds, peaks = None, [], []
    for t, frame in enumerate(frames, 1):
        duration, outputs = timed_frame(model, frame, memory)
        memory = outputs.memory
        seconds.append(duration)
        if t in (2 * window, num_frames):
            peaks.append(1024 * peak_memory())
    early, late = statistics.median(seconds[window : 2 * window]), statistics.median(seconds[-window:])
    print(
        f"{num_frames:,} frames: {early * 1e3:.2f} ms at {window + 1:,}-{2 * window:,}, {late * 1e3:.2f} ms at "
        f"{num_frames - window + 1:,}-{num_frames:,}, {late / early - 1:+.1%}"
    )
    # The speed of a machine changes within half a minute. So the end of the first video takes turns with a second one.
    second, pairs = None, []
    for frame in frames[: 2 * window]:
        late_seconds, outputs = timed_frame(model, frame, memory)
        early_seconds, second_outputs = timed_frame(model, frame, second)
        memory, second = outputs.memory, second_outputs.memory
        pairs.append((late_seconds, early_seconds))
    late, early = (statistics.median(column) for column in zip(*pairs[window:], strict=True))
    print(
        f"  in turns: {early * 1e3:.2f} ms at {window + 1:,}-{2 * window:,}, {late * 1e3:.2f} ms at "
        f"{num_frames + window + 1:,}-{num_frames + 2 * window:,}, {late / early - 1:+.1%}"
    )
    print(f"  peak memory {peaks[0]:.0f} MiB, then {peaks[1]:.0f} MiB; wanted: within {TARGET_DRIFT:.0%}, and flat")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--frames", type=int, default=12, help="frames that are timed after the banks are full")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    is_small = arguments.smoke
    num_frames, num_long_frames = (2, 200) if is_small else (arguments.frames, 10_000)
    print_machine("torch", "transformers", threads=arguments.threads)
    print("float32, batch 1")
    in_own_process(arguments.threads, measure_long, num_long_frames)
    torch.set_num_threads(arguments.threads)
    seconds = measure_frame(num_frames, is_small)
    measure_tower(seconds, is_small)


if __name__ == "__main__":
    main()
