"""Class scores of videos that are seen in several views (clips and crops)."""

import math

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_video.data import collate_clips


def average_views(logits: torch.Tensor, num_views: int, problem_type: str | None = None) -> torch.Tensor:
    """Merges the views of each video by averaging probabilities, as the test protocols of VideoMAE and VideoMamba do.

    The result is again logits: their softmax (sigmoid for multi-label models) is the mean probability over views.
    Regression outputs are averaged as they are.

    Args:
        logits: (batch_size * num_views, num_classes), the views of one video adjacent.
        num_views: views of one video.
        problem_type: `problem_type` of the model's configuration; None stands for single-label classification.

    Returns:
        (batch_size, num_classes) float32.

    Raises:
        ValueError: the number of rows is not a multiple of `num_views`.
    """
    if num_views < 1 or len(logits) % num_views:
        raise ValueError(f"{len(logits)} rows of logits cannot be grouped into videos of {num_views} views.")
    views = logits.float().unflatten(0, (-1, num_views))
    if problem_type == "regression":
        return views.mean(1)
    if problem_type == "multi_label_classification":
        return views.sigmoid().mean(1).logit()
    return views.log_softmax(-1).logsumexp(1) - math.log(num_views)


@torch.inference_mode()
def predict_scores(model: PreTrainedModel, pixel_values: torch.Tensor, num_views: int = 1) -> torch.Tensor:
    """Class probabilities of a batch of videos, averaged over views (regression models: their outputs).

    Args:
        model: a video classifier in evaluation mode.
        pixel_values: (batch_size * num_views, num_frames, num_channels, height, width), the views of one video
            adjacent; moved to the model's device and dtype.
        num_views: views of one video.

    Returns:
        (batch_size, num_classes) float32 on the CPU.

    Raises:
        ValueError: the number of clips is not a multiple of `num_views`.
    """
    problem_type = model.config.problem_type
    logits = model(pixel_values=pixel_values.to(model.device, model.dtype)).logits
    logits = average_views(logits, num_views, problem_type).cpu()
    if problem_type == "regression":
        return logits
    return logits.sigmoid() if problem_type == "multi_label_classification" else logits.softmax(-1)


def evaluate_dataset(
    model: PreTrainedModel, dataset: Dataset, *, batch_size: int = 8, num_workers: int = 0, progress: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Class probabilities and true classes of every video in a data set, in its order.

    Args:
        model: a video classifier; put into evaluation mode.
        dataset: a `ClipDataset` made with `training=False`, or any data set of the same items.
        batch_size: videos in one forward pass, each with all its views.
        num_workers: processes that read videos; 0 reads in this one.
        progress: shows a progress bar.

    Returns:
        Scores (num_videos, num_classes) float32 and labels (num_videos,) int64.

    Raises:
        ValueError: the data set is empty.
    """
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=num_workers, collate_fn=collate_clips)
    if not len(loader):
        raise ValueError("There is no video to evaluate: the data set is empty.")
    model.eval()
    scores, labels = [], []
    for batch in tqdm(loader, desc="Evaluating", disable=not progress):
        num_views = len(batch["pixel_values"]) // len(batch["labels"])
        scores.append(predict_scores(model, batch["pixel_values"], num_views))
        labels.append(batch["labels"])
    return torch.cat(scores).numpy(), torch.cat(labels).numpy()
