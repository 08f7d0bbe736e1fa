"""Mamba's selective scan (https://arxiv.org/abs/2312.00752) in plain PyTorch, for where hf_video is not installed."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback
from transformers.utils import logging

CHUNK_LENGTH = 16

logging.get_logger(__name__).warning_once(
    "VideoMamba takes mamba-ssm's scan on a CUDA device if that package is installed, and otherwise one that is right "
    "but slow. `pip install git+https://github.com/hf-video/hf-video` brings fast kernels for CPUs and GPUs."
)


def scan_chunk(delta, u, B, C, A, state):
    """Outputs `(batch_size, dim, steps)` of a few steps, and the state `(batch_size, dim, state_size)` after them."""
    decays = torch.exp(delta[..., None] * A[:, None])
    updates = (delta * u)[..., None] * B.mT[:, None]
    states = []
    for decay, update in zip(decays.unbind(2), updates.unbind(2), strict=True):
        state = decay * state + update
        states.append(state)
    return (torch.stack(states, dim=2) * C.mT[:, None]).sum(dim=-1), state


def plain_scan(u, delta, A, B, C, D, z=None, delta_bias=None, delta_softplus=False, state=None, with_state=False):
    """The recurrence in float32 at least, without a gate. The backward computes the states of each chunk once more."""
    dtype = torch.promote_types(u.dtype, torch.float32)
    inputs, delta, A, B, C, D, bias = (tensor.to(dtype) for tensor in (u, delta, A, B, C, D, delta_bias))
    delta = delta.contiguous() + bias[:, None]  # AOTAutograd traces other strides than softplus has in its backward
    delta = F.softplus(delta) if delta_softplus else delta
    state, outputs = inputs.new_zeros(*inputs.shape[:2], A.shape[1]) if state is None else state, []
    for chunk in zip(*(sequence.split(CHUNK_LENGTH, dim=-1) for sequence in (delta, inputs, B, C)), strict=True):
        step, is_compiling = (*chunk, A, state), torch.compiler.is_compiling()
        # Strict export has no checkpoints, and compilers choose what to keep.
        output, state = scan_chunk(*step) if is_compiling else checkpoint(scan_chunk, *step, use_reentrant=False)
        outputs.append(output)
    y = (torch.cat(outputs, dim=-1) + D[:, None] * inputs).to(u.dtype)
    return (y, state) if with_state else y


# mamba-ssm's function where that package can be imported.
selective_scan_fn = use_kernel_func_from_hub_with_fallback("selective_scan_fn", "mamba_ssm")(plain_scan)


def selective_scan(
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, addend, initial_state=None, return_last_state=False
):
    """mamba-ssm's function in both directions, with an initial state; adds `addend` before the gate `z`."""
    u, delta, B, C = (x.to(u.dtype).flip(-1) if reverse else x.to(u.dtype) for x in (u, delta, B, C))
    if return_last_state or not u.is_cuda or u.dtype == torch.float64:
        y, state = plain_scan(u, delta, A, B, C, D, None, delta_bias, delta_softplus, initial_state, with_state=True)
    else:
        y, state = selective_scan_fn(u, delta, A, B, C, D.float(), None, delta_bias.float(), delta_softplus), None
    y = y.flip(-1) if reverse else y
    y = y if addend is None else y + addend
    y = y if z is None else y * F.silu(z)
    return (y, state) if return_last_state else y
