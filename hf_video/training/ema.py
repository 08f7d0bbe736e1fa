"""An exponential moving average of a model's weights."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

EMA_FILE = "ema.safetensors"


class EMACallback(TrainerCallback):
    """Averages the trainable weights over the steps of a training run, in float32.

    In every step the old average is multiplied by min(`decay`, (1 + steps) / (10 + steps)). The second term soon
    forgets the first weights. `VideoTrainer` saves the average in every checkpoint, resumes it and evaluates with it.
    At the end of training the average becomes the weights of the model.

    Args:
        decay: between 0 and 1, such as 0.9999 for runs of many thousand steps, 0.99 for a thousand steps.

    Raises:
        ValueError: `decay` is not between 0 and 1.
    """

    def __init__(self, decay: float):
        if not 0 < decay < 1:
            raise ValueError(f"ema_decay is {decay}; a number between 0 and 1 is expected, such as 0.999.")
        self.decay = decay
        self.average: dict[str, torch.Tensor] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        resumed = self.average if state.global_step > 0 else {}
        self.average = {
            name: resumed.get(name, weight).detach().to(weight.device, torch.float32, copy=True)
            for name, weight in _weights(kwargs["model"])
        }

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        with torch.no_grad():
            for name, weight in _weights(kwargs["model"]):
                self.average[name].lerp_(weight.detach().float(), 1 - decay)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self.load(state.best_model_checkpoint)
        with torch.no_grad():
            for name, weight in _weights(kwargs["model"]):
                weight.copy_(self.average[name])
        self.average = {}

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Puts the average in place of the weights of `model` within the context. Before and after training it changes
        nothing."""
        weights = [(weight, weight.detach().clone()) for name, weight in _weights(model) if name in self.average]
        with torch.no_grad():
            for name, weight in _weights(model):
                if name in self.average:
                    weight.copy_(self.average[name])
            try:
                yield
            finally:
                for weight, trained in weights:
                    weight.copy_(trained)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the average to `ema.safetensors` in `folder`."""
        save_file({name: tensor.contiguous() for name, tensor in self.average.items()}, Path(folder, EMA_FILE))

    def load(self, folder: str | os.PathLike) -> None:
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: there is no average in `folder`.
        """
        file = Path(folder, EMA_FILE)
        if not file.exists():
            raise FileNotFoundError(
                f"{folder} has no {EMA_FILE}: it was saved without ema_decay. Leave ema_decay out, or start afresh."
            )
        device = next(iter(self.average.values())).device if self.average else torch.device("cpu")
        self.average = {name: tensor.to(device) for name, tensor in load_file(file).items()}


def _weights(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
