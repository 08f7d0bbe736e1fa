"""Training on several processes: weights that FSDP or DeepSpeed shard, and what DistributedDataParallel must know."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedModel, TrainingArguments

from hf_video.loading.clip_size import clip_size


class WeightsForm(StrEnum):
    """How a checkpoint holds its weights, in words for an error."""

    WHOLE = "whole weights"
    FSDP_FULL = "FSDP with FULL_STATE_DICT"
    FSDP_SHARDED = "FSDP with SHARDED_STATE_DICT"
    DEEPSPEED = "DeepSpeed"


# What accelerate and DeepSpeed write for each form.
_FILES = {
    WeightsForm.FSDP_FULL: "pytorch_model_fsdp.bin",
    WeightsForm.FSDP_SHARDED: "pytorch_model_fsdp_0",
    WeightsForm.DEEPSPEED: "global_step*",
}


def form_of_checkpoint(checkpoint: Path) -> WeightsForm:
    """How a checkpoint holds its weights."""
    return next((form for form, name in _FILES.items() if any(checkpoint.glob(name))), WeightsForm.WHOLE)


def form_of_run(trainer: Any) -> WeightsForm:
    """How the checkpoints of a `transformers.Trainer` hold their weights."""
    if trainer.is_deepspeed_enabled:
        return WeightsForm.DEEPSPEED
    if not trainer.is_fsdp_enabled:
        return WeightsForm.WHOLE
    is_full = "FULL_STATE_DICT" in str(trainer.accelerator.state.fsdp_plugin.state_dict_type)
    return WeightsForm.FSDP_FULL if is_full else WeightsForm.FSDP_SHARDED


def check_same_form(checkpoint: Path, trainer: Any) -> None:
    """Refuses (`ValueError`) to resume from weights that another engine, or another configuration of it, saved."""
    saved, here = form_of_checkpoint(checkpoint), form_of_run(trainer)
    if saved is not here:
        raise ValueError(
            f"{checkpoint} was saved with {saved}, and this run has {here}: resume it with the launcher and the "
            "configuration that it began with."
        )


def check_device(arguments: TrainingArguments) -> None:
    """Refuses (`ValueError`) DeepSpeed on the CPU, before Transformers looks for it."""
    if _is_asked_for("deepspeed", arguments) and (arguments.use_cpu or not torch.accelerator.is_available()):
        raise ValueError(
            "DeepSpeed trains on accelerators, and this run is on the CPU: leave DeepSpeed out, or run on a machine "
            "with an accelerator."
        )


def prepare_sharding(arguments: Any) -> None:
    """Refuses (`ValueError`) settings that need whole weights on every process if weights will be sharded, and makes
    DeepSpeed gather its weights to save them. The arguments have passed their own checks."""
    if not _is_asked_for("deepspeed", arguments) and not _is_asked_for("fsdp", arguments):
        return
    for name in ("ema_decay", "lora_rank", "linear_probe", "save_on_each_node"):
        if getattr(arguments, name, None):
            raise ValueError(f"{name} needs whole weights on every process: leave it out with FSDP or DeepSpeed.")
    if arguments.deepspeed_plugin is not None:
        zero = arguments.deepspeed_plugin.hf_ds_config.config.get("zero_optimization", {})
        if zero.get("stage") == 3:
            # Without it the weights of ZeRO-3 never leave their shards.
            zero["stage3_gather_16bit_weights_on_model_save"] = True


def choose_blocks(trainer: Any) -> None:
    """Has FSDP shard each block that a model must not split, if the user names no others.

    Accelerate takes these from the model as well, but fails on a block of a part that the model leaves out.
    """
    model, plugin = trainer.model, getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.transformer_cls_names_to_wrap is None:
        present = {type(module).__name__ for module in model.modules()}
        plugin.transformer_cls_names_to_wrap = sorted(present & set(getattr(model, "_no_split_modules", None) or ()))


def _is_asked_for(engine: str, arguments: TrainingArguments) -> bool:
    """Whether the arguments, or `accelerate launch` by a variable, ask for "fsdp" or "deepspeed"."""
    launched = os.environ.get(f"ACCELERATE_USE_{engine.upper()}", "false").lower() == "true"
    return bool(getattr(arguments, engine)) or launched


def unused_parameters(model: PreTrainedModel) -> list[str] | None:
    """The names of the trainable parameters that the logits of a video classifier do not depend on. None if its
    configuration does not say the size of a clip, or the model does not take a clip alone.

    A blank clip passes in evaluation mode: that draws no random numbers, changes no statistics, and keeps nothing for
    a backward pass.
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
        with torch.enable_grad(), saved_tensors_hooks(lambda saved: None, lambda kept: kept):
            logits = model.eval()(**{model.main_input_name: blank})["logits"]
    except Exception:
        # The collator of its user may give it other inputs. A step reports what fails there as well.
        return None
    finally:
        model.train(was_training)
    waiting, seen = [logits.grad_fn], set()
    while waiting:
        node: Any = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    used = {id(getattr(node, "variable", None)) for node in seen}
    return [name for name, weight in model.named_parameters() if weight.requires_grad and id(weight) not in used]
