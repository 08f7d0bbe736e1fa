"""How parameters learn: their learning rate, weight decay and schedule, and the moving average of weights."""

import math
import os
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .settings import NO_WEIGHT_DECAY

EMA_FILE = "ema.safetensors"


class ParameterSetting(NamedTuple):
    """How one parameter is optimised: factor of its learning rate, and its weight decay."""

    lr_scale: float
    weight_decay: float


def layer_groups_of(model: Any, setting: str) -> list[nn.Module]:
    """The modules of a model from the input to the output. A `ValueError` names a setting that needs them."""
    if not hasattr(model, "layer_groups"):
        raise ValueError(f"{type(model).__name__} has no `layer_groups`, so {setting} is impossible: leave it out.")
    return model.layer_groups()


def parameter_settings(
    model: nn.Module,
    *,
    weight_decay: float = 0.0,
    layer_decay: float = 1.0,
    layer_decay_only: Collection[str] = (),
    no_weight_decay: Collection[str] = (),
    full_weight_decay: Collection[str] = (),
) -> dict[str, ParameterSetting]:
    """The setting of every trainable parameter by name.

    The learning rate falls by the factor `layer_decay` with every layer group from the head, at 1, down to the
    embeddings, as in BEiT (https://arxiv.org/abs/2106.08254) and the fine-tuning of VideoMAE (`optim_factory.py`).
    Biases, norms and other one-dimensional parameters have no weight decay.

    Args:
        model: if `layer_decay` is not 1, it needs a method `layer_groups` that lists its modules from the input to the
            output.
        weight_decay: weight decay of the parameters that have one.
        layer_decay: factor from the learning rate of one group to that of the group before it.
        layer_decay_only: parts of the names of the parameters that layer decay is for, such as "patch_embeddings"; all
            if it is empty.
        no_weight_decay: parts of the names of parameters without weight decay, such as "cls_token" or "A_log".
        full_weight_decay: first parts of the names of parameters with weight decay, of any shape.

    Raises:
        ValueError: the model has no `layer_groups`, or no parameter has one of the name parts. Those of
            `NO_WEIGHT_DECAY` may be missing, since no model has them all.
    """
    groups = [] if layer_decay == 1 else layer_groups_of(model, f"layer_decay={layer_decay}")
    depths = {id(parameter): depth for depth, group in enumerate(groups) for parameter in group.parameters()}
    known_parts = {part for name, _ in model.named_parameters() for part in name.split(".")}
    named = {*layer_decay_only, *full_weight_decay, *set(no_weight_decay).difference(NO_WEIGHT_DECAY)}
    if unknown := sorted(named - known_parts):
        raise ValueError(f"No parameter of {type(model).__name__} has {unknown} in its name.")
    settings = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        parts = set(name.split("."))
        is_decayed = not layer_decay_only or not parts.isdisjoint(layer_decay_only)
        depth = depths.get(id(parameter), len(groups)) if is_decayed else len(groups)
        # DeepSpeed empties a parameter that is in shards, and keeps its shape beside it.
        shape = getattr(parameter, "ds_shape", parameter.shape)
        has_decay = len(shape) > 1 and "bias" not in parts and parts.isdisjoint(no_weight_decay)
        has_decay |= name.partition(".")[0] in full_weight_decay
        settings[name] = ParameterSetting(layer_decay ** (len(groups) - depth), weight_decay if has_decay else 0.0)
    return settings


def settings_by_arguments(model: nn.Module, args: TrainingArguments) -> dict[str, ParameterSetting]:
    """The setting of every trainable parameter by name, as training arguments say. Errors are those of
    [`parameter_settings`]."""
    return parameter_settings(
        model,
        weight_decay=args.weight_decay,
        layer_decay=getattr(args, "layer_decay", 1.0),
        layer_decay_only=getattr(args, "layer_decay_only", ()),
        no_weight_decay=getattr(args, "no_weight_decay", NO_WEIGHT_DECAY),
        full_weight_decay=getattr(args, "full_weight_decay", ()),
    )


def parameter_groups(
    model: nn.Module, settings: dict[str, ParameterSetting], learning_rate: float
) -> list[dict[str, Any]]:
    """The parameter groups (`params`, `lr`, `weight_decay`) of an optimizer: one for each setting of
    `parameter_settings`, the highest learning rate first. The learning rate is that of the head."""
    parameters = dict(model.named_parameters())
    members: dict[ParameterSetting, list[nn.Parameter]] = {}
    for name, setting in settings.items():
        members.setdefault(setting, []).append(parameters[name])
    return [
        {"params": members[setting], "lr": learning_rate * setting.lr_scale, "weight_decay": setting.weight_decay}
        for setting in sorted(members, reverse=True)
    ]


def cosine_by_epoch(
    optimizer: Optimizer,
    *,
    num_epochs: float,
    steps_per_epoch: int,
    batches_per_step: int,
    warmup_batches: int,
    warmup_lr_rate: float = 0.0,
    min_lr_rate: float = 0.0,
) -> LambdaLR:
    """The schedule of MA-LMM: a linear warm-up in the first epoch, then a cosine that falls once an epoch.

    The warm-up counts batches, and the first epoch ends it, even before it reaches the peak. A step of several batches
    has the learning rate of its last one. `warmup_lr_rate`, for the first batch, and `min_lr_rate`, for the end of the
    cosine, are shares of the peak. Source: `LinearWarmupCosineLRScheduler` in `lavis/common/optims.py` of LAVIS.
    """

    def factor(step: int) -> float:
        epoch = step // steps_per_epoch
        if epoch == 0:
            batch = (step + 1) * batches_per_step - 1
            return min(1.0, warmup_lr_rate + (1 - warmup_lr_rate) * batch / max(warmup_batches, 1))
        return min_lr_rate + (1 - min_lr_rate) * (1 + math.cos(math.pi * epoch / num_epochs)) / 2

    return LambdaLR(optimizer, factor)


def steps_by_epoch(
    optimizer: Optimizer,
    *,
    drop_epochs: Sequence[float],
    steps_per_epoch: int,
    warmup_steps: int = 0,
    warmup_lr_rate: float = 0.0,
) -> LambdaLR:
    """The schedule of STMixer: a linear warm-up from a share of the learning rate, which falls to a tenth after some
    epochs."""
    drops = sorted(epoch * steps_per_epoch for epoch in drop_epochs)

    def factor(step: int) -> float:
        rise = 1.0 if step >= warmup_steps else warmup_lr_rate + (1 - warmup_lr_rate) * step / warmup_steps
        return rise * 0.1 ** bisect_right(drops, step)

    return LambdaLR(optimizer, factor)


class EMACallback(TrainerCallback):
    """Averages the trainable weights over the steps of a training run, in float32, if the arguments have `ema_decay`,
    such as 0.9999 for runs of many thousand steps or 0.99 for a thousand. In every step the old average is multiplied
    by min(`ema_decay`, (1 + steps) / (10 + steps)), whose second term soon forgets the first weights. `VideoTrainer`
    saves the average in every checkpoint, resumes it and evaluates with it. At the end of training the average becomes
    the weights of the model."""

    def __init__(self) -> None:
        self.average: dict[str, torch.Tensor] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if getattr(args, "ema_decay", None) is None:
            self.average = {}
            return
        resumed = self.average if state.global_step > 0 else {}
        self.average = {
            name: _sharded_as(weight, resumed.get(name, weight)).detach().to(weight.device, torch.float32, copy=True)
            for name, weight in _weights(kwargs["model"])
        }

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self.average:
            return
        decay = min(args.ema_decay, (1 + state.global_step) / (10 + state.global_step))
        with torch.no_grad():
            for name, weight in _weights(kwargs["model"]):
                self.average[name].lerp_(weight.detach().float(), 1 - decay)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self.average:
            return
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self.load(state.best_model_checkpoint)
        with torch.no_grad():
            for name, weight in _weights(kwargs["model"]):
                weight.copy_(_sharded_as(weight, self.average[name]))
        self.average = {}

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Puts the average in place of the weights of `model` in the block. Outside of training it does nothing."""
        _drop_gathered(model)
        weights = [(name, weight, weight.detach().clone()) for name, weight in _weights(model) if name in self.average]
        with torch.no_grad():
            for name, weight, _ in weights:
                weight.copy_(self.average[name])
            try:
                yield
            finally:
                _drop_gathered(model)
                for _, weight, trained in weights:
                    weight.copy_(trained)

    def save(self, folder: str | os.PathLike, is_first: bool = True) -> None:
        """Writes the average to `ema.safetensors` in `folder`, on the first process; all gather sharded weights."""
        tensors: dict[str, Any] = self.average
        whole = {
            name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).contiguous()
            for name, tensor in tensors.items()
        }
        if is_first:
            save_file(whole, Path(folder, EMA_FILE))

    def load(self, folder: str | os.PathLike) -> None:
        """Reads what `save` wrote."""
        device = next(iter(self.average.values())).device if self.average else torch.device("cpu")
        self.average = {name: tensor.to(device) for name, tensor in load_file(Path(folder, EMA_FILE)).items()}


def _sharded_as(weight: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that all processes have, in the shards of a weight of FSDP2."""
    if not hasattr(weight, "full_tensor") or hasattr(tensor, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(weight.device), weight.device_mesh, weight.placements)


def _drop_gathered(model: nn.Module) -> None:
    """Has FSDP2 gather its shards anew, which it need not have let go of after a forward pass."""
    modules: Iterator[Any] = model.modules()
    for module in modules:
        if hasattr(module, "reshard"):
            module.reshard()


def _weights(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
