"""Functions that the operators of all backends of `causal_conv1d` share."""

from collections.abc import Callable

import torch


def register_gradients(
    forward: torch.library.CustomOpDef, backward: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
) -> None:
    """
    Make one operator the derivative of another.

    Args:
        forward: takes x, weight, bias or `None`, and options such as `reverse`. Returns a tensor like x.
        backward: takes the gradient of that tensor and all that `forward` took. Returns the gradients of x, weight and
            bias, also of a bias that was `None`.
    """

    def save_inputs(ctx, inputs, output):
        x, weight, bias, *ctx.options = inputs
        ctx.save_for_backward(x, weight, bias)

    def differentiate(ctx, dy):
        x, weight, bias = ctx.saved_tensors
        dx, dweight, dbias = backward(dy, x, weight, bias, *ctx.options)
        return dx, dweight, None if bias is None else dbias, *(None for _ in ctx.options)

    forward.register_autograd(differentiate, setup_context=save_inputs)
