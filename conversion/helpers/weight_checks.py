"""Whether the values of tensors can be those of weights; a tensor of others is refused by its name."""

import torch
from torch import nn

from .checkpoint import ConversionError

# Eight-bit floats are none: they mean nothing without scales that are stored elsewhere.
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_values(name: str, tensor: torch.Tensor) -> None:
    """
    Whether a tensor holds floating-point numbers that are finite, also as float32; on the meta device it holds none.

    Raises:
        ConversionError: if not.
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
    Whether all parameters that were loaded into a model are finite; those of a quantised one are left alone.

    Raises:
        ConversionError: if not, with the name of the parameter and the `source` it is from.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            check_values(f"{name} of {source}", parameter)
