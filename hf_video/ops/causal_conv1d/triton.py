"""
`causal_conv1d` on GPUs, by kernels that Triton compiles, which comes with PyTorch.

The operators take x `(batch, length, dim)` of any floating dtype, weight `(taps, dim)` and bias `(dim,)` in float32.
"""

import torch

from hf_video.ops.dispatch import probing
from hf_video.ops.registration import register_gradients

from .reference import BACKWARD, FORWARD, fake_backward, fake_forward

# Sizes of a tile. It also reads the steps before its own. Its channels fill 128 bytes of bfloat16.
STEPS, BLOCK = 32, 64


def causal_conv1d_triton(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool
) -> torch.Tensor:
    """Output as `causal_conv1d` describes it, quickest if channels are last in memory."""
    bias = weight.new_zeros(x.shape[1]) if bias is None else bias
    return conv_forward(x.mT, weight[:, 0].mT.float(), bias.float(), reverse).mT


@probing
def probe(device="cuda"):
    """Triton, or the C compiler that it needs, may be missing."""
    x, weight = torch.ones(1, 4, 1, device=device), torch.ones(4, 1, device=device)
    conv_backward(x, x, weight, weight[0], False)
    return conv_forward(x, weight, weight[0], False)


def _pack(x, weight, bias) -> list[torch.Tensor | int]:
    """The first arguments of both kernels, as their module describes them."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    return [x, x.stride(0), x.stride(1), weight.contiguous(), bias.contiguous()]


def _grid(x) -> tuple[int, int, int]:
    batch_size, length, dim = x.shape
    return -(-dim // BLOCK), -(-length // STEPS), batch_size


def settings(taps: int) -> dict[str, int]:
    """Constants and options of both kernels."""
    return {"TAPS": taps, "STEPS": STEPS, "BLOCK": BLOCK, "num_warps": 4, "enable_fp_fusion": True}


@torch.library.custom_op("hf_video::causal_conv1d_triton", mutates_args=(), schema=FORWARD)
def conv_forward(x, weight, bias, reverse):
    from .triton_kernels import conv_forward_kernel

    y = x.new_empty(x.shape)
    arguments = (*_pack(x, weight, bias), y, *x.shape[1:])
    with torch.cuda.device_of(x):
        conv_forward_kernel[_grid(x)](*arguments, reverse=reverse, **settings(len(weight)))
    return y


@torch.library.custom_op("hf_video::causal_conv1d_triton_backward", mutates_args=(), schema=BACKWARD)
def conv_backward(dy, x, weight, bias, reverse):
    from .triton_kernels import conv_backward_kernel

    grid = _grid(x)
    dx = x.new_empty(x.shape)
    dweight, dbias = (tensor.new_empty(len(x), grid[1], *tensor.shape) for tensor in (weight, bias))
    arguments = (*_pack(x, weight, bias), dy.contiguous(), dx, dweight, dbias, *x.shape[1:])
    with torch.cuda.device_of(x):
        conv_backward_kernel[grid](*arguments, reverse=reverse, **settings(len(weight)))
    return dx, dweight.sum(dim=(0, 1)), dbias.sum(dim=(0, 1))


conv_forward.register_fake(fake_forward)
conv_backward.register_fake(fake_backward)
register_gradients(conv_forward, conv_backward)
