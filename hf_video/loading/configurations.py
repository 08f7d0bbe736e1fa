"""Reads configurations and weights, and refuses what cannot be loaded: wrong, damaged, too large, quantised."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import psutil
import torch
from huggingface_hub.errors import StrictDataclassError
from pydantic import BaseModel, StringConstraints
from safetensors import SafetensorError
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, cached_file, logging

from hf_video.io import naming, read_object
from hf_video.settings import few


class Config(BaseModel):
    """Fields of `config.json`. As in the other files, each may be missing or null, unless it has no default."""

    model_type: str | None = None
    architectures: list[str] | None = None
    auto_map: dict[str, Any] | None = None
    id2label: dict[Annotated[str, StringConstraints(pattern=r"^\d+$")], str] | None = None
    quantization_config: dict[str, Any] | None = None


def load_config(model: str | os.PathLike) -> PreTrainedConfig:
    """`AutoConfig.from_pretrained`, with a `ValueError` that names the field of `config.json` that is wrong."""
    try:
        with naming(model):
            return AutoConfig.from_pretrained(model)
    except Exception as error:
        if isinstance(error, OSError) and not Path(model, CONFIG_NAME).is_file():
            raise
        file = cached_file(model, CONFIG_NAME, _raise_exceptions_for_missing_entries=False)
        if file is None:
            if Path(model, ADAPTER_CONFIG_NAME).is_file():
                raise ValueError(
                    f"{model} holds adapters of PEFT, not a whole model: save what their `merge_and_unload` gives, "
                    "and name that folder."
                ) from error
            raise
        read_object(file, Config)
        raise ValueError(f"{file} has a wrong value: {shorten(str(error), 300)}") from error


@contextmanager
def bounded_models() -> Iterator[None]:
    """Ends the building of a model, with a `ValueError`, when its configuration takes no such settings, or it has more
    bytes than this machine has memory."""
    memory = psutil.virtual_memory().total
    # Apart for tensors without memory, and for those that take their places when the weights are loaded.
    sizes = Counter[bool]()

    def add(module: nn.Module, name: str, tensor: Any) -> None:
        if tensor is not None:
            sizes[tensor.is_meta] += tensor.nbytes
            if sizes[tensor.is_meta] > memory:
                raise ValueError(
                    f"These sizes make a model of more than {memory / 2**30:.0f} GiB, the memory of this machine: "
                    "correct the configuration or the options, such as the number of layers."
                )

    try:
        with register_module_parameter_registration_hook(add), register_module_buffer_registration_hook(add):
            yield
    except StrictDataclassError as error:
        raise ValueError(f"These settings make no model: {' '.join(str(error.__cause__ or error).split())}") from error


@contextmanager
def loading(model: str | os.PathLike) -> Iterator[None]:
    """Names a model in the errors of the block that loads it, with the bounds of [`bounded_models`]. It is a
    `ValueError` if a file of weights is damaged."""
    try:
        with naming(model), bounded_models():
            yield
    except SafetensorError as error:
        raise ValueError(f"A file of {model} is cut off or damaged ({error}). Download or copy it again.") from error


def load_weights(
    auto_class: Any, model: str | os.PathLike, head: str = "$", **options: Any
) -> tuple[Any, dict[str, list[Any]]]:
    """A model, and the sorted `missing_keys` and `unexpected_keys` of its checkpoint, which Transformers then does not
    list. Weights of another shape than the configuration says are a `ValueError`, except for those whose names begin
    with the pattern `head`."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with loading(model):
            network, report = auto_class.from_pretrained(
                model, ignore_mismatched_sizes=True, output_loading_info=True, **options
            )
    finally:
        logging.set_verbosity(level)
    if wrong := [row for row in sorted(report["mismatched_keys"]) if not re.match(head, row[0])]:
        shapes = [f"{name} {tuple(saved)} instead of {tuple(expected)}" for name, saved, expected in wrong]
        raise ValueError(f"Weights of {model} have other shapes than its config.json says: {few(shapes)}.")
    return network, {name: sorted(report[name]) for name in ("missing_keys", "unexpected_keys")}


def refuse_missing(model: str | os.PathLike, network: nn.Module, missing: Sequence[str], way_out: str = "") -> None:
    """Refuses (`ValueError`) a model whose checkpoint lacks weights."""
    if missing:
        raise ValueError(
            f"{model} lacks weights of {type(network).__name__} ({few(missing)}), which would be random numbers"
            f"{way_out}."
        )


def check_quantization(model: str | os.PathLike, config: PreTrainedConfig, dtype: str | torch.dtype | None) -> None:
    """Refuses (`ValueError`) to load a model that torchao quantised in another dtype than its layers keep. None and
    "auto" are the dtype of the folder."""
    own, wanted = (str(each).removeprefix("torch.") for each in (config.dtype, dtype))
    if _quantization_method(config) == "torchao" and wanted not in ("None", "auto", own):
        raise ValueError(f"{model} was quantised in {own}, so it cannot compute in {wanted}: set dtype to {own}.")


def check_trainable(model: str | os.PathLike, config: PreTrainedConfig) -> None:
    """Refuses (`ValueError`) to train a quantised model."""
    if method := _quantization_method(config):
        raise ValueError(
            f"{model} is quantised ({method}), and quantised weights cannot be trained: train the model that it was "
            "made from, and quantise the result."
        )


def _quantization_method(config: PreTrainedConfig) -> str | None:
    return (getattr(config, "quantization_config", None) or {}).get("quant_method")
