"""
VideoMamba on one GPU, bfloat16: its scan by every backend that can run it, and whole models beside VideoViT-B.

A time of a scan is printed only if its output and gradients agree with those of the plain reference. mamba-ssm's
compiled scan takes part where it is installed (`pip install --no-build-isolation ".[mamba]"`). Without a CUDA device
the script says so and ends. It takes about five minutes on one GPU.

    python benchmarks/videomamba_gpu.py [--batches 1 8 32] [--frames 8 64] [--smoke]
"""

import itertools
import sys
from collections.abc import Callable
from functools import partial

import torch
from helpers.measurement import SKIPPED, make_parser, print_machine
from transformers import AutoModelForVideoClassification, PreTrainedConfig

from hf_video import VideoMambaConfig, VideoViTConfig, selective_scan

DTYPE, TOLERANCE = torch.bfloat16, 0.03
BACKENDS = ("triton", "mamba_ssm", "kernels-community/mamba-ssm")
PASSES = {False: "forward", True: "forward+backward"}
VIDEOMAMBAS = {"VideoMamba-Ti": "tiny", "VideoMamba-S": "small", "VideoMamba-M": "middle"}


def median_ms(function: Callable[[], object]) -> float:
    from triton.testing import do_bench

    return do_bench(function, warmup=50, rep=300, return_mode="median")


def scan_inputs(batch_size: int, channels: int, length: int, state_size: int) -> dict[str, torch.Tensor]:
    """The inputs of one scan, in the memory layout that a mixer gives them."""

    def randn(size: int) -> torch.Tensor:
        return torch.randn(batch_size, length, size, device="cuda", dtype=DTYPE).mT.requires_grad_()

    sequences = {"u": randn(channels), "delta": randn(channels), "B": randn(state_size), "C": randn(state_size)}
    weights = {
        "A": -torch.arange(1.0, 1 + state_size, device="cuda").expand(channels, -1).contiguous(),
        "D": torch.ones(channels, device="cuda"),
        "delta_bias": torch.full((channels,), -4.0, device="cuda"),
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


def compare_scans(batch_size: int, num_frames: int) -> None:
    config = VideoMambaConfig.preset("middle")
    inputs = scan_inputs(batch_size, config.intermediate_size, 1 + 14 * 14 * num_frames, config.state_size)
    wanted = run_scan(inputs, "reference", True)
    for backend in BACKENDS:
        line = f"scan of VideoMamba-M, {num_frames:3} frames, batch {batch_size:3}  {backend:27}"
        try:
            error = worst_error(run_scan(inputs, backend, True), wanted)
        except (ImportError, RuntimeError, ValueError) as reason:
            print(f"{line}  cannot run: {reason}")
            continue
        if not error <= TOLERANCE:
            print(f"{line}  outputs differ from the reference's by {error:.1e}: no figure means anything")
            continue
        for backward, name in PASSES.items():
            line += f"  {name} {median_ms(partial(run_scan, inputs, backend, backward)):8.3f} ms"
        print(line)


def measure_model(name: str, num_frames: int, batch_size: int, backward: bool) -> str:
    """Clips per second and peak memory."""
    torch.manual_seed(0)
    settings = {"num_frames": num_frames, "num_labels": 400}
    if name in VIDEOMAMBAS:
        config: PreTrainedConfig = VideoMambaConfig.preset(VIDEOMAMBAS[name], **settings)
    else:
        config = VideoViTConfig(**settings)
    model = AutoModelForVideoClassification.from_config(config).cuda()
    model = model.to(torch.float32 if backward else DTYPE).train(backward)
    clips = torch.randn(batch_size, num_frames, 3, 224, 224, device="cuda", dtype=next(model.parameters()).dtype)
    labels = torch.zeros(batch_size, dtype=torch.long, device="cuda")

    def run() -> None:
        with torch.set_grad_enabled(backward), torch.autocast("cuda", DTYPE, enabled=backward):
            loss = model(clips, labels=labels).loss
        if backward:
            model.zero_grad()
            loss.backward()

    try:
        run()
        torch.cuda.reset_peak_memory_stats()
        milliseconds = median_ms(run)
    except torch.cuda.OutOfMemoryError:
        return "out of memory"
    return f"{1e3 * batch_size / milliseconds:8.1f} clips/s  {torch.cuda.max_memory_allocated() / 2**30:6.2f} GiB"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32], help="clips of a scan")
    parser.add_argument("--frames", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--model-batch", type=int, default=8, help="clips of a model")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.batches, arguments.frames, arguments.model_batch = [1], [2], 1
    if not torch.cuda.is_available():
        print("No CUDA device was found: there are no figures of a GPU.", file=sys.stderr)
        sys.exit(SKIPPED)
    print_machine("torch", "triton", "transformers")
    print(f"{torch.cuda.get_device_name()}, {DTYPE}")
    for num_frames, batch_size in itertools.product(arguments.frames, arguments.batches):
        compare_scans(batch_size, num_frames)
    for backward, num_frames, name in itertools.product(PASSES, arguments.frames, (*VIDEOMAMBAS, "VideoViT-B")):
        figures = measure_model(name, num_frames, arguments.model_batch, backward)
        print(f"{name:13}  {PASSES[backward]:16}  {num_frames:3} frames, batch {arguments.model_batch}:  {figures}")


if __name__ == "__main__":
    main()
