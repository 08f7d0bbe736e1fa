"""Finds out whether a model uses all parameters that are trained, so that DistributedDataParallel need not look."""

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedModel

from hf_video.loading.clip_size import clip_size


def unused_parameters(model: PreTrainedModel) -> list[str] | None:
    """The names of the trainable parameters that the logits of a video classifier do not depend on, from one pass of a
    blank clip. None if its configuration does not say the size of a clip, or the model does not take that clip alone.

    The pass is made in evaluation mode: it draws no random numbers and changes no statistics. It keeps nothing for a
    backward pass, so that it takes as little memory as an evaluation.
    """
    num_frames, image_size = clip_size(model.config)
    if num_frames is None or image_size is None:
        return None
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    first = next(model.parameters())
    shape = (1, num_frames, getattr(model.config, "num_channels", 3), height, width)
    blank = torch.zeros(shape, dtype=first.dtype, device=first.device)
    was_training = model.training
    try:
        with torch.enable_grad(), saved_tensors_hooks(_forget, _forget):
            logits = model.eval()(**{model.main_input_name: blank})["logits"]
    except Exception:
        # The collator of its user may give it other inputs. What fails in a step as well is reported there.
        return None
    finally:
        model.train(was_training)
    used = _parameters_behind(logits)
    return [name for name, weight in model.named_parameters() if weight.requires_grad and id(weight) not in used]


def _forget(tensor: Any) -> Any:
    """Keeps nothing of a tensor that is saved for a backward pass."""
    return None


def _parameters_behind(output: torch.Tensor) -> set[int]:
    """The ids of the parameters at the leaves of an output's graph."""
    waiting, seen = [output.grad_fn], set()
    while waiting:
        node: Any = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    leaves = (getattr(node, "variable", None) for node in seen)
    return {id(leaf) for leaf in leaves if isinstance(leaf, nn.Parameter)}
