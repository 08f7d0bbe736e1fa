"""A `transformers.Trainer` for data sets of clips."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import EvalPrediction, Trainer
from transformers.trainer_utils import EvalLoopOutput
from transformers.utils import ModelOutput

from hf_video.data import collate_clips
from hf_video.hub.trainer import PublishingMixin

from .arguments import NO_WEIGHT_DECAY, VideoTrainingArguments
from .callbacks import SetEpochCallback
from .ema import EMACallback
from .evaluation import average_views
from .losses import classification_loss
from .metrics import compute_metrics as video_metrics
from .optimization import parameter_groups, parameter_settings
from .record import RecordFactsCallback


class VideoTrainer(PublishingMixin, Trainer):
    """`transformers.Trainer` for video classification: its collator, loss and metrics, layer decay, and an average of
    the weights, as `VideoTrainingArguments` say. It records the facts of the training for the model card, and its
    `push_to_hub` publishes with [`hf_video.hub.publish`].

    Data sets may have several views a video: in training each is a clip of its own, in evaluation the loss is the mean
    over views and predictions are `average_views`. Float labels of a single-label model are soft targets, such as
    those of `MixingCollator`. `label_smoothing_factor` smooths class ids in training alone, so that evaluation losses
    compare.

    A plain `Trainer` with `data_collator=collate_clips` and `compute_metrics=compute_metrics` trains the same model on
    one process, as long as its data sets have one view a video. Pass the video processor as `processing_class`: it is
    saved with every checkpoint.

    Args:
        *args, **kwargs: see `transformers.Trainer`.
        data_collator: defaults to `collate_clips`.
        compute_metrics: defaults to top-1 and top-5 accuracy; None for the loss alone.

    Raises:
        ValueError: `ema_decay` is out of range, or asked for with sharded weights.
    """

    optimizer: torch.optim.Optimizer | None

    def __init__(
        self,
        *args: Any,
        data_collator: Callable = collate_clips,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = video_metrics,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("compute_loss_func", self._classification_loss)
        super().__init__(*args, data_collator=data_collator, compute_metrics=compute_metrics, **kwargs)
        self.add_callback(SetEpochCallback())
        self.add_callback(RecordFactsCallback())
        self.ema: EMACallback | None = None
        ema_decay = getattr(self.args, "ema_decay", None)
        if ema_decay is not None:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise ValueError(
                    "ema_decay needs whole weights on every process: leave it out with FSDP or DeepSpeed."
                )
            self.ema = EMACallback(ema_decay)
            self.add_callback(self.ema)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        labels = inputs.get("labels")
        if labels is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        num_views = len(inputs["pixel_values"]) // len(labels)
        inputs = {**inputs, "labels": labels.repeat_interleave(num_views, dim=0)}
        if num_items_in_batch is not None:
            num_items_in_batch = num_items_in_batch * num_views
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if num_views > 1 and not self.model.training:
            outputs["logits"] = average_views(outputs["logits"], num_views, self.model.config.problem_type)
        return (loss, outputs) if return_outputs else loss

    def _classification_loss(
        self, outputs: ModelOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        return classification_loss(
            outputs["logits"],
            labels,
            self.model.config.problem_type or "single_label_classification",
            label_smoothing=self.args.label_smoothing_factor if self.model.training else 0.0,
            num_label_values=num_items_in_batch,
        )

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return [name for name, setting in self._parameter_settings(model).items() if setting.weight_decay]

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None and getattr(self.args, "layer_decay", 1.0) != 1.0:
            model = self.model if model is None else model
            optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args, model)
            if {"params", "model", "optimizer_dict"} & set(options) or not isinstance(optimizer_class, type):
                raise ValueError(f"optim={self.args.optim} groups parameters its own way; use layer_decay=1 with it.")
            groups = parameter_groups(model, self._parameter_settings(model), self.args.learning_rate)
            self.optimizer = optimizer_class(groups, **options)
        return super().create_optimizer(model)

    def _parameter_settings(self, model: nn.Module) -> dict[str, Any]:
        args = self.args if isinstance(self.args, VideoTrainingArguments) else None
        return parameter_settings(
            model,
            weight_decay=self.args.weight_decay,
            layer_decay=args.layer_decay if args else 1.0,
            layer_decay_only=args.layer_decay_only if args else (),
            no_weight_decay=args.no_weight_decay if args else NO_WEIGHT_DECAY,
        )

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        if self.ema is None:
            return super().evaluation_loop(*args, **kwargs)
        with self.ema.applied_to(self.model):
            return super().evaluation_loop(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        # Inside a checkpoint the weights stay those being trained. Its `trainer_state.json`, the mark of a complete
        # checkpoint, is written after this.
        if self.ema is not None and self.ema.average and output_dir is not None and self.args.should_save:
            self.ema.save(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.ema is not None:
            self.ema.load(resume_from_checkpoint)
