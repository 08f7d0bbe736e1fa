"""Training an action detector on persons at key frames: the task `detection`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from hf_video.data import BoxTask, VideoDataset
from hf_video.data.boxes import action_names, load_detections
from hf_video.evaluation.detections import measure_persons
from hf_video.loading.heads import load_detector

from .arguments import DetectionTrainingArguments
from .data import require_training, warn_of_repetitions
from .optimization import steps_by_epoch
from .report import Measured, table
from .run import RunPlan
from .task import Task, TaskData
from .trainer import BaseTrainer

# Settings that `load_detector` takes by their names.
OF_MODEL = (
    *("num_frames", "frame_sampling_rate", "image_size", "num_queries", "drop_path_rate", "action_weight"),
    *("original_loss_means", "detector_config"),
)
# The losses of the last decoder layer, which are logged.
LOSSES = ("loss_ce", "loss_bbox", "loss_giou", "loss_bce")
# Where a clip has fewer persons than another one. It is no coordinate, and no score.
NO_PERSON = -100.0


class ActionDetectionTrainer(BaseTrainer):
    """`transformers.Trainer` for a detector such as [`STMixerForActionDetection`] and a [`VideoDataset`] of a
    [`BoxTask`].

    Losses are divided by the persons and clips of the whole step, or, with `original_loss_means` in the configuration
    of the model, by those of a batch, as in STMixer's own training. The losses of the last decoder layer are logged.

    An evaluation measures `mean_ap`, see [`frame_mean_ap`][hf_video.evaluation.frame_mean_ap]. `predict` gives the
    persons of each clip as `predictions`, (num_clips, num_persons, 4 + num_labels) float32: their boxes as shares of
    width and height, and the scores of their actions. Where a clip has fewer persons, the last rows are -100.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_is_scaled_for_ga = not self.model.config.original_loss_means

    def default_collator(self) -> Any:
        return BoxTask(self.processing_class).collate

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        labels = [label for batch in batches for label in batch["labels"]]
        counts = torch.tensor([sum(len(label["boxes"]) for label in labels), len(labels)], device=device)
        # The mean of the processes' gradients is that of the whole step if each loss is divided by the mean counts.
        return batches, self.accelerator.reduce(counts.float(), "mean")

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        num_targets, num_clips = (None, None) if num_items_in_batch is None else num_items_in_batch.tolist()
        outputs = model(**inputs, num_targets=num_targets, num_clips=num_clips)
        share = 1 if self.loss_is_scaled_for_ga else 1 / self.current_gradient_accumulation_steps
        self.note_losses({name: outputs.loss_dict[name] for name in LOSSES}, share)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def prediction_step(self, model: nn.Module, inputs: Any, prediction_loss_only: bool, *_: Any, **__: Any) -> Any:
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
        if prediction_loss_only:
            return outputs.loss, None, None
        persons = self.processing_class.post_process_action_detection(
            outputs, original_sizes=inputs["original_sizes"], original=True
        )
        rows = [torch.cat([each["boxes"], each["action_scores"]], dim=-1) for each in persons]
        return outputs.loss, pad_sequence(rows, batch_first=True, padding_value=NO_PERSON), None

    def figures_of(self, predictions: Any, dataset: Any) -> dict[str, float]:
        return {} if predictions is None else {"mean_ap": measure_predictions(predictions, dataset.rows)["mean_ap"]}

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        drops = getattr(self.args, "lr_drop_epochs", [])
        if self.lr_scheduler is None and drops:  # type: ignore[has-type]
            self.lr_scheduler = steps_by_epoch(
                optimizer or self.optimizer,
                steps_per_epoch=self._steps_per_epoch,
                drop_epochs=drops,
                warmup_steps=self.args.get_warmup_steps(num_training_steps),
                warmup_lr_rate=self.args.warmup_lr_rate,
            )
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)


class DetectionTask(Task):
    """Learns persons at key frames, and what they do."""

    arguments, trainer = DetectionTrainingArguments, ActionDetectionTrainer
    needs_model = "The model to train is missing: give --model, a detector or a backbone."
    holds_out = False
    measures_training = True
    try_it = "hf-video detect VIDEO --model {model} --output FILE"

    def load_data(self, run: RunPlan) -> TaskData:
        chosen = run.chosen
        named = {name: getattr(chosen, name) for name in ("video_root", "label_map", "exclude", "first_second")}
        splits = load_detections(chosen.data, **named)
        require_training(chosen.data, splits)
        warn_of_repetitions({name: _key_frames(rows) for name, rows in splits.items()})
        return TaskData(splits, action_names(splits["train"]))

    def load_model(self, run: RunPlan, data: TaskData, arguments: Any) -> tuple[Any, Any]:
        options = {name: getattr(run.chosen, name) for name in OF_MODEL}
        model, processor = load_detector(run.chosen.model, data.class_names or [], **options)
        _check_persons(data.splits, model.config.num_queries)
        return model, processor

    def item_task(self, run: RunPlan, data: TaskData, processor: Any) -> BoxTask:
        return BoxTask(processor, scales=run.chosen.scales, flip_prob=run.chosen.flip_prob)

    def measure(self, trainer: ActionDetectionTrainer, dataset: VideoDataset) -> Measured:
        found = trainer.predict(dataset)
        measured = measure_predictions(found.predictions, dataset.rows)
        metrics = {"num_key_frames": len(dataset), "loss": found.metrics["test_loss"], **measured}
        precisions = sorted(measured["ap"].items(), key=lambda row: 2.0 if row[1] is None else row[1])
        rows = [(name, "" if value is None else f"{value:.1%}") for name, value in precisions]
        return Measured(metrics, tables=table(("action", "average precision"), rows))


def measure_predictions(predictions: np.ndarray, rows: Any) -> dict[str, Any]:
    """What `measure_persons` says of the `predictions` of an [`ActionDetectionTrainer`] for rows of
    `load_detections`."""
    is_person = predictions[..., 0] != NO_PERSON
    persons = [
        {"boxes": clip[real, :4], "action_scores": clip[real, 4:]}
        for clip, real in zip(predictions, is_person, strict=True)
    ]
    return measure_persons(persons, rows)


def _key_frames(rows: Dataset) -> Dataset:
    """The key frames as segments of videos."""
    segments = rows.remove_columns(["boxes", "actions"]).rename_column("second", "start")
    return segments.add_column("end", rows["second"][:])


def _check_persons(data: Mapping[str, Dataset], num_queries: int) -> None:
    """Refuses (`ValueError`) key frames with more persons than a model has queries."""
    for rows in data.values():
        for video, second, boxes in zip(*(rows[name][:] for name in ("video", "second", "boxes")), strict=True):
            if len(boxes) > num_queries:
                raise ValueError(
                    f"{video} has {len(boxes)} persons at {second:g} s, and the model finds {num_queries} at most: "
                    "make a detector with a larger num_queries, or leave persons out."
                )
