"""`selective_scan` by the compiled kernels of mamba-ssm, of the installed package or of the Hub."""

import os

import torch
from transformers.utils import ENV_VARS_TRUE_VALUES

from hf_video.ops.mamba_kernels import HUB_KERNELS, probe, run

from .reference import ScanFacts, ScanInputs, add_and_gate

MAX_STATE_SIZE = 256


def selective_scan_mamba_ssm(inputs: ScanInputs, source: str) -> tuple[torch.Tensor, None]:
    """Output as `selective_scan` describes it, by the build `source`; `unsupported` must return `None`."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, _, addend = inputs
    delta = delta.to(u.dtype)
    # Projections that are the same at all times are weights.
    B, C = (tensor.float() if tensor.ndim == 2 else tensor.to(u.dtype) for tensor in (B, C))
    z = None if z is None else z.to(u.dtype)
    D, delta_bias = (None if tensor is None else tensor.float() for tensor in (D, delta_bias))
    # The kernels have a gate, but nothing to add before it.
    tensors = [u, delta, A.float(), B, C, D, z if addend is None else None, delta_bias]
    y = run(source, "SelectiveScanFn", tensors, reverse, delta_softplus)
    return (y if addend is None else add_and_gate(y, addend, z)), None


def unsupported(facts: ScanFacts, source: str) -> str | None:
    """The reason why the kernels cannot run a scan, or `None` if they can."""
    if facts.device_type != "cuda":
        return f"it runs on CUDA, not on {facts.device_type}"
    if facts.carries_state:
        return "it neither takes an initial state nor differentiates the last one"
    if facts.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"it does not know {facts.dtype}"
    if facts.state_size > MAX_STATE_SIZE:
        return f"its states are limited to {MAX_STATE_SIZE}, here {facts.state_size}"
    is_off = os.environ.get("USE_HUB_KERNELS", "YES").upper() not in ENV_VARS_TRUE_VALUES
    if source == HUB_KERNELS and is_off and not facts.forced:
        return "USE_HUB_KERNELS is off"
    return probe(source, "SelectiveScanFn", facts.forced)
