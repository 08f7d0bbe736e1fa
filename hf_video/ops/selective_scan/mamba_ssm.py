"""
`selective_scan` by the compiled kernels of mamba-ssm (https://github.com/state-spaces/mamba).

The kernels have one direction, no initial state, and no gradient of the last state. Releases differ in what they
compile and in the arguments of the compiled functions. All of them have the autograd function `SelectiveScanFn`, so
that is called here.
"""

import functools
import importlib
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import torch
from transformers.integrations.hub_kernels import get_kernel

from hf_video.ops.registration import RecordedContext, probing, register_gradients, reversed_copy

from .reference import ScanInputs, Situation, add_and_gate

KERNELS_REPOSITORY = "kernels-community/mamba-ssm"
KERNELS_VERSION = 4
MAX_STATE_SIZE = 256
INTERFACE = "ops.selective_scan_interface"


def selective_scan_mamba_ssm(inputs: ScanInputs, source: str) -> tuple[torch.Tensor, None]:
    """Output as `selective_scan` describes it, by the build `source`; `why_mamba_ssm_cannot` must return `None`."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, _, addend = inputs
    delta = delta.to(u.dtype)
    # Projections that are the same at all times are weights.
    B, C = (tensor.float() if tensor.ndim == 2 else tensor.to(u.dtype) for tensor in (B, C))
    z = None if z is None else z.to(u.dtype)
    D, delta_bias = (None if tensor is None else tensor.float() for tensor in (D, delta_bias))
    # The kernels have a gate, but nothing to add before it.
    kernel_gate = z if addend is None else None
    y = scan_forward(u, delta, A.float(), B, C, D, kernel_gate, delta_bias, delta_softplus, reverse, source)
    return (y if addend is None else add_and_gate(y, addend, z)), None


def why_mamba_ssm_cannot(situation: Situation, source: str) -> str | None:
    """The reason why the kernels cannot run in a situation (see `selective_scan`), or `None` if they can."""
    if situation.device_type != "cuda":
        return f"it runs on CUDA, not on {situation.device_type}"
    if situation.carries_state:
        return "it neither takes an initial state nor differentiates the last one"
    if situation.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"it does not know {situation.dtype}"
    if situation.state_size > MAX_STATE_SIZE:
        return f"its states are limited to {MAX_STATE_SIZE}, here {situation.state_size}"
    return probe(source)


@functools.cache
def load_interface(source: str) -> ModuleType:
    """The module with `SelectiveScanFn`, of the installed package or the Hub; `ImportError` if there is none."""
    if source == "mamba_ssm":
        return importlib.import_module(f"mamba_ssm.{INTERFACE}")
    kernels = get_kernel(source, version=KERNELS_VERSION)
    return importlib.import_module(f"{kernels.__name__}.{INTERFACE}")


@probing
def probe(source, device="cuda"):
    """Some releases can be imported but not called."""
    ones = torch.ones(1, 1, 4, device=device)
    arguments = (ones, ones, -ones[0, :, :1], ones[:, None], ones[:, None], None, None, None, False, False, source)
    scan_backward(ones, *arguments)
    return scan_forward(*arguments)


def _in_order(tensors: Iterable[Any], reverse: bool) -> Iterator[Any]:
    """The tensors or `None`: sequences in the order of the scan, and weights (one or two dimensions) unchanged."""
    for tensor in tensors:
        yield reversed_copy(tensor) if reverse and tensor is not None and tensor.ndim > 2 else tensor


def _run(context, u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, source) -> torch.Tensor:
    tensors = _in_order((u, delta, A, B, C, D, z, delta_bias), reverse)
    return load_interface(source).SelectiveScanFn.forward(context, *tensors, delta_softplus)


INPUTS = (
    "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias,"
    " bool delta_softplus, bool reverse, str source"
)


@torch.library.custom_op("hf_video::selective_scan_mamba_ssm", mutates_args=(), schema=f"({INPUTS}) -> Tensor")
def scan_forward(*arguments):
    output, reverse = _run(RecordedContext(), *arguments), arguments[9]
    return reversed_copy(output) if reverse else output.contiguous()


@torch.library.custom_op(
    "hf_video::selective_scan_mamba_ssm_backward", mutates_args=(), schema=f"(Tensor grad, {INPUTS}) -> Tensor[]"
)
def scan_backward(grad, *arguments):
    """The gradients of all tensors, empty ones for those that are `None`. The forward runs again, so that no states
    are kept."""
    *tensors, _, reverse, source = arguments
    context = RecordedContext()
    _run(context, *arguments)
    grad = reversed_copy(grad) if reverse else grad.contiguous()
    gradients = _in_order(load_interface(source).SelectiveScanFn.backward(context, grad)[:8], reverse)
    return [
        grad.new_empty(0) if tensor is None else gradient.to(tensor.dtype).contiguous()
        for tensor, gradient in zip(tensors, gradients, strict=True)
    ]


@scan_forward.register_fake
def _(u, *others):
    return torch.empty_like(u, memory_format=torch.contiguous_format)


@scan_backward.register_fake
def _(grad, *arguments):
    tensors = (grad.new_empty(0) if tensor is None else tensor for tensor in arguments[:8])
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]


register_gradients(scan_forward, scan_backward)
