"""Trainer callbacks: fresh clips every epoch, and one readable line for each evaluation."""

from typing import Any

from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class SetEpochCallback(TrainerCallback):
    """Tells the training set which epoch it is in, so that its random clips differ between epochs.

    Accelerate's data loaders do this on one process but not when they shard batches over several.
    """

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        dataset = getattr(kwargs.get("train_dataloader"), "dataset", None)
        if dataset is not None and hasattr(dataset, "set_epoch"):
            dataset.set_epoch(int(state.epoch or 0))


class EpochLineCallback(ProgressCallback):
    """The progress bar of Transformers, with one line for each evaluation in place of dictionaries of logs."""

    def __init__(self) -> None:
        super().__init__()
        self.train_loss: float | None = None

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = logs or {}
        self.train_loss = logs.get("loss", self.train_loss)
        if "eval_loss" not in logs or not state.is_world_process_zero:
            return
        line = f"epoch {logs['epoch']:g}/{state.num_train_epochs:g}"
        if self.train_loss is not None:
            line += f"  loss {self.train_loss:.3f}"
        line += f"  validation loss {logs['eval_loss']:.3f}"
        for name, title, form in (
            ("top1_accuracy", "top-1", ".1%"),
            ("mean_average_precision", "mAP", ".1%"),
            ("mae", "MAE", ".3f"),
        ):
            if f"eval_{name}" in logs:
                line += f"  {title} {logs[f'eval_{name}']:{form}}"
        if self.training_bar is not None:
            self.training_bar.write(line)
