"""One direction of a Mamba mixer (https://arxiv.org/abs/2312.00752), on backends that suit each other."""

from collections.abc import Callable
from typing import Any

import torch

from .causal_conv1d import FORWARD_ONLY, causal_conv1d
from .causal_conv1d import choose_backend as choose_convolution
from .registration import turn
from .selective_scan import choose_backend as choose_scan
from .selective_scan import selective_scan
from .selective_scan.reference import add_and_gate


def convolve_and_scan(
    x: torch.Tensor,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    project: Callable[[torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    A: torch.Tensor,
    D: torch.Tensor,
    z: torch.Tensor | None,
    delta_bias: torch.Tensor,
    *,
    reverse: bool,
    addend: torch.Tensor | None,
    is_padding: torch.Tensor | None = None,
    state: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """
    `selective_scan` of `causal_conv1d`, with softplus of the time steps.

    Args:
        x: `(batch_size, dim, length)`.
        conv_weight, conv_bias: as `causal_conv1d` takes them.
        project: gives `delta`, `B` and `C` of `selective_scan` for the output of the convolution and the padding.
        A, D, z, delta_bias, reverse, addend: as `selective_scan` takes them.
        is_padding: `(batch_size, 1, length)`, bool; only `project` reads it.
        state: `initial_state` of the scan and of the convolution, in which `reverse` is false.

    Returns:
        `(batch_size, dim, length)`; with a state also the last state of the scan.
    """
    scan_backend = choose_scan(x.device.type, x.dtype, A.shape[1], state is not None, None)
    scan_state, conv_state = state or (None, None)
    conv_backend = choose_convolution(scan_backend, conv_weight.shape[-1])

    def run(x, z, addend, reverse, is_padding) -> Any:
        u = causal_conv1d(x, conv_weight, conv_bias, reverse=reverse, initial_state=conv_state, backend=conv_backend)
        delta, B, C = project(u, is_padding)
        options: dict[str, Any] = {"initial_state": scan_state, "return_last_state": state is not None}
        return selective_scan(u, delta, A, B, C, D, z, delta_bias, True, reverse=reverse, addend=addend, **options)

    if reverse and conv_backend in FORWARD_ONLY:
        # Both kernels only go forward. To turn what enters and leaves costs less than to turn all that lies between.
        is_padding = None if is_padding is None else is_padding.flip(-1)
        return add_and_gate(turn(run(turn(x), None, None, False, is_padding)), addend, z)
    return run(x, z, addend, reverse, is_padding)
