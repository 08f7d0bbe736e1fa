"""Functions that the operators of several backends share."""

from collections.abc import Callable, Iterable

import torch


def reversed_copy(x: torch.Tensor) -> torch.Tensor:
    """
    A contiguous copy with the last dimension reversed. `flip` keeps the order of dimensions in memory, so that a
    second copy would have to change it.
    """
    return x.index_select(-1, torch.arange(x.shape[-1] - 1, -1, -1, device=x.device))


@torch.library.custom_op("hf_video::turn", mutates_args=())
def turn(x: torch.Tensor) -> torch.Tensor:
    """`reversed_copy` with a backward that is a reversed copy, too, instead of an addition to an index."""
    return reversed_copy(x)


@turn.register_fake
def _(x):
    return x.new_empty(x.shape)


turn.register_autograd(lambda ctx, dy: turn(dy))


def needs_gradient(tensors: Iterable[torch.Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


class RecordedContext:
    """
    A stand-in for the context of an autograd function. An operator runs below autograd, where it calls the forward and
    the backward of such a function by itself.
    """

    saved_tensors: tuple[torch.Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        self.saved_tensors = tensors


def register_convolution(
    forward: torch.library.CustomOpDef, backward: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
) -> None:
    """
    Make one operator of a convolution the derivative of another.

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
