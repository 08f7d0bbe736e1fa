"""Estimates the memory of a training with fake tensors, before its model takes any."""

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import psutil
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from transformers import (
    MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING,
    AutoModelForVideoClassification,
    PreTrainedConfig,
    PreTrainedModel,
    TrainingArguments,
)
from transformers.initialization import no_init_weights
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_video.loading.clip_size import check_clips, set_input_size
from hf_video.loading.configurations import GIB, bounded_models
from hf_video.processing import VideoClipProcessor

# Measured peaks lie within a factor of two of the estimate; a test measures some.
TOLERANCE = 2


class TrainingMemory(NamedTuple):
    """What a training needs.

    Attributes:
        num_tokens: tokens of a clip that the encoder gives; 0 if its output has none.
        num_bytes: weights, gradients, two states of the optimizer for each trained weight, and what the backward
            pass of a batch needs, with gradient checkpointing or without. Clips that are read ahead, a teacher and
            what single operations take for a moment are not in it.
    """

    num_tokens: int
    num_bytes: int


def estimate_memory(
    config: PreTrainedConfig,
    processor: VideoClipProcessor,
    arguments: TrainingArguments,
    choose_weights: Callable[[PreTrainedModel], PreTrainedModel] = lambda model: model,
) -> TrainingMemory | None:
    """Estimates the memory of a training in one process, without computing anything.

    Args:
        config: configuration of the classifier.
        processor: gives the clips, whose size the model is set to.
        arguments: the batch size, precision and gradient checkpointing.
        choose_weights: freezes weights of the model, or adds some.

    Returns:
        None if the values of its input decide what the model computes, or if it does not classify videos.

    Raises:
        ValueError: the model does not take such clips, or has more than 20,000 tensors or more bytes than the memory.
    """
    size = processor.crop_size if processor.do_center_crop else processor.size
    # Loading refuses a model of another kind.
    if not size.height or not size.width or type(config) not in MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING:
        return None
    clips = (2, processor.num_frames, getattr(config, "num_channels", 3), size.height, size.width)
    with torch.device("meta"), no_init_weights(), bounded_models():
        model = AutoModelForVideoClassification.from_config(config, dtype=torch.float32)
        if size.height == size.width:
            set_input_size(model, image_size=size.height, num_frames=processor.num_frames)
        check_clips(model, processor)
        model = choose_weights(model).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        # Adapters cannot be put into a model of fake tensors; meta tensors take other operations than the CPU's.
        model.to_empty(device="cpu")
        try:
            num_tokens, kept = _forward(model, torch.empty(clips), arguments)
        except RuntimeError:  # a value that only real tensors have
            return None
    weights = sum(parameter.nbytes for parameter in model.parameters())
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    per_clip = kept / clips[0]
    return TrainingMemory(num_tokens, round(weights + 3 * trained + per_clip * arguments.per_device_train_batch_size))


def check_memory(needed: TrainingMemory, device: torch.device) -> str:
    """A sentence on the needed and the available memory; a `ValueError` if a training needs more than twice of it."""
    if device.type in ("cpu", "mps"):
        available = psutil.virtual_memory().available
    else:
        available = torch.accelerator.get_memory_info(device)[0]
    sentence = (
        f"A clip has {needed.num_tokens:,} tokens; training needs about {needed.num_bytes / GIB:.1f} GiB "
        f"({available / GIB:.1f} GiB available on {device.type})."
    )
    if needed.num_bytes > TOLERANCE * available:
        raise ValueError(
            f"{sentence} Take a smaller --image-size, --num-frames, --batch-size or model, or "
            "gradient_checkpointing=true."
        )
    return sentence


def _forward(model: PreTrainedModel, clips: torch.Tensor, arguments: TrainingArguments) -> tuple[int, int]:
    """The tokens of a clip, and the bytes that the backward pass of the clips needs besides the weights: what the
    model keeps, and as much as the largest layer keeps for its gradients. With gradient checkpointing a layer keeps
    its input, and one layer at a time keeps the rest."""
    num_tokens, weights = 0, {id(parameter) for parameter in model.parameters()}
    layer: nn.Module | None = None
    # What is kept, by the layer that keeps it. A storage that was freed could give its address to the next.
    kept = defaultdict[nn.Module | None, dict[int, Any]](dict)

    def count_tokens(module: Any, inputs: Any, output: Any) -> None:
        nonlocal num_tokens
        states = output[0]
        num_tokens = states.shape[1] if states.ndim == 3 else 0

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal layer
        for tensor in inputs:
            if isinstance(tensor, torch.Tensor):
                keep(tensor)
        layer = module

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal layer
        layer = None

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if id(tensor) not in weights and storage._cdata not in kept[None]:
            kept[layer][storage._cdata] = storage
        return tensor

    plain = model.get_base_model() if hasattr(model, "get_base_model") else model  # with adapters, or without
    hooks = [plain.base_model.register_forward_hook(count_tokens)]
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    dtype = torch.bfloat16 if arguments.bf16 else torch.float16 if arguments.fp16 else None
    with (
        saved_tensors_hooks(keep, lambda tensor: tensor),
        nullcontext() if dtype is None else torch.autocast(clips.device.type, dtype),
    ):
        model(**{model.main_input_name: clips})
    for hook in hooks:
        hook.remove()
    sizes = {each: sum(storage.nbytes() for storage in storages.values()) for each, storages in kept.items()}
    outside, largest = sizes.pop(None), max(sizes.values(), default=0)
    return num_tokens, outside + largest + (largest if arguments.gradient_checkpointing else sum(sizes.values()))
