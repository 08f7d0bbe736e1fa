"""
`causal_conv1d` on GPUs, by kernels that Triton compiles.

They take channels last, as linear layers and the scan of the `triton` backend do. PyTorch's takes channels first.
"""

import functools

import torch

from hf_video.ops.operators import register_convolution

# Sizes of a tile. Each tile also reads the steps before its own. Its channels fill 128 bytes of bfloat16.
STEPS, BLOCK = 32, 64


def causal_conv1d_triton(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool
) -> torch.Tensor:
    """Output as `causal_conv1d` describes it, computed in float32. It is quickest if channels are last in memory."""
    biases = None if bias is None else bias.float()
    return conv_forward(x.mT, weight.float()[:, 0], biases, reverse).mT


@functools.cache
def why_triton_cannot(device: str = "cuda") -> str | None:
    """Why a call of the kernels fails; `None` if it works. Triton, or the C compiler that it needs, may be missing."""
    try:
        x, weight = torch.ones(1, 4, 1, device=device), torch.ones(1, 4, device=device)
        output = conv_forward(x, weight, None, False)
        conv_backward(x, x, weight, None, False)
    # Compilers, drivers and cards fail in many ways. Each means that the kernels cannot be used.
    except Exception as error:
        return f"its kernels do not answer ({type(error).__name__}: {error})"
    return None if output.isfinite().all() else "its kernels answer with numbers that are not finite"


def _pack(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> list[torch.Tensor | int]:
    """The first arguments of both kernels, as their module describes them."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    bias = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return [x, x.stride(0), x.stride(1), weight.mT.contiguous(), bias.contiguous()]


def _grid(x: torch.Tensor) -> tuple[int, int, int]:
    batch_size, length, dim = x.shape
    return -(-dim // BLOCK), -(-length // STEPS), batch_size


def settings(taps: int) -> dict[str, int]:
    """Constants and options of both kernels."""
    return {"TAPS": taps, "STEPS": STEPS, "BLOCK": BLOCK, "num_warps": 4, "enable_fp_fusion": True}


@torch.library.custom_op("hf_video::causal_conv1d_triton", mutates_args=())
def conv_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool) -> torch.Tensor:
    """The output, like x, for x `(batch, length, dim)`, and float32 weight `(dim, taps)` and bias `(dim,)`."""
    from .triton_kernels import conv_forward_kernel

    y = x.new_empty(x.shape)
    _, length, dim = x.shape
    arguments = (*_pack(x, weight, bias), y, length, dim)
    with torch.cuda.device_of(x):
        conv_forward_kernel[_grid(x)](*arguments, reverse=reverse, **settings(weight.shape[1]))
    return y


@torch.library.custom_op("hf_video::causal_conv1d_triton_backward", mutates_args=())
def conv_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of x, weight and bias, also of a bias that is missing."""
    from .triton_kernels import conv_backward_kernel

    batch_size, length, dim = x.shape
    grid = _grid(x)
    dx = x.new_empty(x.shape)
    dweight = weight.new_empty(batch_size, grid[1], weight.shape[1], dim)
    dbias = weight.new_empty(batch_size, grid[1], dim)
    arguments = (*_pack(x, weight, bias), dy.contiguous(), dx, dweight, dbias, length, dim)
    with torch.cuda.device_of(x):
        conv_backward_kernel[grid](*arguments, reverse=reverse, **settings(weight.shape[1]))
    return dx, dweight.sum(dim=(0, 1)).mT.contiguous(), dbias.sum(dim=(0, 1))


@conv_forward.register_fake
def _(x, weight, bias, reverse):
    return x.new_empty(x.shape)


@conv_backward.register_fake
def _(dy, x, weight, bias, reverse):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(x.shape[-1])


register_convolution(conv_forward, conv_backward)
