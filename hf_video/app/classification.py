"""The classes of a whole video."""

from pathlib import Path

from hf_video.inference.prediction import predict_scores

from .loaded_models import LoadedModel
from .visitors import Ticket


def classify(model: LoadedModel, video: Path, ticket: Ticket) -> dict[str, float]:
    """
    The score of each class, by name, the highest first.

    Args:
        model: a classifier.
        video: the file.
        ticket: ends the work between reading and computing.

    Raises:
        VideoReadError: the video cannot be read.
        ValueError: the scores are not finite.
        Cancelled: the work was cancelled.
    """
    clips = model.processor(str(video), return_tensors="pt")[model.processor.model_input_names[0]]
    ticket.check()
    with model.lock:
        scores = predict_scores(model.network, clips)[0]
    if not scores.isfinite().all():
        raise ValueError("The model's scores of this video are not finite.")
    order = scores.argsort(descending=True).tolist()
    return {model.class_names[index]: scores[index].item() for index in order}
