"""
Prints what Triton makes of the scan's kernels, without a GPU: registers, bytes of stack for values that do not fit
into these, the instructions of the loop over states for each state of each step, and the bytes that a step of a
channel takes from memory and to it: those of all arrays of a launch, B and C once for each program.

One of these is the exponential, which keeps its unit busy while eight instructions start: a multiprocessor of compute
capability 8.0 or 9.0 gives 16 results a clock, and starts 4 instructions of 32 threads (CUDA C++ Programming Guide,
"Throughput of Native Arithmetic Instructions"). So a loop of more than eight is bound by its instructions. No time is
measured here: `benchmarks/gpu.py` does that. It takes about a minute, most of it to compile. With
`--smoke` it compiles the forward kernel for one batch.

    python benchmarks/triton_assembly.py [--capability 90] [--batches 1 8 32] [--smoke]
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from helpers.measurement import make_parser, print_machine

from hf_video import VideoMambaConfig, selective_scan
from hf_video.ops.dispatch import Backend
from hf_video.ops.selective_scan import BACKENDS
from hf_video.ops.selective_scan import triton as selective_scan_triton
from hf_video.ops.selective_scan import triton_kernels as selective_scan_triton_kernels

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.ops.compiling import compile_kernel

SEQUENCES = ("u", "delta", "z", "B", "C", "addend", "y", "mixed", "dy", "du", "ddelta", "dz", "dmixed")
OPTIONS = {
    "use_softplus": True,
    "reverse": True,
    "is_wide": False,
    "has_gate": True,
    "has_addend": True,
    "keeps_borders": True,
}
KERNELS = {"scan_forward_kernel": False, "scan_backward_kernel": True}


def compile_scan(name: str, settings: dict[str, int], capability: int) -> Any:
    """The last scan of a mixer, with bfloat16 sequences."""
    kernel = getattr(selective_scan_triton_kernels, name)
    constants = {option: value for option, value in OPTIONS.items() if option in kernel.arg_names} | settings
    names = [name for name in kernel.arg_names if name not in constants]
    types = [
        "*bf16:16" if name in SEQUENCES else "i32" if name in selective_scan_triton_kernels.SIZES else "*fp32:16"
        for name in names
    ]
    return compile_kernel(kernel, types, constants, capability)


def bytes_of_launches(batch_size: int, channels: int, length: int, state_size: int = 16) -> dict[str, float]:
    """Bytes of a step of a channel for each kernel, from launches that compute nothing."""
    found = {}

    class Launch:
        def __init__(self, name):
            self.name, self.names = name, getattr(selective_scan_triton_kernels, name).arg_names

        def __getitem__(self, grid):
            return lambda *arguments, **options: found.update({self.name: self.count(grid, arguments)})

        def count(self, grid, arguments):
            blocks, arrays = grid[0], {}
            for name, x in zip(self.names, arguments, strict=False):
                if torch.is_tensor(x):
                    arrays[x.data_ptr()] = x.numel() * x.element_size() * (blocks if name in ("B", "C") else 1)
            return sum(arrays.values()) / (batch_size * channels * length)

    def randn(size):
        return torch.zeros(batch_size, length, size, dtype=torch.bfloat16).mT.requires_grad_()

    weights = {"A": torch.zeros(channels, state_size), "D": torch.zeros(channels), "delta_bias": torch.zeros(channels)}
    inputs = {name: randn(channels) for name in ("u", "delta", "z", "addend")} | weights
    BACKENDS["triton"] = Backend(selective_scan_triton.selective_scan_triton, lambda facts: None)
    with mock.patch.multiple(selective_scan_triton_kernels, **{name: Launch(name) for name in KERNELS}):
        y = selective_scan(**inputs, B=randn(state_size), C=randn(state_size), backend="triton")
        y.backward(torch.zeros_like(y))
    return found


def disassemble(cubin: bytes) -> tuple[str, str]:
    """Use of resources, and instructions."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        commands = [tools / "cuobjdump", "-res-usage", file.name], [tools / "nvdisasm", "-c", file.name]
        results = [subprocess.run(command, capture_output=True, text=True, check=True) for command in commands]
    return results[0].stdout + results[0].stderr, results[1].stdout


def inner_loop(assembly: str) -> Counter[str]:
    """How often each instruction stands in the shortest loop that has an exponential."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    loops = []
    for label, text in re.findall(r"^\s*(\.L_\w+):|/\*[0-9a-f]{4,}\*/\s+(.*?);", assembly, re.MULTILINE):
        if label:
            labels[label] = len(instructions)
            continue
        instructions.append(re.sub(r"^@\S+\s+", "", text))
        jump = re.search(r"^BRA.*`\((\.L_\w+)\)", instructions[-1])
        if jump and jump[1] in labels:
            loops.append([each.split()[0].split(".")[0] for each in instructions[labels[jump[1]] :]])
    return Counter(min((loop for loop in loops if "MUFU" in loop), key=len))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    arguments = parser.parse_args()
    channels = VideoMambaConfig.preset("middle").intermediate_size
    print_machine("triton", "torch")
    print(f"sm_{arguments.capability}, VideoMamba-M, {channels} channels")
    batches, kernels = ([1], ["scan_forward_kernel"]) if arguments.smoke else (arguments.batches, list(KERNELS))
    for batch_size in batches:
        plan = selective_scan_triton.plan(batch_size, channels, 1)
        memory = bytes_of_launches(batch_size, channels, 33 if arguments.smoke else 1569)
        for name in kernels:
            settings = plan | selective_scan_triton.options(plan, KERNELS[name])
            compiled = compile_scan(name, settings, arguments.capability)
            resources, assembly = disassemble(compiled.asm["cubin"])
            registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", resources).groups()
            loop, steps = inner_loop(assembly), selective_scan_triton.STEPS
            print(
                f"batch {batch_size:3}  {name:20}  warps {settings['num_warps']}, registers {registers}, bytes "
                f"of stack {stack:>3}; instructions {loop.total() / steps:5.1f}, of which exponentials "
                f"{loop['MUFU'] / steps:.1f} and exchanges between threads {loop['SHFL'] / steps:.1f}; "
                f"bytes {memory[name]:.1f}"
            )


if __name__ == "__main__":
    main()
