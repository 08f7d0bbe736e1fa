"""The trainer of video classifiers."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, Sampler
from transformers import EvalPrediction, PreTrainedModel, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput, has_length
from transformers.utils import ModelOutput

from hf_video.data import VideoDataset, VideoStream, collate_clips
from hf_video.data.clip_duration import median_frame_interval
from hf_video.data.dataset import task_of
from hf_video.data.mixing import SAMPLE_KEY
from hf_video.inference.prediction import problem_type_of
from hf_video.loading.class_names import class_names_of
from hf_video.loading.classifiers import drop_query_axis
from hf_video.metrics import compute_metrics as video_metrics
from hf_video.metrics import regression_metrics
from hf_video.processing import VideoClipProcessor

from .adaptation import NormalizedLinear
from .arguments import VideoTrainingArguments
from .base_trainer import BaseTrainer
from .callbacks import ThroughputCallback
from .class_balance import ClassSampler, make_class_weights
from .losses import CrossEntropy, Distillation, make_distillation, make_loss
from .optimization import EMACallback, parameter_groups, settings_by_arguments


class VideoTrainer(BaseTrainer):
    """`transformers.Trainer` for video classification and regression.

    It has a collator, losses and metrics for videos, and supports the settings of `VideoTrainingArguments`: layer
    decay, an average of the weights, a teacher, weights and draws of classes. It records the facts of the training for
    the model card, and its `push_to_hub` publishes with [`hf_video.hub.publish`].

    Float labels of a single-label model are soft targets, such as those of `MixingCollator`. In training alone,
    `label_smoothing_factor`, `loss` and `class_weights` have an effect, so that evaluation losses compare. A
    `compute_loss_func` takes the place of all three, also in evaluation.

    A plain `Trainer` with `data_collator=collate_clips` and `compute_metrics=compute_metrics` trains the same model on
    one process, a regression with `compute_metrics=regression_metrics`; with a `MixingCollator` it needs
    `compute_loss_func=CrossEntropy()`. Pass the video processor as `processing_class`: it is saved with every
    checkpoint.

    Args:
        model, args, *more, **kwargs: see `transformers.Trainer`.
        data_collator: defaults to that of the task of the data sets, or to `collate_clips`.
        compute_metrics: defaults to the metrics of `hf_video.metrics.METRICS` for the `problem_type` of the model;
            None for the loss alone.
        distillation: a teacher and how to learn from it; defaults to the one that the arguments describe, if any.
        class_weights: (num_classes,) float, see `CrossEntropy`; defaults to those that the arguments describe,
            if any.

    Raises:
        OSError: there is no such teacher, or no such file of weights.
        ValueError: the arguments do not suit the `problem_type` of the model, or name a metric that the default
            `compute_metrics` does not measure. Or the teacher does not fit, classes cannot be weighted, see
            `make_class_weights`, or the training set is no `VideoDataset`, whose labels a `sampler` needs.
    """

    optimizer: torch.optim.Optimizer | None
    _signature_columns: list[str]
    _training_loss: Callable[..., torch.Tensor] | None = None

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable | None = None,
        *more: Any,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = video_metrics,
        distillation: Distillation | None = None,
        class_weights: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("compute_loss_func", self._classification_loss)
        self._measures_own_loss = kwargs["compute_loss_func"] == self._classification_loss
        super().__init__(model, args, data_collator, *more, compute_metrics=compute_metrics, **kwargs)
        if data_collator is None:
            task = task_of(self.train_dataset) or task_of(self.eval_dataset)
            self.data_collator = collate_clips if task is None else task.collate
        drop_query_axis(self.model)
        problem_type = problem_type_of(self.model.config)
        if compute_metrics is video_metrics and problem_type == "regression":
            self.compute_metrics = regression_metrics
        if isinstance(self.args, VideoTrainingArguments):
            self.args.check_problem_type(problem_type)
            eval_sets = list(self.eval_dataset) if isinstance(self.eval_dataset, dict) else []
            loss_alone = compute_metrics is None or self.args.prediction_loss_only
            if compute_metrics is video_metrics:
                self.args.check_metric(problem_type, self.model.config.num_labels, eval_sets)
            self.args.choose_metric(problem_type, eval_sets, loss_alone)
        self._given_weights = class_weights
        if self.train_dataset is not None:
            sampler = getattr(self.args, "sampler", "random")
            if sampler != "random" and not isinstance(self.train_dataset, VideoDataset):
                raise ValueError(f"sampler={sampler} needs all labels: give a VideoDataset as train_dataset.")
            self._make_training_loss()  # for its errors
        self.ema = EMACallback()
        self.add_callback(self.ema)
        self.throughput = ThroughputCallback()
        self.add_callback(self.throughput)
        self.distillation = distillation or make_distillation(self.args, self.model, self.processing_class)

    def _make_training_loss(self) -> Callable[..., torch.Tensor]:
        """The loss that the arguments describe now."""
        weights = self._given_weights
        if weights is None:
            rows = self.train_dataset.rows if isinstance(self.train_dataset, VideoDataset) else None
            chosen = getattr(self.args, "class_weights", None)
            weights = make_class_weights(chosen, class_names_of(self.model.config), rows)
        return make_loss(self.args, problem_type_of(self.model.config), weights)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        return drop_query_axis(super().call_model_init(trial))

    def _update_auto_batch_size(self, batch_size: int) -> None:
        super()._update_auto_batch_size(batch_size)
        before = self.args.learning_rate
        self._scale_learning_rate()
        if self.args.learning_rate != before:
            self.optimizer = None  # it has the learning rate of another batch

    def _scale_learning_rate(self) -> None:
        if isinstance(self.args, VideoTrainingArguments):
            self.args.scale_learning_rate(self._train_batch_size)

    def is_last_batch_dropped(self) -> bool:
        """Whether it is a single video and the head a probe: batch normalisation fails, since it has no variance."""
        is_probe = isinstance(getattr(self.model, "classifier", None), NormalizedLinear)
        return is_probe and has_length(self.train_dataset) and len(self.train_dataset) % self._train_batch_size == 1

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers.Trainer`. Before the first step, `frame_interval` of the processor is measured on a
        training set that is a `VideoDataset`, or beside a `VideoStream` on such an evaluation set.

        Raises:
            ValueError: several processes train, and a step did not use all parameters that are trained; or see
                [`BaseTrainer.train`].
        """
        measured = self.eval_dataset if isinstance(self.train_dataset, VideoStream) else self.train_dataset
        if isinstance(measured, VideoDataset) and isinstance(self.processing_class, VideoClipProcessor):
            self.processing_class.frame_interval = median_frame_interval(measured)
        self._training_loss = None  # a trial of a search has its own
        try:
            return super().train(*args, **kwargs)
        except RuntimeError as error:
            if "find_unused_parameters=True" not in str(error):
                raise
            raise ValueError(
                "A step did not use all parameters that are trained, so the processes cannot average their "
                "gradients: set ddp_find_unused_parameters=true, or freeze these parameters."
            ) from error

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if self.distillation is None or not self.model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        pixel_values, labels = inputs[self.model.main_input_name], inputs["labels"]
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        # The loss of the labels is divided by the number of labels in the whole step. The teacher's loss is a mean
        # over the batch, so it is scaled to match.
        share: torch.Tensor | float = 1.0
        if num_items_in_batch is not None:
            num_processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            share = labels.numel() / num_items_in_batch * num_processes
        weight = self.distillation.weight
        taught = self.distillation.loss(pixel_values, outputs["logits"])
        loss = (1 - weight) * loss + weight * share * taught
        return (loss, outputs) if return_outputs else loss

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Batches have `pixel_values`; the model may have another name for them."""
        prepared = super()._prepare_inputs(inputs)
        name = getattr(self.model, "main_input_name", "pixel_values")
        return {name if key == "pixel_values" else key: value for key, value in prepared.items()}

    def _classification_loss(
        self, outputs: ModelOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        if not self.model.training:
            return CrossEntropy(problem_type_of(self.model.config))(outputs, labels, num_items_in_batch)
        self._training_loss = self._training_loss or self._make_training_loss()
        return self._training_loss(outputs, labels, num_items_in_batch)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        sampler = getattr(self.args, "sampler", "random")
        if sampler == "random":
            return super()._get_train_sampler(train_dataset)
        return ClassSampler(self.train_dataset, sampler, self.args.data_seed)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        # Collators need both, also for a model that has no such argument.
        self._signature_columns = [*{*self._signature_columns, "pixel_values", SAMPLE_KEY}]

    def get_batch_samples(self, epoch_iterator: Iterator, *args: Any) -> Any:
        return super().get_batch_samples(self.throughput.watch(epoch_iterator), *args)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self.throughput.collect(self.args)
        super().log(logs, start_time)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        self._scale_learning_rate()
        if self.optimizer is None and getattr(self.args, "layer_decay", 1.0) != 1.0:
            model = self.model if model is None else model
            optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args, model)
            if {"params", "model", "optimizer_dict"} & set(options) or not isinstance(optimizer_class, type):
                raise ValueError(f"optim={self.args.optim} groups parameters its own way; use layer_decay=1 with it.")
            groups = parameter_groups(model, settings_by_arguments(model, self.args), self.args.learning_rate)
            self.optimizer = optimizer_class(groups, **options)
        return super().create_optimizer(model)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        with self.ema.applied_to(self.model):
            output = super().evaluation_loop(*args, **kwargs)
            scores, labels = output.predictions, output.label_ids
            if self._measures_own_loss and isinstance(scores, np.ndarray) and isinstance(labels, np.ndarray):
                # The base class fills up the last batch with videos, which then count twice in its average.
                loss = self._classification_loss(
                    ModelOutput(logits=torch.from_numpy(scores)), torch.from_numpy(labels)
                )
                output.metrics[f"{kwargs.get('metric_key_prefix', 'eval')}_loss"] = loss.item()
            return output

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        # The model in a checkpoint has the weights that are being trained; the average has a file of its own.
        if self.ema.average and output_dir is not None and self.args.should_save:
            self.ema.save(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if getattr(self.args, "ema_decay", None) is not None:
            self.ema.load(resume_from_checkpoint)
