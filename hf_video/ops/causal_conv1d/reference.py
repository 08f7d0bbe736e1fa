"""
`causal_conv1d` in plain PyTorch: the specification that every other backend is tested against. And what the operators
of other backends have in common: their schemas, and outputs without values.
"""

import torch
import torch.nn.functional as F

FORWARD = "(Tensor x, Tensor weight, Tensor bias, bool reverse) -> Tensor"
BACKWARD = "(Tensor dy, Tensor x, Tensor weight, Tensor bias, bool reverse) -> (Tensor, Tensor, Tensor)"


def causal_conv1d_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool
) -> torch.Tensor:
    """Output as `causal_conv1d` describes it, computed in float32 at least."""
    dtype, taps = torch.promote_types(x.dtype, torch.float32), weight.shape[-1]
    kernel = (weight.flip(-1) if reverse else weight).to(dtype)
    biases = None if bias is None else bias.to(dtype)
    convolved = F.conv1d(x.to(dtype), kernel, biases, padding=taps - 1, groups=x.shape[1])
    return F.silu(convolved.narrow(-1, taps - 1 if reverse else 0, x.shape[-1])).to(x.dtype)


def fake_forward(x, weight, bias, reverse):
    return x.new_empty(x.shape)


def fake_backward(dy, x, weight, bias, reverse):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)
