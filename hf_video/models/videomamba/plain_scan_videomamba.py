"""
The selective scan of Mamba (https://arxiv.org/abs/2312.00752) where hf_video is not installed: by mamba-ssm's kernels
on a GPU if they are installed, and otherwise step by step in PyTorch.
"""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback
from transformers.utils import logging

CHUNK_LENGTH = 32

logging.get_logger(__name__).warning_once(
    "hf_video is not installed: on a GPU, VideoMamba runs the kernels of mamba-ssm if that is installed, and otherwise "
    "scans step by step, which is right but slow. `pip install hf-video-models` brings fast kernels for CPUs and GPUs."
)


def scan_chunk(state, A, delta, u, B, C):
    """Outputs of a few steps `(batch, dim, steps)`, and the state after them."""
    outputs = []
    for t in range(u.shape[-1]):
        step = delta[..., t, None]
        state = torch.exp(step * A) * state + step * u[..., t, None] * B[:, None, :, t]
        outputs.append((state * C[:, None, :, t]).sum(dim=-1))
    return torch.stack(outputs, dim=-1), state


def plain_scan(u, delta, A, B, C, D, z=None, delta_bias=None, delta_softplus=False):
    """Computes in float32 at least. The backward computes states once more, chunk by chunk."""
    dtype = torch.promote_types(u.dtype, torch.float32)
    x, delta, A, B, C, D, bias = (tensor.to(dtype) for tensor in (u, delta, A, B, C, D, delta_bias))
    delta = delta + bias[:, None]
    delta = F.softplus(delta) if delta_softplus else delta
    state, outputs = x.new_zeros(*x.shape[:2], A.shape[1]), []
    for chunk in zip(*(tensor.split(CHUNK_LENGTH, dim=-1) for tensor in (delta, x, B, C)), strict=True):
        output, state = checkpoint(scan_chunk, state, A, *chunk, use_reentrant=False)
        outputs.append(output)
    return (torch.cat(outputs, dim=-1) + D[:, None] * x).to(u.dtype)


kernel_or_plain_scan = use_kernel_func_from_hub_with_fallback("selective_scan_fn", "mamba_ssm")(plain_scan)


def selective_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, *, reverse, addend):
    """mamba-ssm's `selective_scan_fn`, or from the last step to the first; `addend` is added before the gate `z`."""
    sequences = [
        tensor.flip(-1) if reverse else tensor for tensor in (u, delta.to(u.dtype), B.to(u.dtype), C.to(u.dtype))
    ]
    scan = plain_scan if u.device.type == "cpu" else kernel_or_plain_scan
    u, delta, B, C = sequences
    y = scan(u, delta, A, B, C, D.float(), delta_bias=delta_bias.float(), delta_softplus=delta_softplus)
    y = y.flip(-1) if reverse else y
    y = y if addend is None else y + addend
    return y if z is None else y * F.silu(z)
