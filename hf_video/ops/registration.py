"""
What operators of several backends share: how they get their gradients, how a backend finds out whether its kernels
can be used, and how a sequence is turned.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch


class RecordedContext:
    """
    A stand-in for the context of an autograd function. An operator runs below autograd, where it calls the forward and
    the backward of such a function by itself.
    """

    saved_tensors: tuple[torch.Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        self.saved_tensors = tensors


def needs_gradient(tensors: Iterable[torch.Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def register_gradients(
    forward: torch.library.CustomOpDef, backward: Callable[..., Any], num_outputs: int = 1, num_forgotten: int = 0
) -> None:
    """
    Make one operator the derivative of another.

    Args:
        forward: takes tensors or `None`, and options. Returns its outputs, the first of which is like the first
            tensor that it takes, and then the tensors that only the backward needs.
        backward: takes the gradients of the outputs, the tensors that `forward` returned for it, and what `forward`
            took, options last, without the last `num_forgotten`. Returns one gradient for each tensor that `forward`
            took, also for one that was `None`. A gradient of an output may be `None`, but for the first.
        num_outputs: number of outputs of `forward`.
        num_forgotten: number of arguments at the end that the backward does not read. Their memory is not kept.
    """

    def save(ctx, inputs, output):
        kept = output[num_outputs:] if isinstance(output, tuple) else ()
        seen = inputs[: len(inputs) - num_forgotten]
        tensors = [x for x in seen if x is None or isinstance(x, torch.Tensor)]
        ctx.set_materialize_grads(False)
        ctx.num_kept, ctx.options = len(kept), seen[len(tensors) :]
        ctx.is_there = [isinstance(x, torch.Tensor) for x in inputs]
        ctx.takes_gradient = [x is None or isinstance(x, torch.Tensor) for x in inputs]
        ctx.save_for_backward(*kept, *tensors)

    def differentiate(ctx, dy, *others):
        saved = ctx.saved_tensors
        dy = torch.zeros_like(saved[ctx.num_kept]) if dy is None else dy
        gradients = iter(backward(dy, *others[: num_outputs - 1], *saved, *ctx.options))
        every = (next(gradients) if takes_one else None for takes_one in ctx.takes_gradient)
        return tuple(gradient if there else None for there, gradient in zip(ctx.is_there, every, strict=True))

    forward.register_autograd(differentiate, setup_context=save)


def probing(run: Callable[..., torch.Tensor]) -> Any:
    """
    A cached function that says why a call of kernels fails, or `None` if it works. It takes what `run` takes, which
    calls the kernels and returns their output.
    """

    @functools.cache
    def probe(*arguments: str) -> str | None:
        try:
            output = run(*arguments)
        # Compilers, drivers, cards and foreign builds fail in many ways. Each means that kernels cannot be used.
        except Exception as error:
            return f"its kernels do not answer ({type(error).__name__}: {error})"
        return None if output.isfinite().all() else "its kernels answer with numbers that are not finite"

    return probe


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
