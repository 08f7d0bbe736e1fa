"""A `transformers.Trainer` for data sets of clips."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import EvalPrediction, Trainer

from hf_video.data import collate_clips

from .callbacks import SetEpochCallback
from .evaluation import average_views
from .metrics import compute_metrics as video_metrics


class VideoTrainer(Trainer):
    """`transformers.Trainer` with the collator and metrics of video classification, which also takes evaluation sets
    with several views a video: their loss is the mean over views, their predictions are `average_views`.

    A plain `Trainer` with `data_collator=collate_clips` and `compute_metrics=compute_metrics` trains the same model on
    one process, as long as its evaluation set has one view a video. Pass the video processor as `processing_class`:
    it is saved with every checkpoint.

    Args:
        *args, **kwargs: see `transformers.Trainer`.
        data_collator: defaults to `collate_clips`.
        compute_metrics: defaults to top-1 and top-5 accuracy; None for the loss alone.
    """

    def __init__(
        self,
        *args: Any,
        data_collator: Callable = collate_clips,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = video_metrics,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, data_collator=data_collator, compute_metrics=compute_metrics, **kwargs)
        self.add_callback(SetEpochCallback())

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        labels = inputs.get("labels")
        if labels is None or len(labels) == len(inputs["pixel_values"]):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        num_views = len(inputs["pixel_values"]) // len(labels)
        inputs = {**inputs, "labels": labels.repeat_interleave(num_views, dim=0)}
        if num_items_in_batch is not None:
            num_items_in_batch = num_items_in_batch * num_views
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        outputs["logits"] = average_views(outputs["logits"], num_views, self.model.config.problem_type)
        return (loss, outputs) if return_outputs else loss
