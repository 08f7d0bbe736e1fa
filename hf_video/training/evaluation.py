"""Class scores of videos."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_video.data import collate_clips

from .losses import problem_type_of


@torch.inference_mode()
def predict_scores(model: PreTrainedModel, pixel_values: torch.Tensor) -> torch.Tensor:
    """Class probabilities of a batch of videos (regression models: their outputs).

    Args:
        model: a video classifier in evaluation mode.
        pixel_values: (batch_size, num_frames, num_channels, height, width), or (batch_size, num_views, ...), over
            which the model averages; moved to the model's device and dtype.

    Returns:
        (batch_size, num_classes) float32 on the CPU.
    """
    logits = model(pixel_values=pixel_values.to(model.device, model.dtype)).logits.float().cpu()
    problem_type = problem_type_of(model.config)
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
        Scores (num_videos, num_classes) float32 and labels: class ids (num_videos,) int64, or with several labels a
        video (num_videos, num_classes) float32.

    Raises:
        ValueError: the data set is empty.
    """
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=num_workers, collate_fn=collate_clips)
    if not len(loader):
        raise ValueError("There is no video to evaluate: the data set is empty.")
    model.eval()
    scores, labels = [], []
    for batch in tqdm(loader, desc="Evaluating", disable=not progress):
        scores.append(predict_scores(model, batch["pixel_values"]))
        labels.append(batch["labels"])
    return torch.cat(scores).numpy(), torch.cat(labels).numpy()
