"""Searches an index of videos by words or by a video, and orders the best clips anew by a closer look."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, cast

import torch

from hf_video.loading.models import SearchModel, load_search_model
from hf_video.reading import VideoReadError

from .features import feature_key
from .inference_settings import SearchSettings
from .video_index import VideoIndex, open_index, read_clips
from .video_text import EmbeddedTexts, adapter_of


class Hit(NamedTuple):
    """A clip that was found.

    Attributes:
        path: the video.
        start, end: seconds after its first frame.
        score: the mean cosine of its vectors with that of a text; the cosine of its vector with that of a video.
        match: the logit of a match of re-ranking; None without.
    """

    path: str
    start: float
    end: float
    score: float
    match: float | None = None


class SearchResult(NamedTuple):
    """What a search found.

    Attributes:
        hits: the best clips, the best first: by `match` where there is re-ranking, otherwise by `score`.
        seconds: time of "loading", "encoding", "search" and "reranking".
        note: what to know about the scores; "" for nothing.
    """

    hits: list[Hit]
    seconds: dict[str, float]
    note: str = ""


class VideoSearch:
    """An index and the model that made it.

    Args:
        index: the folder of an index, or an open one.
        model: a loaded model, or where it is; by default where it was when the index was begun.
        device: see `load_search_model`.
        dtype: type of the weights; by default that of the model that made the index.
        batch_size: clips in one forward pass of re-ranking.

    Raises:
        FileNotFoundError, OSError: there is no index, or no such model.
        ValueError: the index is of another model.
    """

    def __init__(
        self,
        index: str | os.PathLike | VideoIndex,
        model: SearchModel | str | None = None,
        *,
        device: str = "auto",
        dtype: str | None = None,
        batch_size: int = 8,
    ):
        self.seconds: dict[str, float] = {}
        self.batch_size = batch_size
        with self._timed("loading"):
            self.index = index if isinstance(index, VideoIndex) else open_index(index)
            if not isinstance(model, SearchModel):
                dtype = dtype or self.index.settings["config"].get("dtype") or "float32"
                model = load_search_model(model or _noted_model(self.index), device=device, dtype=dtype)
            self.model = model
            _check_model(self.index, model)
            self.adapter = adapter_of(model.network)

    @torch.inference_mode()
    def search(
        self, text: str | None = None, *, video: Any = None, top_k: int = 10, rerank: int | None = None
    ) -> SearchResult:
        """The clips closest to a text, or to a video.

        Args:
            text: words.
            video: what `read_video` takes, instead of words; one clip of it is searched for.
            top_k: hits to give.
            rerank: the number of best clips that are matched with the text and ordered anew, at least `top_k`.

        Raises:
            ValueError: there is neither a text nor a video, or both; the text is empty; or the model does not re-rank.
            VideoReadError: a video cannot be read.
        """
        if (text is None) == (video is None):
            raise ValueError("Search for a text, or for a video.")
        if text is not None and not text.strip():
            raise ValueError("The text to search for is empty.")
        if rerank is not None and (text is None or self.adapter.match_input is None):
            kind = type(self.model.network).__name__
            why = "a video is searched for" if text is None else f"{kind} does not see videos and texts together"
            raise ValueError(f"--rerank {rerank} needs a text and a model that matches it: {why}. Leave it out.")
        texts = None
        with self._timed("encoding"):
            if text is not None:
                texts = self.adapter.embed_texts(self.model.tokenize([text]))
                query = texts.vectors[0]
            else:
                clip = next(read_clips(self.model.processor, video))
                query = self.adapter.embed_videos(clip.pixel_values[None]).vectors[0]
        with self._timed("search"):
            # A video is most like itself by cosines alone: the mean of its frames' unit vectors is shorter than them.
            rows, scores = self.index.find(query.numpy(), max(top_k, rerank or 0), cosine=text is None)
        paths, facts = map(self.index.path, rows), self.index.rows.take(rows).to_pylist()
        hits = [
            Hit(path, row["start"], row["end"], score) for path, row, score in zip(paths, facts, scores, strict=True)
        ]
        if rerank is not None and texts is not None:
            with self._timed("reranking"):
                matches = self._match(hits, texts)
            hits = [hit._replace(match=match) for hit, match in zip(hits, matches, strict=True)]
            hits.sort(key=lambda hit: -(hit.match or 0.0))
        return SearchResult(hits[:top_k], dict(self.seconds), self.adapter.note if text is not None else "")

    def _match(self, hits: Sequence[Hit], texts: EmbeddedTexts) -> list[float]:
        """The logit of a match with the text of each of these clips."""
        matches = [0.0] * len(hits)
        pieces = self._read_again(hits)
        while batch := list(islice(pieces, self.batch_size)):
            places, values = zip(*batch, strict=True)
            clips = torch.stack(values)
            if self.adapter.match_input == "tokens":
                clips = cast(torch.Tensor, self.adapter.embed_videos(clips).tokens)
            for place, match in zip(places, self.adapter.match(clips, texts).tolist(), strict=True):
                matches[place] = match
        return matches

    def _read_again(self, hits: Sequence[Hit]) -> Iterator[tuple[int, torch.Tensor]]:
        """The place of each hit, and the frames of its clip. A video is read once."""
        settings = self.index.settings
        for path in dict.fromkeys(hit.path for hit in hits):
            wanted = {hit.start: place for place, hit in enumerate(hits) if hit.path == path}
            clips = read_clips(self.model.processor, path, settings["windows"], source_fps=settings["source_fps"])
            try:
                for clip in clips:
                    if clip.start in wanted:
                        yield wanted.pop(clip.start), clip.pixel_values
                    if not wanted:
                        break
            except VideoReadError as error:
                raise VideoReadError(
                    f"{error} --rerank reads what was indexed: it needs the files, and `hf-video index --prune` again "
                    "if they have moved."
                ) from error
            if wanted:
                raise ValueError(f"{path} has changed since it was indexed: run `hf-video index` again.")

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begin


def search(settings: SearchSettings) -> SearchResult:
    """Searches an index, as `hf-video search`.

    Raises:
        ValueError, OSError: see [`VideoSearch`].
    """
    searched = VideoSearch(
        settings.index,
        settings.model,
        device=settings.device,
        dtype=settings.dtype if "dtype" in settings.given else None,
        batch_size=settings.batch_size,
    )
    return searched.search(settings.text, video=settings.video, top_k=settings.top_k, rerank=settings.rerank)


def _noted_model(index: VideoIndex) -> str:
    """Where the model was when the index was begun, or its name on the Hub."""
    model = index.settings["notes"]["model"]
    if os.path.isabs(model) and not os.path.isdir(model):
        raise FileNotFoundError(
            f"The model of {index.place} was in {model}, which is not there: name its folder with --model."
        )
    return model


def _check_model(index: VideoIndex, model: SearchModel) -> None:
    """Refuses the index of another model."""
    known, own = index.settings, feature_key(model.network, model.processor)
    if any(known[name] != own[name] for name in ("model", "weights")):
        raise ValueError(
            f"{index.place} is the index of another model, {known['notes']['model']} ({known['model']}): its vectors "
            f"do not compare with those of this {own['model']}. Name that model, or make an index of this one."
        )
