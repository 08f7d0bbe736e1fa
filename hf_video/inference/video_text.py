"""How much videos and texts are alike, by any model that has both: as vectors of one space, and seen together."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from hf_video.loading.configurations import load_config
from hf_video.loading.models import VIDEO_TEXT_TYPES, load_trained_model, load_video_text_model, require_model
from hf_video.processing import VideoClipProcessor

from .features import FeatureSettings, encode_clips


class SearchModel(NamedTuple):
    """A model that compares videos, with texts or with each other: the network in evaluation mode, what makes clips of
    videos, and the processor of texts, None for an encoder of videos alone."""

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
    model = require_model(model)
    if load_config(model).model_type not in VIDEO_TEXT_TYPES:
        one_view = {"num_clips": 1, "num_crops": 1}
        return SearchModel(*load_trained_model(model, device=device, dtype=dtype, part="base", **one_view))
    network, texts = load_video_text_model(model, device=device, dtype=dtype)
    return SearchModel(network, texts.video_processor, texts)


class EmbeddedTexts(NamedTuple):
    """Texts as a model of videos and texts sees them: (num_texts, width) float32 on the CPU, of length 1; and
    `input_ids` and `attention_mask`, (num_texts, sequence_length) each."""

    vectors: torch.Tensor
    inputs: dict[str, torch.Tensor]


class VideoTextAdapter:
    """What a search asks of a model in evaluation mode; this one is for encoders of videos, which know no texts.
    `note` is what a user should know about the first pass of a search. A model that `matches` sees a clip and a text
    together. `temperature` divides the cosines of a clip with several texts."""

    note = ""
    matches = False
    temperature = 1.0

    def __init__(self, model: PreTrainedModel):
        self.model: Any = model

    def embed_videos(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Clips (batch_size, num_frames, num_channels, height, width) as vectors (batch_size, width) float32 on the
        CPU. The product of one with the unit vector of a text is the mean cosine of the vectors of the clip."""
        return normalize(encode_clips(self.model, pixel_values, FeatureSettings("mean")), dim=-1)

    def embed_texts(self, inputs: dict[str, torch.Tensor]) -> EmbeddedTexts:
        """Texts as unit vectors, see `SearchModel.tokenize`. It is a `ValueError` if the model knows no texts."""
        raise ValueError(
            f"{type(self.model).__name__} knows no texts: search with a video, or with a model of videos and texts."
        )

    def match(self, pixel_values: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        """How well each clip matches one text, by a model that `matches`: logits (batch_size,) float32."""
        raise NotImplementedError

    def similarity(self, pixel_values: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        """The mean cosines (batch_size, num_texts) float32 of clips with texts, as the model itself compares them."""
        return self.embed_videos(pixel_values) @ texts.vectors.T

    def score_texts(self, pixel_values: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        """Logits (batch_size, num_texts) float32 of which text a clip belongs to."""
        return self.similarity(pixel_values, texts) / self.temperature


class _WithTexts(VideoTextAdapter):
    """A model with `get_video_features` and `get_text_features`, as in Transformers."""

    def embed_videos(self, pixel_values: torch.Tensor) -> torch.Tensor:
        found = self.model.get_video_features(pixel_values.to(self.model.device, self.model.dtype)).pooler_output
        # One vector a clip, or an axis of several.
        return normalize(found.float().cpu().view(len(found), -1, found.shape[-1]), dim=-1).mean(dim=1)

    def embed_texts(self, inputs: dict[str, torch.Tensor]) -> EmbeddedTexts:
        vectors = self.model.get_text_features(**self._on_device(inputs)).pooler_output.float().cpu().flatten(1)
        return EmbeddedTexts(normalize(vectors, dim=-1), inputs)

    def _on_device(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}


class _DualEncoder(_WithTexts):
    matches = True

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.temperature = float(self.model.temperature.detach())

    def match(self, pixel_values: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        clips, text = pixel_values.to(self.model.device, self.model.dtype), self._on_device(texts.inputs)
        tokens = self.model.get_video_features(clips).last_hidden_state
        states = self.model.get_text_features(**text).last_hidden_state.expand(len(clips), -1, -1)
        return self.model.match(tokens, states, text["attention_mask"].expand(len(clips), -1))[:, 1].float().cpu()


class _XClip(_WithTexts):
    """Its vector of a text depends on the video: a prompt from the frames is added to it."""

    note = "The first pass takes texts without prompts, which X-CLIP makes from each video; --rerank adds them."
    matches = True

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.temperature = float((-self.model.logit_scale.detach()).exp())

    def match(self, pixel_values: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        return self.score_texts(pixel_values, texts)[:, 0]

    def similarity(self, pixel_values: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        clips = pixel_values.to(self.model.device, self.model.dtype)
        found = self.model(pixel_values=clips, **self._on_device(texts.inputs))
        return found.logits_per_video.float().cpu() * self.temperature


class _VideoPrism(_WithTexts):
    # Its checkpoints have none: Transformers takes one with each call. This is that of its authors' notebook,
    # videoprism/colabs/videoprism_video_text_demo.ipynb in github.com/google-deepmind/videoprism.
    temperature = 0.01


# By the type of a model's configuration.
ADAPTERS: dict[str, type[VideoTextAdapter]] = {
    "video_text_dual_encoder": _DualEncoder,
    "xclip": _XClip,
    "videoprism": _VideoPrism,
}


def adapter_of(model: PreTrainedModel) -> VideoTextAdapter:
    """The adapter of a model of videos and texts, or of any encoder of videos."""
    other = _WithTexts if hasattr(model, "get_text_features") else VideoTextAdapter
    return ADAPTERS.get(model.config.model_type, other)(model)
