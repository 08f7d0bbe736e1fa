"""Training on several processes: weights that FSDP or DeepSpeed shard, and which process measures which items.

Nothing here imports PyTorch before it is needed, so that settings are refused early.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate.data_loader import BatchSamplerShard
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
    """Refuses (`ValueError`) FSDP whose checkpoints would hold a part of the weights, or of their average, from each
    process."""
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.fsdp_version == 1 and getattr(trainer.args, "ema_decay", None):
        raise ValueError("ema_decay needs FSDP2: set fsdp_version to 2, as recipes/accelerate/fsdp2.yaml does.")
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
    import torch

    is_on_cpu = arguments.use_cpu or not torch.accelerator.is_available()
    if _is_asked_for("deepspeed", vars(arguments)) and is_on_cpu:
        raise ValueError(
            "DeepSpeed trains on accelerators, and this run is on the CPU: leave DeepSpeed out, or run on a machine "
            "with an accelerator."
        )


def check_plan(values: Mapping[str, Any]) -> None:
    """Refuses (`ValueError`) arguments, by their names, that need whole weights on every process if weights will be
    sharded; and clips that context or sequence parallelism would cut."""
    config, is_launched = values.get("parallelism_config"), _is_launched("PARALLELISM_CONFIG")
    for name, kind in {"cp_size": "context", "sp_size": "sequence"}.items():
        told = os.environ.get(f"PARALLELISM_CONFIG_{name.upper()}", 1) if is_launched else 1
        if (size := int(getattr(config, name, None) or told)) > 1:
            raise ValueError(
                f"parallelism_config has {name}={size}, and no model here trains with {kind} parallelism, which gives "
                "each process a part of a clip: leave it out. FSDP2 shards the weights."
            )
    with_fsdp = ("lora_rank", "linear_probe", "save_on_each_node")
    refused = {"FSDP": with_fsdp, "DeepSpeed": (*with_fsdp, "ema_decay")}
    for engine, names in refused.items():
        for name in names if _is_asked_for(engine.lower(), values) else ():
            if values.get(name):
                raise ValueError(f"{name} needs whole weights on every process: leave it out with {engine}.")


def prepare_sharding(arguments: Any) -> None:
    """Makes DeepSpeed gather its weights to save them. The arguments have passed their own checks, and [`check_plan`]
    here."""
    check_plan(vars(arguments))
    if arguments.deepspeed_plugin is not None:
        zero = arguments.deepspeed_plugin.hf_ds_config.config.get("zero_optimization", {})
        if zero.get("stage") == 3:
            # Without it the weights of ZeRO-3 never leave their shards.
            zero["stage3_gather_16bit_weights_on_model_save"] = True


class OwnBatches:
    """The batches of one process in an evaluation, without the items that fill up the last ones, which would count
    twice in the loss. A process for which none is left keeps one item, because all take part in a step; what is
    gathered of it is cut off.

    Args:
        shard: the batches that Accelerate gives this process.
    """

    def __init__(self, shard: BatchSamplerShard):
        self.shard = shard

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shard, name)

    def __len__(self) -> int:
        return len(self.shard)

    def __iter__(self) -> Iterator[list[Any]]:
        num_items, num_processes = len(self.shard.batch_sampler.sampler), self.shard.num_processes
        size = self.shard.batch_size // (num_processes if self.shard.split_batches else 1)
        for step, batch in enumerate(self.shard):
            first = (step * num_processes + self.shard.process_index) * size
            yield batch[: max(num_items - first, 1)]


def choose_blocks(trainer: Any) -> None:
    """Has FSDP shard each block that a model must not split, if the user names no others.

    Accelerate takes these from the model as well, but fails on a block of a part that the model leaves out.
    """
    model, plugin = trainer.model, getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.transformer_cls_names_to_wrap is None:
        present = {type(module).__name__ for module in model.modules()}
        plugin.transformer_cls_names_to_wrap = sorted(present & set(getattr(model, "_no_split_modules", None) or ()))


def _is_asked_for(engine: str, values: Mapping[str, Any]) -> bool:
    """Whether the arguments, or `accelerate launch`, ask for "fsdp" or "deepspeed"."""
    return bool(values.get(engine)) and str(values[engine]).lower() != "false" or _is_launched(engine.upper())


def _is_launched(name: str) -> bool:
    """Whether `accelerate launch` asks for an engine, by a variable."""
    return os.environ.get(f"ACCELERATE_USE_{name}", "false").lower() == "true"
