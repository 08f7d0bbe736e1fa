"""Training on several processes: weights that FSDP or DeepSpeed shard."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments


class WeightsForm(StrEnum):
    """How a checkpoint holds its weights, in words for an error."""

    WHOLE = "whole weights"
    FSDP = "FSDP"
    DEEPSPEED = "DeepSpeed"


# What accelerate and DeepSpeed write for each form.
_FILES = {
    WeightsForm.FSDP: "pytorch_model_fsdp.bin",
    WeightsForm.DEEPSPEED: "global_step*",
}


def form_of_checkpoint(checkpoint: Path) -> WeightsForm:
    """How a checkpoint holds its weights."""
    return next((form for form, name in _FILES.items() if any(checkpoint.glob(name))), WeightsForm.WHOLE)


def form_of_run(trainer: Any) -> WeightsForm:
    """How the checkpoints of a `transformers.Trainer` hold their weights."""
    if trainer.is_deepspeed_enabled:
        return WeightsForm.DEEPSPEED
    return WeightsForm.FSDP if trainer.is_fsdp_enabled else WeightsForm.WHOLE


def check_saves_whole_weights(trainer: Any) -> None:
    """Refuses (`ValueError`) FSDP whose checkpoints would hold a part of the weights from each process."""
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None and "FULL_STATE_DICT" not in str(plugin.state_dict_type):
        raise ValueError(
            f"FSDP would save {plugin.state_dict_type.name}, and checkpoints hold whole weights: set "
            "fsdp_state_dict_type to FULL_STATE_DICT, as recipes/accelerate/fsdp2.yaml does."
        )


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
