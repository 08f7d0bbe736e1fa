"""
`causal_conv1d` on the CPU, by kernels that numba compiles on the user's machine.

The operators take x `(batch, length, dim)`, weight `(taps, dim)` and bias `(dim,)`, all float32, in full vectors.
"""

import torch

from hf_video.ops.numba_threads import cut_lanes, pad_lanes, run_units, split_work
from hf_video.ops.registration import register_gradients

from .reference import BACKWARD, FORWARD, fake_backward, fake_forward


def causal_conv1d_cpu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool) -> torch.Tensor:
    """Output as `causal_conv1d` describes it, quickest if channels are last in memory."""
    dim = x.shape[1]
    bias = weight.new_zeros(dim) if bias is None else bias
    tensors = (pad_lanes(tensor.float()) for tensor in (x.mT, weight[:, 0].mT, bias))
    return cut_lanes(conv_forward(*tensors, reverse), 1, dim).mT.to(x.dtype)


def _pack(x, weight, bias) -> list[torch.Tensor]:
    return [x if x.stride(-1) == 1 else x.contiguous(), weight.contiguous(), bias.contiguous()]


@torch.library.custom_op("hf_video::causal_conv1d_cpu", mutates_args=(), schema=FORWARD)
def conv_forward(x, weight, bias, reverse):
    from .cpu_kernels import conv_forward_unit

    y = x.new_empty(x.shape)
    run_units(conv_forward_unit, (*_pack(x, weight, bias), y, reverse), split_work(x.shape[0], 1, x.shape[1]))
    return y


@torch.library.custom_op("hf_video::causal_conv1d_cpu_backward", mutates_args=(), schema=BACKWARD)
def conv_backward(dy, x, weight, bias, reverse):
    from .cpu_kernels import conv_backward_unit

    units = split_work(x.shape[0], 1, x.shape[1])
    parts = 1 + max((unit[2] for unit in units), default=0)
    dx = x.new_empty(x.shape)
    dweight, dbias = (tensor.new_zeros(x.shape[0], parts, *tensor.shape) for tensor in (weight, bias))
    arguments = (*_pack(x, weight, bias), dy.contiguous(), dx, dweight, dbias, reverse)
    run_units(conv_backward_unit, arguments, units)
    return dx, dweight.sum(dim=(0, 1)), dbias.sum(dim=(0, 1))


conv_forward.register_fake(fake_forward)
conv_backward.register_fake(fake_backward)
register_gradients(conv_forward, conv_backward)
