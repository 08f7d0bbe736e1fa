"""Loads models that compare videos, with texts or with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hf_video.loading.models import VIDEO_TEXT_TYPES, load_trained_model, load_video_text_model, require_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from transformers import PreTrainedModel

    from hf_video.processing import VideoClipProcessor


class SearchModel(NamedTuple):
    """A model that compares videos, with texts or with each other.

    Attributes:
        network: in evaluation mode.
        processor: makes clips of videos.
        texts: the processor of texts; None for an encoder of videos alone.
    """

    network: PreTrainedModel
    processor: VideoClipProcessor
    texts: Any = None

    def tokenize(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask` (num_texts, sequence_length) int64; nothing for an encoder of videos."""
        if self.texts is None:
            return {}
        # VideoPrism was trained with texts of one length.
        padding = "max_length" if self.network.config.model_type == "videoprism" else True
        encoded = self.texts(text=list(texts), padding=padding, return_tensors="pt")
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def load_search_model(model: str, *, device: str = "auto", dtype: str = "float32") -> SearchModel:
    """A model of videos and texts: one of this package, X-CLIP or VideoPrism; or the encoder of any video classifier.
    Arguments and errors are those of [`load_trained_model`]."""
    from hf_video.loading.configurations import load_config

    model = require_model(model)
    if load_config(model).model_type not in VIDEO_TEXT_TYPES:
        one_view = {"num_clips": 1, "num_crops": 1}
        return SearchModel(*load_trained_model(model, device=device, dtype=dtype, part="base", **one_view))
    network, texts = load_video_text_model(model, device=device, dtype=dtype)
    return SearchModel(network, texts.video_processor, texts)
