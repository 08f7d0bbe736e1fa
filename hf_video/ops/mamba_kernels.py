"""
The compiled kernels of mamba-ssm (https://github.com/state-spaces/mamba) and causal-conv1d
(https://github.com/Dao-AILab/causal-conv1d) for CUDA: of the packages of these names, or of
`kernels-community/mamba-ssm` on the Hub, which has both, built for many machines.

Releases differ in what they compile and in the arguments of the compiled functions. All have the autograd functions
`SelectiveScanFn` and `CausalConv1dFn`, which are called here inside an operator, so that models compile. They go
forward in time, have no initial state, and no gradient of the last state.
"""

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from .dispatch import probing
from .registration import turn

HUB_KERNELS = "kernels-community/mamba-ssm"
# The one that Transformers 5.24 takes for its Mamba.
HUB_VERSION = 5
# Where each source has its functions. A dot stands for the module that the Hub's kernels become.
MODULES = {
    ("mamba_ssm", "SelectiveScanFn"): "mamba_ssm.ops.selective_scan_interface",
    ("causal_conv1d", "CausalConv1dFn"): "causal_conv1d.causal_conv1d_interface",
    (HUB_KERNELS, "SelectiveScanFn"): ".ops.selective_scan_interface",
    (HUB_KERNELS, "CausalConv1dFn"): "._causal_conv1d.causal_conv1d_interface",
}


@functools.cache
def hub_kernels() -> ModuleType:
    """The Hub's kernels in their cache; nothing is asked of the network. Raises `ImportError` without `kernels`."""
    from kernels import get_local_kernel, install_kernel

    return get_local_kernel(install_kernel(HUB_KERNELS, version=HUB_VERSION, local_files_only=True))


def download_hub_kernels() -> None:
    """Put the Hub's kernels into their cache unless they are there."""
    from kernels import install_kernel

    try:
        install_kernel(HUB_KERNELS, version=HUB_VERSION, local_files_only=True)
    except (FileNotFoundError, ValueError):
        install_kernel(HUB_KERNELS, version=HUB_VERSION)


@functools.cache
def load(source: str, function: str) -> Any:
    """An autograd function, by its name; `ImportError` if the source does not have it."""
    module = MODULES[source, function]
    package = hub_kernels().__name__ if source == HUB_KERNELS else None
    return getattr(importlib.import_module(module, package), function)


class RecordedContext:
    """A stand-in for the context of an autograd function: an operator runs below autograd."""

    saved_tensors: tuple[torch.Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        self.saved_tensors = tensors


def in_kernel_layout(x: torch.Tensor, reverse: bool) -> torch.Tensor:
    """A sequence in the order of the kernels and with time last in memory; a weight (two dimensions) as it is."""
    if x.ndim < 3:
        return x.contiguous()
    # `contiguous` would leave the strides of a sequence of one step unchanged.
    return turn(x) if reverse else x if x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)


def run(
    source: str, function: str, tensors: Sequence[torch.Tensor | None], reverse: bool, delta_softplus: bool = False
) -> torch.Tensor:
    """The contiguous output of an autograd function for its `tensors`, the first of which it is like. With `reverse`
    sequences, which have more than two dimensions, are turned before and after it."""
    places = [place for place, x in enumerate(tensors) if x is not None]
    return run_forward([x for x in tensors if x is not None], places, source, function, reverse, delta_softplus)


def call(context, tensors, places, source, function, reverse, delta_softplus) -> torch.Tensor:
    arguments = dict(zip(places, (in_kernel_layout(x, reverse) for x in tensors), strict=True))
    options = {"delta_softplus": delta_softplus} if function == "SelectiveScanFn" else {"activation": "silu"}
    return load(source, function).forward(context, *(arguments.get(i) for i in range(max(places) + 1)), **options)


# PyTorch gives no gradients to lists in which `None` is: `places` are those of the tensors among the arguments.
ARGUMENTS = "Tensor[] tensors, int[] places, str source, str function, bool reverse, bool delta_softplus"


@torch.library.custom_op("hf_video::mamba_kernel", mutates_args=(), schema=f"({ARGUMENTS}) -> Tensor")
def run_forward(tensors, places, source, function, reverse, delta_softplus):
    output = call(RecordedContext(), tensors, places, source, function, reverse, delta_softplus)
    return turn(output) if reverse else output.contiguous()


@torch.library.custom_op(
    "hf_video::mamba_kernel_backward", mutates_args=(), schema=f"(Tensor grad, {ARGUMENTS}) -> Tensor[]"
)
def run_backward(grad, tensors, places, source, function, reverse, delta_softplus):
    """The gradients of all tensors. The forward runs again: no states are kept."""
    context = RecordedContext()
    call(context, tensors, places, source, function, reverse, delta_softplus)
    gradients = load(source, function).backward(context, turn(grad) if reverse else grad.contiguous())
    return [
        in_kernel_layout(gradients[place], reverse).to(x.dtype).contiguous()
        for x, place in zip(tensors, places, strict=True)
    ]


@run_forward.register_fake
def _(tensors, *options):
    return tensors[0].new_empty(tensors[0].shape)


@run_backward.register_fake
def _(grad, tensors, *options):
    return [x.new_empty(x.shape) for x in tensors]


def _save(ctx, inputs, output):
    tensors, *ctx.options = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad):
    return run_backward(grad, list(ctx.saved_tensors), *ctx.options), *(None for _ in ctx.options)


run_forward.register_autograd(_differentiate, setup_context=_save)


@probing
def probe(source, function, may_download=False, device="cuda"):
    """Some releases can be imported but not called."""
    if source == HUB_KERNELS and may_download:
        download_hub_kernels()
    ones = torch.ones(1, 8, 4, device=device)
    tensors = [ones, ones[0], ones[0, :, 0]]
    if function == "SelectiveScanFn":
        tensors = [ones, ones, -ones[0], ones[:, None, :4], ones[:, None, :4]]
    run_backward(ones, tensors, list(range(len(tensors))), source, function, False, False)
    return run(source, function, tensors, False)
