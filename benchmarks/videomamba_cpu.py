"""
VideoMamba-M on the CPU, 8 x 224 x 224, batch 1: against its own matrix products timed alone, and against the same
model on the scan of Transformers' Mamba. A figure is printed only when the outputs on both scans agree.

Then it prints the time of weights in bfloat16 and of autocast, which compute in float32 on a CPU, next to products in
bfloat16, and the memory of training on 32 frames, with and without gradient checkpointing. All of it takes about ten
minutes on 2 CPU cores; `--bfloat16` prints its part alone. `videomamba_lengths.py` measures longer clips.

    python benchmarks/videomamba_cpu.py [--rounds 3] [--threads 2] [--bfloat16] [--smoke]
"""

import functools
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from helpers.clip_models import (
    SMALL,
    in_bfloat16,
    make_clip,
    make_model,
    measure,
    run_model,
    sizes,
)
from helpers.measurement import (
    in_own_process,
    make_parser,
    peak_memory,
    print_machine,
    print_ratio,
    require_agreement,
)
from transformers.models.mamba.modeling_mamba import mamba_selective_scan

from hf_video import selective_scan
from hf_video.models.videomamba import modeling_videomamba
from hf_video.ops.dispatch import Backend
from hf_video.ops.selective_scan import BACKEND_VARIABLE, BACKENDS
from hf_video.ops.selective_scan.reference import add_and_gate

TOLERANCE = 1e-3
PASSES = {False: "forward", True: "forward+backward"}


def transformers_scan(inputs):
    """Mamba's scan in Transformers as a backend; it has one direction, no groups, no initial state and no addend."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, _, addend = inputs
    sequences = (u, delta, B[:, 0], C[:, 0])
    u, delta, B, C = (tensor.flip(-1) for tensor in sequences) if reverse else sequences
    output = mamba_selective_scan(u, delta, A, B, C, D, None, delta_bias, delta_softplus)
    return add_and_gate(output.flip(-1) if reverse else output, addend, z), None


def make_products(
    model: torch.nn.Module, clip: torch.Tensor, dtype: torch.dtype = torch.float32
) -> Callable[[bool], None]:
    """The matrix products of one pass, with the patch embedding, on tensors of the shapes that the model has."""
    shapes = []

    def record(module, inputs, output):
        rows = output.shape[1:-1].numel() if isinstance(module, torch.nn.Linear) else output.shape[2:].numel()
        shapes.append((rows, module.weight[0].numel(), module.weight.shape[0]))

    kinds = torch.nn.Linear | torch.nn.Conv3d
    handles = [module.register_forward_hook(record) for module in model.modules() if isinstance(module, kinds)]
    with torch.no_grad():
        model(clip)
    for handle in handles:
        handle.remove()
    pairs = {
        (rows, width, size): (
            torch.randn(rows, width, dtype=dtype),
            torch.randn(size, width, dtype=dtype, requires_grad=True),
        )
        for rows, width, size in shapes
    }
    # Pixels need no gradient.
    for x, _ in [pairs[shape] for shape in shapes[1:]]:
        x.requires_grad_()

    def run(backward: bool) -> None:
        for shape in shapes:
            output = F.linear(*pairs[shape])
            if backward:
                output.backward(output.detach())

    return run


def compare_model(rounds: int) -> None:
    model, clip = make_model("videomamba", 8).eval(), make_clip(8)
    seconds, logits = {}, {}
    for backend in ("transformers", "cpu"):
        os.environ[BACKEND_VARIABLE] = backend
        with torch.no_grad():
            start = time.perf_counter()
            logits[backend] = model(clip).logits
            seconds[backend] = time.perf_counter() - start
    error = (logits["cpu"] - logits["transformers"]).abs().max() / logits["transformers"].abs().max()
    require_agreement("The logits on both scans", error.item(), TOLERANCE)
    runs = {"model": run_model(model, clip), "products": make_products(model, clip)}
    for backward, name in PASSES.items():
        least = measure(runs, backward, rounds)
        ratio = least["model"] / least["products"]
        print(f"{name:16}  model {least['model']:6.2f} s  products {least['products']:6.2f} s  {ratio:5.2f}x")
        if not backward:
            slow = seconds["transformers"]
            print(f"{'':16}  on Transformers' eager scan {slow:6.2f} s  {slow / least['model']:.1f} times as long")
            print_ratio(f"{name}, float32", least["model"] / slow, "Transformers' eager scan")
        print_ratio(f"{name}, float32", ratio, "its matrix products", is_limit=True)


def with_narrow_products(run: Callable[..., Any]) -> Callable[..., Any]:
    """The call with `HF_VIDEO_CPU_PRODUCTS=bfloat16`."""
    return mock.patch.object(modeling_videomamba, "NARROW_ON_CPU", True)(run)


def compare_bfloat16(rounds: int) -> None:
    model, clip = make_model("videomamba", 8).eval(), make_clip(8)
    narrow = in_bfloat16(model)
    autocast = torch.autocast("cpu", torch.bfloat16)
    with torch.no_grad():
        exact = model(clip).logits
        for name, run in (("bfloat16", narrow), ("autocast", autocast(model))):
            found = run(clip).logits, with_narrow_products(run)(clip).logits
            error, tolerance = ((logits - exact).norm().item() / exact.norm().item() for logits in found)
            print(f"{name:16}  relative error of the logits {error:.1e}, with products in bfloat16 {tolerance:.1e}")
            require_agreement(f"The logits in float32 and in {name}", error, tolerance)
    runs = {
        "float32": run_model(model, clip),
        "bfloat16": run_model(narrow, clip),
        "autocast": autocast(run_model(model, clip)),
        "with products in bfloat16": with_narrow_products(run_model(narrow, clip)),
        "float32 products": make_products(model, clip),
        "bfloat16 products": make_products(model, clip, torch.bfloat16),
    }
    for backward, name in PASSES.items():
        seconds = measure(runs, backward, rounds)
        print_ratio(f"{name}, bfloat16", seconds["bfloat16"] / seconds["float32"], "the same in float32")
        limit = seconds["bfloat16"] / min(seconds["float32 products"], seconds["bfloat16 products"])
        print_ratio(f"{name}, bfloat16", limit, "its matrix products", is_limit=True)
        for kind, value in seconds.items():
            print(f"{name:16}  {kind:25} {value:6.2f} s  {value / seconds['float32']:5.2f}x float32")


def compare_scans(rounds: int) -> None:
    """One direction of one layer: 1,152 channels x 1,569 tokens x 16 states."""
    channels, length = (64, 33) if sizes else (1152, 1569)
    u, delta = torch.randn(1, length, channels).mT, torch.randn(1, length, channels).mT - 3
    A, D, bias = -torch.rand(channels, 16) - 0.1, torch.ones(channels), torch.zeros(channels)
    B, C = torch.randn(1, 16, length), torch.randn(1, 16, length)
    settings = {"eager": {}, "compiled use_associative_scan": {"use_associative_scan": True}}
    if importlib.util.find_spec("mambapy"):
        settings["mambapy"] = {"use_mambapy": True}
    else:
        print("mambapy is not installed: `pip install mambapy` to have it measured.")
    expected = selective_scan(u, delta, A, B, C, D, delta_bias=bias, delta_softplus=True, backend="cpu")
    runs = {"ours": lambda: selective_scan(u, delta, A, B, C, D, None, bias, True, backend="cpu")}
    for name, options in settings.items():
        function = mamba_selective_scan
        if "compiled" in name:
            # The compiler takes most of a minute.
            function = torch.compile(function, disable=bool(sizes))
        runs[f"Transformers, {name}"] = lambda function=function, options=options: function(
            u, delta, A, B, C, D, None, bias, True, **options
        )
    found = {}
    for name, run in runs.items():
        with torch.no_grad():
            error = (run() - expected).abs().max() / expected.abs().max()
        require_agreement(f"The outputs of the scans, ours and {name},", error.item(), TOLERANCE)
        milliseconds = 1e3 * measure({name: lambda _, run=run: run()}, False, rounds)[name]
        print(f"one scan, {name:44}  {milliseconds:7.1f} ms")
        found[name] = milliseconds
    for name in list(found)[1:]:
        print_ratio("one scan", found["ours"] / found[name], name)


def measure_memory(family: str, num_frames: int, recomputes: bool) -> float:
    """Peak memory in GiB of a forward and a backward pass."""
    model = make_model(family, num_frames).train()
    if recomputes:
        model.gradient_checkpointing_enable()
    run_model(model, make_clip(num_frames))(True)
    return peak_memory()


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bfloat16", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        sizes.update(SMALL)
        arguments.rounds = 1
    run_apart = functools.partial(in_own_process, arguments.threads)
    BACKENDS["transformers"] = Backend(transformers_scan, lambda facts: None)
    print_machine("torch", "transformers", threads=arguments.threads)
    if not arguments.bfloat16:
        run_apart(compare_model, arguments.rounds)
        run_apart(compare_scans, arguments.rounds)
    run_apart(compare_bfloat16, arguments.rounds)
    if arguments.bfloat16:
        return
    num_frames = 2 if arguments.smoke else 32
    for family in ("videomamba", "videomamba-bfloat16"):
        memory = [run_apart(measure_memory, family, num_frames, recomputes) for recomputes in (False, True)]
        print(
            f"forward+backward  {family:20}  {num_frames:3} frames  {memory[0]:6.2f} GiB, "
            f"{memory[1]:.2f} GiB with gradient checkpointing"
        )


if __name__ == "__main__":
    main()
