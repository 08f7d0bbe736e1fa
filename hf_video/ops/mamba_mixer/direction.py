"""One direction of a Mamba mixer: its weights, and its convolution and scan on backends that suit each other."""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch

from hf_video.ops.causal_conv1d import causal_conv1d
from hf_video.ops.causal_conv1d.dispatch import choose_backend as choose_convolution
from hf_video.ops.operators import turn
from hf_video.ops.selective_scan import selective_scan
from hf_video.ops.selective_scan.dispatch import choose_backend as choose_scan
from hf_video.ops.selective_scan.operators import add_and_gate


class Direction(NamedTuple):
    """
    Weights of one direction, float32 or bfloat16.

    Attributes:
        conv_weight: `(dim, taps)`, the tap of the token itself last.
        conv_bias, dt_bias, D: `(dim,)`.
        x_proj: `(rank + 2 * state_size, dim)`.
        dt_proj: `(dim, rank)`.
        A: `(dim, state_size)`.
    """

    conv_weight: torch.Tensor
    conv_bias: torch.Tensor
    x_proj: torch.Tensor
    dt_proj: torch.Tensor
    dt_bias: torch.Tensor
    A: torch.Tensor
    D: torch.Tensor


def convolve_and_scan(
    x: torch.Tensor,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    project: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    A: torch.Tensor,
    D: torch.Tensor,
    z: torch.Tensor | None,
    delta_bias: torch.Tensor,
    *,
    reverse: bool,
    addend: torch.Tensor | None,
) -> torch.Tensor:
    """
    `selective_scan` of `causal_conv1d`, with softplus of the time steps.

    Args:
        x: `(batch_size, dim, length)`.
        conv_weight, conv_bias: as `causal_conv1d` takes them.
        project: gives `delta`, `B` and `C` of `selective_scan` for the output of the convolution.
        A, D, z, delta_bias, reverse, addend: as `selective_scan` takes them.

    Returns:
        `(batch_size, dim, length)`.
    """
    scan_backend = choose_scan(x.device.type, x.dtype, A.shape[1], False, None)
    conv_backend = choose_convolution(scan_backend, conv_weight.shape[-1])

    def run(x: torch.Tensor, z: torch.Tensor | None, addend: torch.Tensor | None, reverse: bool) -> torch.Tensor:
        u = causal_conv1d(x, conv_weight, conv_bias, reverse=reverse, backend=conv_backend)
        delta, B, C = project(u)
        scanned = selective_scan(u, delta, A, B, C, D, z, delta_bias, True, reverse=reverse, addend=addend)
        return cast(torch.Tensor, scanned)

    if reverse and conv_backend == "causal_conv1d":
        # Both kernels only go forward. To turn what enters and leaves costs less than to turn all that lies between.
        return add_and_gate(turn(run(turn(x), None, None, False)), addend, z)
    return run(x, z, addend, reverse)
