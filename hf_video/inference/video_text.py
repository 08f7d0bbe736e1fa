"""Videos and texts as vectors of one space, and how well a video and a text match, by any model that has both."""

from typing import Any, Literal, NamedTuple, cast

import torch
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from .features import FeatureSettings, encode_clips


class EmbeddedVideos(NamedTuple):
    """Clips as a model of videos and texts sees them.

    Attributes:
        vectors: (batch_size, width) float32 on the CPU. Its product with the unit vector of a text, or of a video with
            one vector, is the mean cosine of the vectors of the clip.
        tokens: (batch_size, num_tokens, hidden_size) float32 on the CPU, for `match`; None if the model matches pairs
            by their frames, or not at all.
    """

    vectors: torch.Tensor
    tokens: torch.Tensor | None = None


class EmbeddedTexts(NamedTuple):
    """Texts as a model of videos and texts sees them.

    Attributes:
        vectors: (num_texts, width) float32 on the CPU, of length 1.
        inputs: `input_ids` and `attention_mask`, (num_texts, sequence_length) each.
        states: (num_texts, sequence_length, hidden_size), for `match`; None for most models.
    """

    vectors: torch.Tensor
    inputs: dict[str, torch.Tensor]
    states: torch.Tensor | None = None


class VideoTextAdapter:
    """What a search asks of a model. This one is for encoders of videos, which know no texts.

    Args:
        model: in evaluation mode.

    Attributes:
        note: what a user should know about the first pass of a search; "" for nothing.
        match_input: what `match` takes of a clip: its "tokens", its "frames", or None if there is no `match`.
    """

    note = ""
    match_input: Literal["tokens", "frames"] | None = None

    def __init__(self, model: PreTrainedModel):
        self.model: Any = model

    def embed_videos(self, pixel_values: torch.Tensor) -> EmbeddedVideos:
        """Clips (batch_size, num_frames, num_channels, height, width) as vectors."""
        features = encode_clips(self.model, pixel_values, FeatureSettings("mean"))
        return EmbeddedVideos(normalize(features, dim=-1))

    def embed_texts(self, inputs: dict[str, torch.Tensor]) -> EmbeddedTexts:
        """Texts as unit vectors, see `SearchModel.tokenize`.

        Raises:
            ValueError: the model knows no texts.
        """
        raise ValueError(
            f"{type(self.model).__name__} knows no texts: search with a video, or with a model of videos and texts."
        )

    def match(self, clips: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        """How well each of the clips, of the kind that `match_input` names, matches the first text: (batch_size,)
        float32.

        Raises:
            ValueError: the model cannot tell.
        """
        raise ValueError(f"{type(self.model).__name__} does not see videos and texts together: leave out --rerank.")

    def score_texts(self, pixel_values: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        """Logits (batch_size, num_texts) float32 of which text a clip belongs to."""
        return self.embed_videos(pixel_values).vectors @ texts.vectors.T / self.temperature

    @property
    def temperature(self) -> float:
        """Divisor of the cosines of a clip with several texts."""
        return 1.0

    def _to_model(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return pixel_values.to(self.model.device, self.model.dtype)

    def _inputs(self, texts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self.model.device) for name, tensor in texts.items()}


class _WithTexts(VideoTextAdapter):
    """A model with `get_video_features` and `get_text_features`, as in Transformers."""

    def embed_videos(self, pixel_values: torch.Tensor) -> EmbeddedVideos:
        found = self.model.get_video_features(self._to_model(pixel_values))
        # One vector a clip, or an axis of several.
        vectors = found.pooler_output.float().cpu().view(len(pixel_values), -1, found.pooler_output.shape[-1])
        tokens = found.last_hidden_state.float().cpu() if self.match_input == "tokens" else None
        return EmbeddedVideos(normalize(vectors, dim=-1).mean(dim=1), tokens)

    def embed_texts(self, inputs: dict[str, torch.Tensor]) -> EmbeddedTexts:
        found = self.model.get_text_features(**self._inputs(inputs))
        vectors = found.pooler_output.float().cpu().flatten(1)
        states = found.last_hidden_state if self.match_input == "tokens" else None
        return EmbeddedTexts(normalize(vectors, dim=-1), inputs, states)


class _DualEncoder(_WithTexts):
    match_input: Literal["tokens", "frames"] | None = "tokens"

    def match(self, clips: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        states, mask = cast(torch.Tensor, texts.states), self._inputs(texts.inputs)["attention_mask"]
        rows = torch.zeros(len(clips), dtype=torch.long, device=states.device)
        return self.model.match(self._to_model(clips), states[rows], mask[rows])[:, 1].float().cpu()

    @property
    def temperature(self) -> float:
        return float(self.model.temperature)


class _XClip(_WithTexts):
    """Its vector of a text depends on the video: a prompt from the frames is added to it."""

    note = "The first pass takes texts without prompts, which X-CLIP makes from each video; --rerank adds them."
    match_input: Literal["tokens", "frames"] | None = "frames"

    def match(self, clips: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        first = texts._replace(inputs={name: tensor[:1] for name, tensor in texts.inputs.items()})
        return self.score_texts(clips, first)[:, 0]

    def score_texts(self, pixel_values: torch.Tensor, texts: EmbeddedTexts) -> torch.Tensor:
        found = self.model(pixel_values=self._to_model(pixel_values), **self._inputs(texts.inputs))
        return found.logits_per_video.float().cpu()


class _VideoPrism(_WithTexts):
    @property
    def temperature(self) -> float:
        # Its checkpoints have none: Transformers takes one with each call. This is that of its authors' notebook,
        # videoprism/colabs/videoprism_video_text_demo.ipynb in github.com/google-deepmind/videoprism.
        return 0.01


# By the type of a model's configuration.
ADAPTERS: dict[str, type[VideoTextAdapter]] = {
    "video_text_dual_encoder": _DualEncoder,
    "xclip": _XClip,
    "videoprism": _VideoPrism,
}


def adapter_of(model: PreTrainedModel) -> VideoTextAdapter:
    """The adapter of a model of videos and texts, or of any encoder of videos."""
    return ADAPTERS.get(model.config.model_type, VideoTextAdapter)(model)
