"""
VideoMamba-M on the CPU, 8 x 224 x 224, float32, batch 1: against its own matrix products timed alone, against the same
model on the scan of Transformers' Mamba, and against VideoViT-B with SDPA as clips get longer.

A figure is printed only when the outputs on both scans agree. Time and peak memory of each clip length come from a
process of their own.

With `--bfloat16` it prints instead time in bfloat16 and under autocast, forward and with the backward, next to float32
and to the matrix products in bfloat16, and the memory of training on 64 frames. Before, it compares the outputs: those
in bfloat16 have to be at least as near to float32 as they are without the fused mixer.

With `--parts` it prints instead what the parts of the `cpu` backend are worth that cost the most to keep: time and
memory without each, as a multiple of those with it.

    python benchmarks/videomamba_cpu.py [--rounds 5] [--threads 2] [--lengths 8 16 32 64] [--plot FILE.png] [--parts]
                                        [--bfloat16]
"""

import argparse
import datetime
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from transformers.models.mamba.modeling_mamba import mamba_selective_scan

from hf_video import (
    VideoMambaConfig,
    VideoMambaForVideoClassification,
    VideoViTConfig,
    VideoViTForVideoClassification,
    selective_scan,
)
from hf_video.ops import numba_threads
from hf_video.ops.selective_scan.dispatch import BACKEND_VARIABLE, BACKENDS, Backend
from hf_video.ops.selective_scan.operators import add_and_gate

TOLERANCE = 1e-3
PASSES = {False: "forward", True: "forward+backward"}


def transformers_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, initial_state, addend):
    """Mamba's scan in Transformers as a backend; it has one direction, no groups, no initial state and no addend."""
    sequences = (u, delta, B[:, 0], C[:, 0])
    u, delta, B, C = (tensor.flip(-1) for tensor in sequences) if reverse else sequences
    output = mamba_selective_scan(u, delta, A, B, C, D, None, delta_bias, delta_softplus)
    return add_and_gate(output.flip(-1) if reverse else output, addend, z), None


def make_model(family: str, num_frames: int) -> torch.nn.Module:
    if family == "videomamba-bfloat16":
        return in_bfloat16(make_model("videomamba", num_frames))
    torch.manual_seed(0)
    if family == "videomamba":
        return VideoMambaForVideoClassification(
            VideoMambaConfig.preset("middle", num_frames=num_frames, num_labels=400, time_step_init_scheme="random")
        )
    return VideoViTForVideoClassification(VideoViTConfig(num_frames=num_frames, num_labels=400))


def in_bfloat16(model: VideoMambaForVideoClassification) -> VideoMambaForVideoClassification:
    """As the model loads in bfloat16: some weights stay in float32."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder, dtype=torch.bfloat16).eval()


def make_clip(num_frames: int) -> torch.Tensor:
    return torch.randn(1, num_frames, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def run_model(model: torch.nn.Module, clip: torch.Tensor) -> Callable[[bool], None]:
    def run(backward: bool) -> None:
        loss = model(clip, labels=torch.zeros(1, dtype=torch.long)).loss
        if backward:
            loss.backward()

    return run


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


def measure(runs: dict[str, Callable[[bool], None]], backward: bool, rounds: int) -> dict[str, float]:
    """Least seconds of each, taken in turn: whatever else the machine does only adds to them."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with torch.set_grad_enabled(backward):
        for round_number in range(rounds + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                run(backward)
                if round_number or not rounds:
                    seconds[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in seconds.items()}


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
    if error > TOLERANCE:
        sys.exit(f"The outputs on both scans differ by {error:.1e}, so no figure means anything.")
    runs = {"model": run_model(model, clip), "products": make_products(model, clip)}
    for backward, name in PASSES.items():
        fastest = measure(runs, backward, rounds)
        ratio = fastest["model"] / fastest["products"]
        print(f"{name:16}  model {fastest['model']:6.2f} s  products {fastest['products']:6.2f} s  {ratio:5.2f}x")
        if not backward:
            slow = seconds["transformers"]
            print(f"{'':16}  on Transformers' eager scan {slow:6.2f} s  {slow / fastest['model']:.1f} times as long")


def compare_bfloat16(rounds: int, threads: int) -> None:
    model, clip = make_model("videomamba", 8).eval(), make_clip(8)
    narrow = in_bfloat16(model)
    autocast = torch.autocast("cpu", torch.bfloat16)
    with torch.no_grad():
        exact, fused = model(clip).logits, narrow(clip).logits
        modules = without_mixer(lambda _: narrow(clip).logits, narrow)(False)
        mixed = autocast(model)(clip).logits
        mixed_modules = without_mixer(lambda _: autocast(model)(clip).logits, model)(False)
    for name, found, allowed in (("bfloat16", fused, modules), ("autocast", mixed, mixed_modules)):
        errors = [(logits - exact).norm() / exact.norm() for logits in (found, allowed)]
        print(f"{name:16}  relative error of the logits {errors[0]:.1e}, without the fused mixer {errors[1]:.1e}")
        if errors[0] > errors[1]:
            sys.exit("The outputs are farther from float32 than without the fused mixer, so no figure means anything.")
    runs = {
        "float32": run_model(model, clip),
        "bfloat16": run_model(narrow, clip),
        "autocast": autocast(run_model(model, clip)),
        "without the fused mixer": without_mixer(run_model(narrow, clip), narrow),
        "float32 products": make_products(model, clip),
        "bfloat16 products": make_products(model, clip, torch.bfloat16),
    }
    for backward, name in PASSES.items():
        seconds = measure(runs, backward, rounds)
        for kind, value in seconds.items():
            ratios = [value / seconds[other] for other in ("bfloat16 products", "float32")]
            print(
                f"{name:16}  {kind:24} {value:6.2f} s  {ratios[0]:5.2f}x bfloat16 products  {ratios[1]:5.2f}x float32"
            )
    command = [sys.executable, __file__, "--threads", str(threads), "--rounds", "0", "--child"]
    for family in ("videomamba", "videomamba-bfloat16"):
        output = subprocess.run([*command, family, "64", "1"], check=True, capture_output=True, text=True).stdout
        print(f"forward+backward on 64 frames  {family:20}  {float(output.split()[-1]):6.2f} GiB")


def compare_scans(rounds: int) -> None:
    """One direction of one layer: 1,152 channels x 1,569 tokens x 16 states."""
    u, delta = torch.randn(1, 1569, 1152).mT, torch.randn(1, 1569, 1152).mT - 3
    A, D, bias = -torch.rand(1152, 16) - 0.1, torch.ones(1152), torch.zeros(1152)
    B, C = torch.randn(1, 16, 1569), torch.randn(1, 16, 1569)
    settings = {"eager": {}, "compiled use_associative_scan": {"use_associative_scan": True}}
    if importlib.util.find_spec("mambapy"):
        settings["mambapy"] = {"use_mambapy": True}
    else:
        print("mambapy is not installed: `pip install mambapy` to have it measured.")
    expected = selective_scan(u, delta, A, B, C, D, delta_bias=bias, delta_softplus=True, backend="cpu")
    runs = {"ours": lambda: selective_scan(u, delta, A, B, C, D, None, bias, True, backend="cpu")}
    for name, options in settings.items():
        function = torch.compile(mamba_selective_scan) if "compiled" in name else mamba_selective_scan
        runs[f"Transformers, {name}"] = lambda function=function, options=options: function(
            u, delta, A, B, C, D, None, bias, True, **options
        )
    for name, run in runs.items():
        with torch.no_grad():
            error = (run() - expected).abs().max() / expected.abs().max()
        if error > TOLERANCE:
            sys.exit(f"{name} differs by {error:.1e}, so no figure means anything.")
        milliseconds = 1e3 * measure({name: lambda _, run=run: run()}, False, rounds)[name]
        print(f"one scan, {name:44}  {milliseconds:7.1f} ms")


def compare_lengths(lengths: list[int], arguments: argparse.Namespace) -> dict[tuple[str, bool], list[tuple]]:
    results = {}
    for family in ("videomamba", "videovit"):
        for backward in PASSES:
            figures = []
            for num_frames in lengths:
                rounds = max(1, arguments.rounds * lengths[0] // num_frames)
                command = [sys.executable, __file__, "--threads", str(arguments.threads)]
                command += ["--rounds", str(rounds), "--child", family, str(num_frames), str(int(backward))]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                seconds, memory = (float(word) for word in output.split()[-2:])
                figures.append((num_frames, seconds, memory))
                print(
                    f"{family:10}  {PASSES[backward]:16}  {num_frames:3} frames  {seconds:7.2f} s  {memory:6.2f} GiB"
                )
            growth = [figures[-1][i] / figures[0][i] for i in (1, 2)]
            print(f"{'':28}  {lengths[0]} to {lengths[-1]} frames: time {growth[0]:.1f}x, memory {growth[1]:.1f}x")
            results[family, backward] = figures
    return results


def child(family: str, num_frames: str, backward: str, rounds: int) -> None:
    if family.startswith("parts"):
        model = make_part_model("middle", int(num_frames), 224, 8)
        run = run_model(model, make_clip(int(num_frames)))
        (without_mixer(run, model) if family == "parts-unfused" else run)(True)
        print(peak_memory())
        return
    model, clip = make_model(family, int(num_frames)).eval(), make_clip(int(num_frames))
    seconds = measure({family: run_model(model, clip)}, backward == "1", rounds)[family]
    print(seconds, peak_memory())


def peak_memory() -> float:
    """Largest resident memory of this process, in GiB; `getrusage` counts in that of the process that started it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 2**20


def make_part_model(preset: str, num_frames: int, image_size: int, num_layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"num_frames": num_frames, "image_size": image_size, "num_hidden_layers": num_layers}
    return VideoMambaForVideoClassification(
        VideoMambaConfig.preset(preset, **sizes, time_step_init_scheme="random")
    ).eval()


def without_mixer(run: Callable[[bool], None], model: torch.nn.Module) -> Callable[[bool], None]:
    return mock.patch.object(type(model.base_model.layers[0]), "can_fuse", lambda *_: False)(run)


def compare_parts(rounds: int, threads: int) -> None:
    for sizes in (("middle", 8, 224, 4), ("tiny", 4, 112, 24)):
        model = make_part_model(*sizes)
        run = run_model(model, torch.randn(1, sizes[1], 3, sizes[2], sizes[2]))
        runs = {
            "whole": run,
            "the fused mixer": without_mixer(run, model),
            "PyTorch's threads": mock.patch.object(numba_threads, "openmp_team", lambda: None)(run),
        }
        for backward, name in PASSES.items():
            seconds = measure(runs, backward, rounds)
            whole = seconds.pop("whole")
            ratios = [f"without {part} {value / whole:5.2f}x" for part, value in seconds.items()]
            print(f"{sizes[0]:6}  {name:16}  {1e3 * whole:7.1f} ms  {'  '.join(ratios)}")
    command = [sys.executable, __file__, "--threads", str(threads), "--child"]
    outputs = [
        subprocess.run([*command, part, "64", "1"], check=True, capture_output=True, text=True).stdout
        for part in ("parts", "parts-unfused")
    ]
    whole, unfused = (float(output.split()[-1]) for output in outputs)
    print(f"training on 64 frames, 8 layers   {whole:5.2f} GiB  without the fused mixer {unfused / whole:5.2f}x")
    compare_vectors(5 * rounds)


def compare_vectors(rounds: int) -> None:
    """The scan of one block of channels, and the same in loops that the compiler vectorises by itself."""
    import numba
    import numpy as np

    from hf_video.ops import numba_vectors as v
    from hf_video.ops.selective_scan.cpu_kernels import scan_forward_unit

    E0, E1, E2, E3, E4, ONE, LANES = v.E0, v.E1, v.E2, v.E3, v.E4, v.ONE, v.LANES
    HALF, BIAS, SHIFT = np.float32(0.5), np.int32(127), np.int32(23)

    @numba.njit(error_model="numpy", fastmath={"contract", "reassoc", "nnan", "ninf", "nsz"})
    def scan_by_loops(u, delta, rates, B, C, D, state, y):
        scaled, output, mantissa = (
            np.empty(LANES, np.float32),
            np.empty(LANES, np.float32),
            np.empty(LANES, np.float32),
        )
        bits = np.empty(LANES, np.int32)
        powers = bits.view(np.float32)
        for t in range(u.shape[1]):
            for lane in range(LANES):
                scaled[lane] = delta[0, t, lane] * u[0, t, lane]
                output[lane] = D[lane] * u[0, t, lane]
            for n in range(rates.shape[1]):
                for lane in range(LANES):
                    x = max(delta[0, t, lane] * rates[0, n, lane], -126.0)
                    whole = np.floor(x + HALF)
                    f = x - whole
                    mantissa[lane] = f * (f * (f * (f * (f * E4 + E3) + E2) + E1) + E0) + ONE
                    bits[lane] = (np.int32(whole) + BIAS) << SHIFT
                for lane in range(LANES):
                    h = mantissa[lane] * powers[lane] * state[0, 0, n, lane] + scaled[lane] * B[0, t, 0, n]
                    state[0, 0, n, lane] = h
                    output[lane] += h * C[0, t, 0, n]
            y[0, t] = output

    length, num_states, random = 1569, 16, np.random.default_rng(0)
    u, delta, B, C, D = (
        random.standard_normal(shape, np.float32)
        for shape in ((1, length, LANES),) * 2 + ((1, length, 1, num_states),) * 2 + ((LANES,),)
    )
    delta, rates = abs(delta), -random.random((1, num_states, LANES), np.float32)
    borders, outputs = np.empty((1, 0, 1, num_states, LANES), np.float32), np.empty((2, *u.shape), np.float32)

    def with_vectors(_: bool) -> None:
        state = np.zeros((1, 1, num_states, LANES), np.float32)
        options = (False, None, False, 0, 0, 0, 1)
        scan_forward_unit(u, delta, rates, B, C, D, np.zeros_like(D), state, outputs[0], borders, *options)

    def with_loops(_: bool) -> None:
        scan_by_loops(u, delta, rates, B, C, D, np.zeros((1, 1, num_states, LANES), np.float32), outputs[1])

    seconds = measure({"vectors": with_vectors, "loops": with_loops}, False, rounds)
    if not np.allclose(*outputs, atol=1e-4, rtol=1e-3):
        sys.exit("The scans with and without vectors differ, so no figure means anything.")
    ratio = seconds["loops"] / seconds["vectors"]
    print(f"scan of {LANES} channels, forward  {1e3 * seconds['vectors']:7.2f} ms  without vectors {ratio:5.2f}x")


def plot(results: dict[tuple[str, bool], list[tuple]], path: str, threads: int) -> None:
    import matplotlib.pyplot as plt

    labels = {"videomamba": "VideoMamba-M", "videovit": "VideoViT-B, SDPA"}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5))
    for axis, index, title in zip(axes, (1, 2), ("seconds", "peak memory in GiB"), strict=True):
        for (family, backward), figures in results.items():
            axis.plot(
                [row[0] for row in figures],
                [row[index] for row in figures],
                marker="o",
                color="C0" if family == "videomamba" else "C1",
                linestyle="--" if backward else "-",
                label=f"{labels[family]}, {PASSES[backward]}",
            )
        axis.set(xlabel="frames of 224 x 224", title=title)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
    axes[0].legend(fontsize=7, handlelength=4, loc="lower right")
    figure.suptitle(f"One clip on {threads} CPU cores, float32")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="*", default=[8, 16, 32, 64])
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.child:
        return child(*arguments.child, arguments.rounds)
    BACKENDS["transformers"] = Backend(transformers_scan, lambda situation: None, automatic=False)
    load = os.getloadavg()[0]
    print(f"{datetime.date.today()}, torch {torch.__version__}, {arguments.threads} threads, load {load:.1f} before")
    if arguments.parts:
        return compare_parts(arguments.rounds, arguments.threads)
    if arguments.bfloat16:
        return compare_bfloat16(arguments.rounds, arguments.threads)
    compare_scans(arguments.rounds)
    compare_model(arguments.rounds)
    if arguments.lengths:
        results = compare_lengths(arguments.lengths, arguments)
        if arguments.plot:
            plot(results, arguments.plot, arguments.threads)


if __name__ == "__main__":
    main()
