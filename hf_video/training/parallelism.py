"""Training on several processes: weights that FSDP or DeepSpeed shard, and which process measures which items.

Nothing here imports PyTorch, so that settings are refused early.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate.data_loader import BatchSamplerShard

# What needs whole weights on every process, by the engine that has none.
_REFUSED = {
    "fsdp": ("lora_rank", "linear_probe"),
    "deepspeed": ("lora_rank", "linear_probe", "ema_decay"),
}


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


def check_plan(values: Mapping[str, Any]) -> None:
    """Refuses (`ValueError`) arguments, by their names, that need whole weights on every process if an engine shards
    them. Arguments or `accelerate launch`, by a variable, ask for an engine."""
    for engine, names in _REFUSED.items():
        is_launched = os.environ.get(f"ACCELERATE_USE_{engine.upper()}", "false").lower() == "true"
        for name in names if is_launched or values.get(engine) else ():
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


def choose_blocks(trainer: Any) -> None:
    """Has FSDP shard each block that a model must not split, if the user names no others.

    Accelerate takes these from the model as well, but fails on a block of a part that the model leaves out.
    """
    model, plugin = trainer.model, getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.transformer_cls_names_to_wrap is None:
        present = {type(module).__name__ for module in model.modules()}
        plugin.transformer_cls_names_to_wrap = sorted(present & set(getattr(model, "_no_split_modules", None) or ()))


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
