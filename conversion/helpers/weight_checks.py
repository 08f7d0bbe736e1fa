"""Checks that tensors can be weights; errors name the tensor."""

import torch
from torch import nn

from .checkpoint import ConversionError

# Without eight-bit floats: they mean nothing without their scales, which are stored elsewhere.
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_values(name: str, tensor: torch.Tensor) -> None:
    """
    Check that a tensor holds floating-point numbers that are finite, also as float32. A tensor on the meta device has
    no values to check.

    Raises:
        ConversionError: for another dtype, or values that are NaN or infinite.
    """
    if tensor.dtype not in FLOAT_DTYPES:
        raise ConversionError(
            f"The tensor {name} is of {tensor.dtype}, which no weight is: expected one of "
            f"{', '.join(map(str, FLOAT_DTYPES))}."
        )
    if tensor.is_meta:
        return
    finite = tensor.detach().float().isfinite()
    if not finite.all():
        broken = finite.numel() - int(finite.sum())
        raise ConversionError(
            f"The tensor {name} has {broken} of {finite.numel()} values that are NaN or infinite in float32: the "
            "training diverged or the file is damaged, so take an earlier checkpoint."
        )


def check_model(model: nn.Module, source: str) -> None:
    """
    Check that all floating-point parameters of a model are finite. Quantised ones are not checked.

    Raises:
        ConversionError: if one is not, with its name and the `source` that it comes from.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            check_values(f"{name} of {source}", parameter)
