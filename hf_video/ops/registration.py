"""How an operator of PyTorch gets its gradients, and the operator that turns a sequence round."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


def needs_gradient(tensors: Iterable[torch.Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def register_gradients(
    forward: torch.library.CustomOpDef, backward: Callable[..., Any], num_outputs: int = 1, num_unread: int = 0
) -> None:
    """
    Make one operator the derivative of another.

    `forward` takes tensors or `None`, then options. It returns `num_outputs` outputs, the first of which is like the
    first tensor that it takes, and then the tensors that only the backward needs. `backward` takes the gradients of
    the outputs, `None` where there is none but for the first; the tensors that `forward` returned for it; and what
    `forward` took without the last `num_unread` tensors, whose memory is not kept. It returns one gradient for each
    tensor that `forward` took, also for one that was `None`.
    """

    def save(ctx, inputs, output):
        tensors = [x for x in inputs if x is None or isinstance(x, torch.Tensor)]
        kept = output[num_outputs:] if isinstance(output, tuple) else ()
        ctx.set_materialize_grads(False)
        ctx.options, ctx.num_kept = inputs[len(tensors) :], len(kept)
        ctx.is_given = [x is not None for x in tensors]
        ctx.save_for_backward(*kept, *tensors[: len(tensors) - num_unread])

    def differentiate(ctx, dy, *others):
        saved = ctx.saved_tensors
        dy = torch.zeros_like(saved[ctx.num_kept]) if dy is None else dy
        gradients = backward(dy, *others[: num_outputs - 1], *saved, *ctx.options)
        every = (gradient if given else None for given, gradient in zip(ctx.is_given, gradients, strict=True))
        return *every, *(None for _ in ctx.options)

    forward.register_autograd(differentiate, setup_context=save)


@torch.library.custom_op("hf_video::turn", mutates_args=())
def turn(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy with the last dimension reversed."""
    # `flip` keeps the order of dimensions in memory; and the backward of an index is an addition, not a copy.
    return x.index_select(-1, torch.arange(x.shape[-1] - 1, -1, -1, device=x.device))


@turn.register_fake
def _(x):
    return x.new_empty(x.shape)


turn.register_autograd(lambda ctx, dy: turn(dy))
