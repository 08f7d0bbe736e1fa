"""
VideoMamba-M beside VideoViT-B with SDPA as clips get longer, 8 to 128 frames of 224 x 224, float32, batch 1: seconds
and peak memory of a forward pass and of one with its backward.

The two are compared at equal numbers of frames, and at equal numbers of tokens: VideoMamba-M makes 196 tokens of each
frame, VideoViT-B 196 of each two, so that it reads twice as many frames with as many tokens.

Each figure comes from a process of its own that first runs the shortest clip. A length that needs more memory than the
machine has free, by the growth of the lengths before it, is left out, and the script says so. Nothing is printed
unless VideoMamba gives the same logits with the plain scan, and VideoViT with eager attention. It takes about fifteen
minutes on 2 CPU cores, and up to 20 GiB of memory.

    python benchmarks/videomamba_lengths.py [--rounds 3] [--threads 2] [--lengths 8 16 32 64 128] [--plot FILE.png]
        [--smoke]
"""

import functools
import os
import time
from typing import NamedTuple
from unittest import mock

import psutil
import torch
from helpers.clip_models import SMALL, make_clip, make_model, run_model, sizes
from helpers.measurement import (
    in_own_process,
    make_parser,
    peak_memory,
    print_machine,
    print_ratio,
    require_agreement,
)
from transformers import PreTrainedConfig

TOLERANCE = 1e-3
FAMILIES = {"videomamba": "VideoMamba-M", "videovit": "VideoViT-B"}
FORWARD, BACKWARD = "forward", "forward+backward"
# Free memory that a prediction may take.
MEMORY_SHARE = 0.9
# Frames of the clip that every process runs first.
SHORTEST = 8


class Figure(NamedTuple):
    num_frames: int
    num_tokens: int
    seconds: float
    memory: float  # GiB


Figures = dict[tuple[str, str], list[Figure]]


@torch.no_grad()
def require_equal_logits(num_frames: int) -> None:
    """Raises SystemExit if a family gives other logits than it does by another way."""
    clip, videomamba, videovit = make_clip(num_frames), *(make_model(family, num_frames).eval() for family in FAMILIES)
    videovit.set_attn_implementation("sdpa")
    found = [model(clip).logits for model in (videomamba, videovit)]
    videovit.set_attn_implementation("eager")
    with mock.patch.dict(os.environ, HF_VIDEO_SELECTIVE_SCAN="reference"):
        expected = [model(clip).logits for model in (videomamba, videovit)]
    for name, ours, other in zip(FAMILIES.values(), found, expected, strict=True):
        error = (ours - other).abs().max() / other.abs().max()
        require_agreement(f"The logits of {name} by two ways", error.item(), TOLERANCE)


def count_tokens(config: PreTrainedConfig, num_frames: int) -> int:
    """Tokens of a clip, those of patches alone."""
    (height, width), (depth, *patch) = config.image_shape, config.patch_shape
    return num_frames // depth * (height // patch[0]) * (width // patch[1])


def measure_length(family: str, kind: str, num_frames: int, rounds: int) -> Figure:
    """The least seconds of a pass, and peak memory."""
    seconds = []
    with torch.set_grad_enabled(kind != FORWARD):
        # Kernels are loaded, and threads begin.
        shortest = min(num_frames, SHORTEST)
        run_model(make_model(family, shortest).eval(), make_clip(shortest))(kind != FORWARD)
        model = make_model(family, num_frames).eval()
        run = run_model(model, make_clip(num_frames))
        for _ in range(rounds):
            start = time.perf_counter()
            run(kind != FORWARD)
            seconds.append(time.perf_counter() - start)
    return Figure(num_frames, count_tokens(model.config, num_frames), min(seconds), peak_memory())


def predict_memory(figures: list[Figure], num_frames: int) -> float:
    """GiB of a longer clip, if memory goes on growing by as much a frame; 0 if there is nothing to tell it from."""
    if len(figures) < 2:
        return 0.0
    before, last = figures[-2:]
    slope = (last.memory - before.memory) / (last.num_frames - before.num_frames)
    return last.memory + slope * (num_frames - last.num_frames)


def measure_family(family: str, kind: str, lengths: list[int], rounds: int, threads: int) -> list[Figure]:
    figures: list[Figure] = []
    for num_frames in lengths:
        line = f"{family:10}  {kind:16}  {num_frames:3} frames"
        needed, free = predict_memory(figures, num_frames), psutil.virtual_memory().available / 2**30
        if needed > MEMORY_SHARE * free:
            print(f"{line}  left out: it needs about {needed:.0f} GiB, and {free:.0f} are free")
            break
        fewer = max(1, rounds * SHORTEST // num_frames)
        found = in_own_process(threads, measure_length, family, kind, num_frames, fewer)
        figures.append(found)
        print(f"{line}  {found.num_tokens:6} tokens  {found.seconds:7.2f} s  {found.memory:6.2f} GiB", flush=True)
    if len(figures) > 1:
        first, last = figures[0], figures[-1]
        print(
            f"{'':30}{first.num_frames} to {last.num_frames} frames: time {last.seconds / first.seconds:.1f}x, memory "
            f"{last.memory / first.memory:.1f}x"
        )
    return figures


def compare(found: Figures, kind: str, unit: str) -> None:
    """Prints the ratios of the two families at equal numbers of frames or tokens."""
    ours, theirs = (
        {figure.num_frames if unit == "frames" else figure.num_tokens: figure for figure in found[family, kind]}
        for family in FAMILIES
    )
    common = sorted(ours.keys() & theirs.keys())
    for number in common:
        for quantity, index in (("time", 2), ("memory", 3)):
            case, peer = f"VideoMamba-M, {kind}, {number} {unit}", "VideoViT-B"
            print_ratio(case, ours[number][index] / theirs[number][index], peer, quantity=quantity)


def plot(found: Figures, path: str, threads: int) -> None:
    """Seconds and memory over frames, and seconds over tokens."""
    import matplotlib.pyplot as plt

    styles = {FORWARD: "-", BACKWARD: "--"}
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8))
    panels = [("frames of 224 x 224", 0, "seconds", 2), ("frames of 224 x 224", 0, "peak memory in GiB", 3)]
    panels.append(("tokens", 1, "seconds", 2))
    for axis, (label, x, title, y) in zip(axes, panels, strict=True):
        for (family, kind), rows in found.items():
            axis.plot(
                [row[x] for row in rows],
                [row[y] for row in rows],
                marker="o",
                color="C0" if family == "videomamba" else "C1",
                linestyle=styles[kind],
                label=f"{FAMILIES[family]}, {kind}",
            )
        axis.set(xlabel=label, title=title)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xticks(sorted({row[x] for rows in found.values() for row in rows}))
    axes[2].tick_params("x", labelsize=7)
    axes[0].legend(fontsize=6.5, handlelength=4, loc="upper left")
    figure.suptitle(f"One clip on {threads} CPU cores, float32")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="passes of the shortest clip; fewer of longer ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--plot", metavar="FILE")
    arguments = parser.parse_args()
    rounds, lengths, threads = arguments.rounds, sorted(arguments.lengths), arguments.threads
    if arguments.smoke:
        sizes.update(SMALL)
        rounds, lengths = 1, [2, 4]
    run_apart = functools.partial(in_own_process, threads)
    print_machine("torch", "transformers", threads=threads)
    run_apart(require_equal_logits, lengths[0])
    found: Figures = {}
    for kind in (FORWARD, BACKWARD):
        for family in FAMILIES:
            found[family, kind] = measure_family(family, kind, lengths, rounds, threads)
    if arguments.plot:
        run_apart(plot, found, arguments.plot, threads)
    for kind in (FORWARD, BACKWARD):
        for unit in ("frames", "tokens"):
            compare(found, kind, unit)


if __name__ == "__main__":
    main()
