"""The trainer of classifiers of frames."""

from collections import defaultdict
from typing import Any

import numpy as np
from torch import nn
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from hf_video.data import VideoDataset
from hf_video.data.frame_labels import UNKNOWN
from hf_video.data.tasks import collate_frames
from hf_video.inference.frame_evaluation import evaluate_frames, figures_by_name
from hf_video.loading.class_names import class_names_of

from .base_trainer import BaseTrainer
from .callbacks import TrainingFactsCallback
from .losses import Distillation, make_distillation


class FrameClassificationTrainer(BaseTrainer):
    """
    `transformers.Trainer` for a classifier of frames such as [`VideoMambaForFrameClassification`] and a
    [`VideoDataset`] of a [`FrameTask`]. The loss is the model's, over the known frames of the whole step.

    An evaluation gives `frame_accuracy`, `edit_score`, `f1_10`, `f1_25` and `f1_50`, see
    [`evaluate_frames`][hf_video.inference.evaluate_frames]. It puts the clips of a video together, so they must not
    overlap.

    Args:
        model, args, *more, **kwargs: see `transformers.Trainer`. Pass the processor as `processing_class`.
        data_collator: defaults to that of a [`FrameTask`].
        background: the class that is no segment, if there is one.
        distillation: a teacher of logits; defaults to the one that the arguments describe, if any.
    """

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        *more: Any,
        background: str | None = None,
        distillation: Distillation | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, data_collator or collate_frames, *more, **kwargs)
        self.background = background
        self.distillation = distillation or make_distillation(self.args, self.model, self.processing_class)
        self.add_callback(TrainingFactsCallback(self.eval_dataset))

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if self.distillation is None or not self.model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"]
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        taught = self.distillation.loss(inputs["pixel_values"], outputs["logits"], inputs["attention_mask"])
        # The loss of the labels is divided by the known labels of the whole step, and the teacher's by the frames of
        # the batch.
        share: Any = 1.0
        if num_items_in_batch is not None:
            num_processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            share = labels.ne(UNKNOWN).sum() / num_items_in_batch * num_processes
        weight = self.distillation.weight
        loss = (1 - weight) * loss + weight * share * taught
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(
        self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        # The metric needs the videos of the data set, which no batch has, in place of `compute_metrics`.
        kwargs["prediction_loss_only"] = self.args.prediction_loss_only
        output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        if output.predictions is not None:
            names = class_names_of(self.model.config)
            found = measure_clips(output.predictions, dataloader.dataset, names, self.background)
            figures = figures_by_name(found)
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in figures.items()})
        return output


def measure_clips(
    logits: np.ndarray, clips: VideoDataset, class_names: list[str], background: str | None = None
) -> dict[str, Any]:
    """What `evaluate_frames` says of logits (num_clips, t, num_classes) for the clips of a data set, which follow each
    other in each video without overlap."""
    rows = clips.rows.select_columns(["video", "frame_labels"])
    found, truth = defaultdict[str, list[np.ndarray]](list), defaultdict[str, list[np.ndarray]](list)
    for scores, row in zip(logits, rows, strict=True):
        labels = np.asarray(row["frame_labels"])
        scores = scores[: len(labels)]
        found[row["video"]].append(scores.argmax(-1) if labels.ndim == 1 else (scores > 0).astype(labels.dtype))
        truth[row["video"]].append(labels)
    predictions, references = ([np.concatenate(parts) for parts in each.values()] for each in (found, truth))
    return evaluate_frames(predictions, references, class_names, [] if background is None else [background])
