"""Classes in words, which a model of videos and texts never learned."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_video.inference.features import feature_key
from hf_video.inference.video_text import adapter_of
from hf_video.loading.models import SearchModel

from .tasks import PredictTask, normalize


class ZeroShotTask(PredictTask):
    """The classes in words that are most like a video: `labels` and `scores` of the best `top_k`, the best first. The
    scores are the softmax of the similarities over the model's temperature.

    Args:
        model: compares videos with texts; its network is not kept.
        labels: the classes.
        top_k: classes of each video; all if there are fewer.
        template: the text around a class, with {} for it.

    Raises:
        ValueError: the model knows no texts.
    """

    def __init__(self, model: SearchModel, labels: Sequence[str], top_k: int, template: str = "{}"):
        super().__init__(model.processor, labels, top_k)
        self.template = template
        with torch.inference_mode():
            prompts = model.tokenize([template.format(each) for each in labels])
            self.texts = adapter_of(model.network).embed_texts(prompts)

    def key(self, model: PreTrainedModel) -> dict[str, Any]:
        settings = {"classes": self.class_names, "template": self.template, "top_k": self.top_k}
        return {"task": self.name} | feature_key(model, self.processor, **settings)

    @torch.inference_mode()
    def encode(self, model: PreTrainedModel, pixel_values: torch.Tensor) -> np.ndarray:
        clips = normalize(self.processor, pixel_values, model.device)
        return adapter_of(model).score_texts(clips, self.texts).softmax(-1).numpy()


def split_labels(labels: str, template: str = "{}") -> list[str]:
    """The classes of "a;b;c".

    Raises:
        ValueError: there are not two different classes, or the template has not one place for a class.
    """
    names = [name for each in labels.split(";") if (name := each.strip())]
    if len(set(names)) < max(len(names), 2):
        raise ValueError(f"--labels {labels!r}: two or more different classes are expected, as in 'a dog;a cat'.")
    if template.count("{}") != 1 or template.count("{") + template.count("}") != 2:
        raise ValueError(f"--template {template!r}: a text with {{}} once is expected, the place of the class.")
    return names
