"""Refuses to build models that no machine could hold. Publishing runs this file where hf_video is not installed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

# Building so many takes seconds. Published video models have about a thousand.
MOST_TENSORS = 20_000
GIB = 2**30


@contextmanager
def bounded_models() -> Iterator[None]:
    """Ends the building of a model in the block, or in a function that this decorates, when it grows beyond bounds.
    The models of Transformers are built without memory before their weights are loaded, so that is soon.

    Raises:
        ValueError: the model has more than 20,000 tensors, or more bytes than this machine has memory.
    """
    memory = psutil.virtual_memory().total
    count = size = 0

    def add(module: nn.Module, name: str, tensor: Any) -> None:
        nonlocal count, size
        if tensor is None:
            return
        count, size = count + 1, size + tensor.numel() * tensor.element_size()
        if count > MOST_TENSORS or size > memory:
            raise ValueError(
                f"These sizes make a model of more than {MOST_TENSORS:,} tensors or {memory / GIB:.0f} GiB, the "
                "memory of this machine: correct the configuration or the options, such as the number of layers."
            )

    with ExitStack() as hooks:
        hooks.enter_context(register_module_parameter_registration_hook(add))
        hooks.enter_context(register_module_buffer_registration_hook(add))
        yield
