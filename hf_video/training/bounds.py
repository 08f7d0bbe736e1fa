"""The values that settings of `transformers.TrainingArguments` may have, which checks few of them before training."""

import inspect
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from transformers import Trainer, TrainingArguments, get_scheduler

_AT_LEAST_1 = ("a whole number of at least 1", lambda value: value >= 1)
_COUNT = ("a whole number of at least 0", lambda value: value >= 0)
_SEED = ("a whole number from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)
_POSITIVE = ("a number above 0", lambda value: 0 < value < math.inf)
_AMOUNT = ("a number of at least 0", lambda value: 0 <= value < math.inf)
_BELOW_1 = ("a number from 0 to below 1", lambda value: 0 <= value < 1)
_FINITE = ("a number", math.isfinite)

# By name; None, where a field may be that, is always allowed.
_BOUNDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ("per_device_train_batch_size", "per_device_eval_batch_size", "num_return_sequences"), _AT_LEAST_1
    ),
    **dict.fromkeys(("gradient_accumulation_steps", "eval_accumulation_steps"), _AT_LEAST_1),
    "torch_empty_cache_steps": _AT_LEAST_1,
    **dict.fromkeys(("dataloader_prefetch_factor", "ddp_timeout", "ddp_bucket_cap_mb"), _AT_LEAST_1),
    **dict.fromkeys(("save_total_limit", "dataloader_num_workers", "lora_rank", "freeze_layers"), _COUNT),
    **dict.fromkeys(("seed", "data_seed"), _SEED),
    **dict.fromkeys(("num_train_epochs", "logging_steps", "eval_steps", "save_steps"), _POSITIVE),
    **dict.fromkeys(("base_learning_rate", "lora_alpha", "layer_decay", "distillation_temperature"), _POSITIVE),
    **dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "warmup_epochs"), _AMOUNT),
    **dict.fromkeys(("adam_epsilon", "eval_delay", "neftune_noise_alpha"), _AMOUNT),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor"), _BELOW_1),
    "max_steps": ("-1 or a whole number of at least 1", lambda value: value == -1 or value >= 1),
    "ema_decay": ("a number between 0 and 1", lambda value: 0 < value < 1),
    "distillation_weight": ("a number above 0, up to 1", lambda value: 0 < value <= 1),
    # Of answers:
    **dict.fromkeys(("max_length", "max_target_length", "max_new_tokens", "num_beams"), _AT_LEAST_1),
    "min_new_tokens": _COUNT,
    "length_penalty": _FINITE,
    "repetition_penalty": _POSITIVE,
}


def check_bounds(arguments: TrainingArguments) -> None:
    """Refuses values with which training fails or means nothing.

    Raises:
        ValueError: names the first of them and what is expected.
    """
    for name, (expected, is_allowed) in _BOUNDS.items():
        value = getattr(arguments, name, None)
        # Configurations of DeepSpeed may leave a number to it, as "auto".
        if isinstance(value, int | float) and not is_allowed(value):
            raise ValueError(f"{name} is {value}; {expected} is expected.")
    if arguments.dataloader_persistent_workers and not arguments.dataloader_num_workers:
        raise ValueError("dataloader_persistent_workers is on, which has no effect without workers: add num_workers.")


def check_optimization(arguments: TrainingArguments, model: Any) -> None:
    """Makes an optimizer of one parameter and its schedule as training will make them, for their errors.

    Raises:
        ValueError: `optim`, `lr_scheduler_type` or an option of theirs is wrong; names it.
        ImportError: the optimizer needs a package that is not installed.
    """
    try:
        optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"optim={_plain(arguments.optim)} cannot be used: {error}") from error
    except RuntimeError as error:
        raise ImportError(f"optim={_plain(arguments.optim)} cannot be used: {error}") from error
    if not inspect.isclass(optimizer_class) or {"params", "model", "optimizer_dict"} & set(options):
        return
    parameter = torch.nn.Parameter(torch.zeros(1, device=arguments.device))
    try:
        optimizer = cast(Any, optimizer_class)([parameter], **options)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"optim={_plain(arguments.optim)} cannot be used: {error}") from error
    steps = arguments.max_steps if arguments.max_steps > 0 else 100
    try:
        get_scheduler(
            arguments.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=arguments.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=arguments.lr_scheduler_kwargs,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"lr_scheduler_type={_plain(arguments.lr_scheduler_type)} cannot be used: {error} Its options are "
            "lr_scheduler_kwargs."
        ) from error


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
