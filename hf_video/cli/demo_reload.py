"""Describes a model, so that the demo can compare the trained model with the same model in a new process.

`python -m hf_video.cli.demo_reload MODEL DIGITS` prints the description of a saved model as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.processing import VideoClipProcessor

NUM_COMPARED_VIDEOS = 4


def describe(model: PreTrainedModel, processor: VideoClipProcessor, digits: str | Path) -> dict[str, Any]:
    """Accuracy on the held-out digits, logits of some of them, and a digest of all weights, as plain values.

    Args:
        model: a trained video classifier; put into evaluation mode.
        processor: the processor it was trained with.
        digits: a folder written by `write_moving_digits`.
    """
    import torch

    from hf_video.data import ClipDataset, collate_clips, load_video_dataset
    from hf_video.inference.feature_key import weights_digest
    from hf_video.loading.class_names import class_names_of
    from hf_video.metrics import top_k_accuracy
    from hf_video.training import evaluate_dataset

    split = load_video_dataset(digits, labels=class_names_of(model.config))["test"]
    dataset = ClipDataset(split, processor, training=False)
    scores, labels = evaluate_dataset(model, dataset, batch_size=32, progress=False)
    clips = collate_clips([dataset[index] for index in range(NUM_COMPARED_VIDEOS)])["pixel_values"]
    with torch.inference_mode():
        logits = model(clips).logits
    return {
        "top1_accuracy": top_k_accuracy(scores, labels),
        "logits": logits.tolist(),
        "scores": scores[0].tolist(),
        "video": split[0]["video"],
        "weights": weights_digest(model.state_dict()),
    }


def main(model_dir: str, digits: str) -> None:
    """Loads a model as any user of Transformers would, and prints what `describe` and the pipeline return."""
    from transformers import AutoModelForVideoClassification, AutoVideoProcessor, pipeline

    model = AutoModelForVideoClassification.from_pretrained(model_dir)
    description = describe(model, AutoVideoProcessor.from_pretrained(model_dir), digits)
    classify = pipeline("video-classification", model=model_dir, device="cpu")
    description["pipeline"] = classify(description["video"], top_k=1)[0]
    print(json.dumps(description))


if __name__ == "__main__":
    main(*sys.argv[1:])
