"""
One GPU, bfloat16: the scan of VideoMamba by every backend that can run it, and VideoViT and VideoMamba beside
Transformers' VideoMAE of the same sizes and weights, forward and in a training step.

First the limits of the card are measured: bytes a second of a copy, and operations a second of a product of large
matrices. Each row says how many times its limit it takes: for a scan the bytes of its inputs and outputs, copied once;
for a model the operations of its products and attention. At the end the script lists what is slower than it should be:
a scan above 4 times its limit, a model above 3 times, VideoViT above 1.05 times VideoMAE, and our scan above 1.1 times
another backend.

A time of a scan is printed only if its output and gradients agree with those of the plain reference, and times of
VideoViT only if its outputs agree with VideoMAE's. mamba-ssm's compiled scan takes part where it is installed (`pip
install --no-build-isolation ".[mamba]"`). No figures of it are published yet: nobody has run it on a GPU. Without a
CUDA device the script says so and ends, but `--smoke` runs on a CPU in seconds. It takes about ten minutes on one GPU.

    python benchmarks/gpu.py [--batches 1 8 32] [--frames 8 64] [--model-batch 8] [--smoke]
"""

import itertools
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from helpers.measurement import SKIPPED, fastest, make_parser, print_machine, require_agreement
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForVideoClassification
from videovit import SMALL, write_models

from hf_video import VideoMambaConfig, selective_scan

DTYPE, SCAN_TOLERANCE, LOGITS_TOLERANCE = torch.bfloat16, 0.03, 0.05
PASSES = {False: "forward", True: "training"}
VIDEOMAMBAS = {"VideoMamba-Ti": "tiny", "VideoMamba-S": "small", "VideoMamba-M": "middle"}
PEERS = {"VideoViT-B": "videovit", "VideoMAE-B": "videomae"}
# How many times its limit, or the time of a peer, something may take.
SCAN_FACTOR, MODEL_FACTOR, VIDEOMAE_FACTOR, BACKEND_FACTOR = 4.0, 3.0, 1.05, 1.1


class Limits(NamedTuple):
    """What the card can do in a second."""

    bytes: float
    operations: float


class Row(NamedTuple):
    """A line of the table; milliseconds are None if nothing was measured, for the reason in `note`."""

    case: str
    what: str
    milliseconds: float | None = None
    limit: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        if self.milliseconds is None:
            return f"| {self.what} | {self.case} | | | {self.note} |"
        times = self.milliseconds / self.limit
        return f"| {self.what} | {self.case} | {self.milliseconds:.3f} | {times:.2f} | {self.note} |"


def median_ms(function: Callable[[], object], device: str) -> float:
    if device == "cpu":
        return 1e3 * fastest({"": function}, rounds=1)[""]
    from triton.testing import do_bench

    return do_bench(function, warmup=50, rep=300, return_mode="median")


def measure_limits(device: str, smoke: bool) -> Limits:
    size, side = (2**20, 256) if smoke else (2**30, 8192)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target, matrix = torch.empty_like(source), torch.randn(side, side, device=device, dtype=DTYPE)
    copy, product = (
        median_ms(run, device) for run in (partial(target.copy_, source), partial(torch.mm, matrix, matrix))
    )
    return Limits(2 * size / copy * 1e3, 2 * side**3 / product * 1e3)


def scan_inputs(batch: int, channels: int, length: int, state_size: int, device: str) -> dict[str, torch.Tensor]:
    """The inputs of one scan, in the memory layout that a mixer gives them."""

    def randn(size: int) -> torch.Tensor:
        return torch.randn(batch, length, size, device=device, dtype=DTYPE).mT.requires_grad_()

    sequences = {"u": randn(channels), "delta": randn(channels), "B": randn(state_size), "C": randn(state_size)}
    weights = {
        "A": -torch.arange(1.0, 1 + state_size, device=device).expand(channels, -1).contiguous(),
        "D": torch.ones(channels, device=device),
        "delta_bias": torch.full((channels,), -4.0, device=device),
    }
    return sequences | {name: weight.requires_grad_() for name, weight in weights.items()}


def run_scan(inputs: dict[str, torch.Tensor], backend: str, backward: bool) -> tuple[torch.Tensor, ...]:
    """The output, and with `backward` the gradients of all inputs, too."""
    with torch.set_grad_enabled(backward):
        output = selective_scan(**inputs, delta_softplus=True, reverse=True, backend=backend)
    return (output, *(torch.autograd.grad(output, [*inputs.values()], output.detach()) if backward else ()))


def worst_error(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> float:
    """Largest norm of a difference, relative to the norm of the expected tensor; NaN if any value is NaN."""
    errors = [(a.float() - b.float()).norm() / b.float().norm() for a, b in zip(found, wanted, strict=True)]
    return torch.stack(errors).max().item()


def measure_scans(num_frames: int, batch: int, limits: Limits, device: str, smoke: bool) -> list[Row]:
    config = VideoMambaConfig.preset("middle")
    channels, patches = (16, 4) if smoke else (config.intermediate_size, 14 * 14)
    inputs = scan_inputs(batch, channels, 1 + patches * num_frames, config.state_size, device)
    wanted = run_scan(inputs, "reference", True)
    size = sum(each.nbytes for each in (*inputs.values(), wanted[0]))
    rows = []
    for backend in ("cpu",) if device == "cpu" else ("triton", "mamba_ssm", "kernels-community/mamba-ssm"):
        case = f"scan of VideoMamba-M, {num_frames} frames, batch {batch}"
        try:
            error = worst_error(run_scan(inputs, backend, True), wanted)
        except (ImportError, RuntimeError, ValueError) as reason:
            rows.append(Row(case, backend, note=f"cannot run: {str(reason).splitlines()[0]}"))
            continue
        if not error <= SCAN_TOLERANCE:
            rows.append(Row(case, backend, note=f"differs from the reference by {error:.1e}: no figure"))
            continue
        for backward, name in PASSES.items():
            milliseconds = median_ms(partial(run_scan, inputs, backend, backward), device)
            # A backward reads all again, with the gradient of the output, and writes the gradients.
            limit = 1e3 * size * (3 if backward else 1) / limits.bytes
            rows.append(Row(f"{case}, {name}", backend, milliseconds, limit))
    return rows


def load(name: str, num_frames: int, folder: Path, device: str, smoke: bool) -> torch.nn.Module:
    """A model on the device, with 400 classes."""
    torch.manual_seed(0)
    if name in PEERS:
        model = AutoModelForVideoClassification.from_pretrained(folder / PEERS[name], attn_implementation="sdpa")
    else:
        small = {"image_size": 32, "hidden_size": 32, "num_hidden_layers": 2} if smoke else {}
        config = VideoMambaConfig.preset(VIDEOMAMBAS[name], num_frames=num_frames, num_labels=400, **small)
        model = AutoModelForVideoClassification.from_config(config)
    return model.to(device)


def make_clips(model: torch.nn.Module, num_frames: int, batch: int, device: str) -> torch.Tensor:
    generator, size = torch.Generator().manual_seed(0), model.config.image_size
    return torch.randn(batch, num_frames, 3, size, size, generator=generator).to(device)


def measure_model(
    model: torch.nn.Module, clips: torch.Tensor, backward: bool, case: str, name: str, limits: Limits
) -> Row:
    """Time, clips a second and peak memory: a forward in bfloat16, or a step of training in mixed precision."""
    device = clips.device.type
    model = model.to(torch.float32 if backward else DTYPE).train(backward)
    clips = clips.to(next(model.parameters()).dtype)
    labels = torch.zeros(len(clips), dtype=torch.long, device=device)
    optimizer = torch.optim.AdamW(model.parameters())

    def run() -> None:
        with torch.set_grad_enabled(backward), torch.autocast(device, DTYPE, enabled=backward):
            loss = model(pixel_values=clips, labels=labels).loss
        if backward:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    try:
        with FlopCounterMode(display=False) as counter:
            run()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        milliseconds = median_ms(run, device)
    except torch.cuda.OutOfMemoryError:
        return Row(case, name, note="out of memory")
    note = f"{1e3 * len(clips) / milliseconds:.1f} clips/s"
    if device == "cuda":
        note += f", {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
    return Row(case, name, milliseconds, 1e3 * counter.get_total_flops() / limits.operations, note)


def measure_models(num_frames: int, batch: int, limits: Limits, device: str, smoke: bool) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder, {**(SMALL if smoke else {}), "num_frames": num_frames})
        peers = [load(name, num_frames, folder, device, smoke).to(DTYPE).eval() for name in PEERS]
        clips = make_clips(peers[0], num_frames, 1, device).to(DTYPE)
        with torch.no_grad():
            ours, theirs = (model(pixel_values=clips).logits.float() for model in peers)
        difference = (ours - theirs).abs().max() / theirs.abs().max()
        require_agreement("Logits of VideoViT and VideoMAE", difference.item(), LOGITS_TOLERANCE)
        del peers
        for (backward, kind), name in itertools.product(PASSES.items(), (*PEERS, *VIDEOMAMBAS)):
            model, case = load(name, num_frames, folder, device, smoke), f"{num_frames} frames, batch {batch}, {kind}"
            rows.append(
                measure_model(model, make_clips(model, num_frames, batch, device), backward, case, name, limits)
            )
            print(rows[-1], flush=True)
    return rows


def find_slow(rows: list[Row]) -> list[str]:
    """Sentences about what takes longer than it should."""
    slow, times = [], {(row.case, row.what): row.milliseconds for row in rows if row.milliseconds}
    for row in rows:
        if row.milliseconds is None:
            continue
        peers = [(row.limit, "its limit", SCAN_FACTOR if row.case.startswith("scan") else MODEL_FACTOR)]
        if row.what == "VideoViT-B" and (row.case, "VideoMAE-B") in times:
            peers.append((times[row.case, "VideoMAE-B"], "VideoMAE-B", VIDEOMAE_FACTOR))
        if row.what == "triton":
            others = [(time, what) for (case, what), time in times.items() if case == row.case and what != "triton"]
            peers += [(time, what, BACKEND_FACTOR) for time, what in others]
        for time, what, factor in peers if row.what != "VideoMAE-B" else ():
            if row.milliseconds > factor * time:
                found = f"takes {row.milliseconds / time:.2f} times as long as {what}; at most {factor:g} are expected"
                slow.append(f"{row.what}, {row.case}: {found}.")
    return slow


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32], help="clips of a scan")
    parser.add_argument("--frames", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--model-batch", type=int, default=8, help="clips of a model")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.batches, arguments.frames, arguments.model_batch = [1], [4], 1
    device, smoke = "cuda" if torch.cuda.is_available() else "cpu", arguments.smoke
    if device == "cpu" and not smoke:
        print("No CUDA device was found: there are no figures of a GPU.", file=sys.stderr)
        sys.exit(SKIPPED)
    print_machine("torch", "transformers", *(["triton"] if device == "cuda" else []))
    limits = measure_limits(device, smoke)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(
        f"{name}, {DTYPE}: {limits.bytes / 1e9:.3g} GB/s copied, {limits.operations / 1e12:.3g} TFLOP/s in products\n"
    )
    print("| what | case | ms | times its limit | |\n|---|---|---|---|---|")
    rows: list[Row] = []
    for num_frames, batch in itertools.product(arguments.frames, arguments.batches):
        rows += (found := measure_scans(num_frames, batch, limits, device, smoke))
        print(*found, sep="\n", flush=True)
    for num_frames in arguments.frames:
        rows += measure_models(num_frames, arguments.model_batch, limits, device, smoke)
    print("", *(find_slow(rows) or ["Nothing is slower than it should be."]), sep="\n")


if __name__ == "__main__":
    main()
