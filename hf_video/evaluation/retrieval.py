"""Scores videos and texts for each other, and measures how well one finds the other."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_video.data import ClipTask
from hf_video.data.holding_out import VIDEO
from hf_video.data.rows import BYTES, rows_without
from hf_video.data.trained_data import parts_of_training, read_training
from hf_video.data.video_settings import dataset_options
from hf_video.data.video_texts import load_captions
from hf_video.inference.inference_settings import EvaluateSettings
from hf_video.inference.video_text import EmbeddedTexts, adapter_of
from hf_video.loading import load_video_text_model
from hf_video.metrics import retrieval_recall
from hf_video.texts import count, table_lines

from .classes import check_readable, measured_clips, read_batches, reading_options, tell_known, tell_split
from .matching import Tell

# The score of a pair that is not among those which are ranked again.
NOT_RANKED = -100.0


class RetrievalScores(NamedTuple):
    """Scores of videos and texts for each other, each (num_videos, num_texts) float32: the mean of the cosines of the
    vectors of a video with that of the text, as the model itself compares them; and of re-ranking the match logits of
    each video with the texts that are most similar to it, and of each text with such videos, -100 for others."""

    similarity: np.ndarray
    of_texts: np.ndarray | None = None
    of_videos: np.ndarray | None = None


class CaptionedVideos(NamedTuple):
    """Rows of a [`VideoDataset`], one a video or segment; the texts that are looked for; and (num_videos, num_texts)
    bool, whether a text belongs to a video."""

    videos: datasets.Dataset
    texts: list[str]
    relevant: np.ndarray


@torch.inference_mode()
def retrieval_scores(
    model: PreTrainedModel,
    clips: Iterable[torch.Tensor],
    texts: Mapping[str, torch.Tensor],
    *,
    k_test: int = 128,
    batch_size: int = 32,
    progress: bool = False,
) -> RetrievalScores:
    """Compares all videos with all texts, and looks at the most similar pairs again with the fusion encoder, for which
    the tokens of all videos are kept in memory.

    Args:
        model: a video-text model in evaluation mode, with `get_video_features` and `get_text_features`; if it has
            `match`, as a [`VideoTextDualEncoderModel`], pairs are ranked again.
        clips: batches (batch_size, num_frames, num_channels, height, width).
        texts: `input_ids` and, where the model takes one, `attention_mask`, each (num_texts, sequence_length).
        k_test: most similar texts of each video, and videos of each text, that are ranked again; 0 for none.
        batch_size: texts, and pairs, in one forward pass.
        progress: shows progress bars.
    """
    hidden = None if progress else True
    starts = range(0, len(texts["input_ids"]), batch_size)
    parts = [{name: each[start : start + batch_size] for name, each in texts.items()} for start in starts]
    if not k_test or not hasattr(model, "match"):
        adapter = adapter_of(model)
        embedded = EmbeddedTexts(torch.cat([adapter.embed_texts(part).vectors for part in parts]), dict(texts))
        rows = [adapter.similarity(each, embedded) for each in tqdm(clips, desc="Videos", disable=hidden)]
        return RetrievalScores(torch.cat(rows).numpy())
    states, text_vectors, tokens, video_vectors = [], [], [], []
    for part in parts:
        features = model.get_text_features(**{name: each.to(model.device) for name, each in part.items()})
        text_vectors.append(F.normalize(features.pooler_output.float(), dim=-1))
        states.append(features.last_hidden_state)
    for pixel_values in tqdm(clips, desc="Videos", disable=hidden):
        features = model.get_video_features(pixel_values.to(model.device, model.dtype))
        vectors = F.normalize(features.pooler_output.float(), dim=-1)
        # The mean of cosines is the cosine with the mean of unit vectors, before its own length is lost.
        video_vectors.append(vectors if vectors.ndim == 2 else vectors.mean(dim=1))
        tokens.append(features.last_hidden_state.cpu())
    similarity = (torch.cat(video_vectors) @ torch.cat(text_vectors).T).cpu()

    def is_best(dim: int) -> torch.Tensor:
        best = similarity.topk(min(k_test, similarity.shape[dim]), dim).indices
        return torch.zeros_like(similarity, dtype=torch.bool).scatter_(dim, best, True)

    for_videos, for_texts = is_best(1), is_best(0)
    pairs = (for_videos | for_texts).nonzero()
    all_tokens, all_states, masks = torch.cat(tokens), torch.cat(states), texts["attention_mask"]
    scores = torch.full_like(similarity, NOT_RANKED)
    for video, text in tqdm([each.T for each in pairs.split(batch_size)], desc="Pairs", disable=hidden):
        logits = model.match(
            all_tokens[video].to(model.device), all_states[text.to(model.device)], masks[text].to(model.device)
        )
        scores[video, text] = logits[:, 1].float().cpu()
    of_texts, of_videos = (scores.where(each, NOT_RANKED).numpy() for each in (for_videos, for_texts))
    return RetrievalScores(similarity.numpy(), of_texts, of_videos)


def group_captions(
    rows: datasets.Dataset, *, paragraph: bool = False, first_seconds: float | None = None
) -> CaptionedVideos:
    """The videos of rows of `load_captions`, each once, and their captions, which `paragraph` joins to one text. With
    `first_seconds`, not more is read of each video."""
    place = ["video", "start", "end"]
    groups = rows.select_columns([*place, "caption"]).to_pandas().groupby(place, sort=False, dropna=False)
    captions = groups["caption"].agg(list).tolist()
    if paragraph:
        captions = [[" ".join(each)] for each in captions]
    videos = rows.select_columns([name for name in (*place, BYTES) if name in rows.column_names])
    videos = videos.select(groups.head(1).index)
    if first_seconds is not None:
        bounds = zip(videos["start"], videos["end"], strict=True)
        ends = [min((start or 0.0) + first_seconds, math.inf if end is None else end) for start, end in bounds]
        videos = videos.remove_columns("end").add_column("end", ends)
    owners = np.repeat(np.arange(len(captions)), [len(each) for each in captions])
    relevant = np.arange(len(captions))[:, None] == owners
    return CaptionedVideos(videos, [text for each in captions for text in each], relevant)


def evaluate_retrieval(settings: EvaluateSettings, tell: Tell = lambda result: None) -> dict[str, Any]:
    """Measures a video-text model on captioned videos, as `hf-video evaluate --task retrieval`: numbers of videos and
    texts, and `dual_encoder`, what [`retrieval_recall`][hf_video.retrieval_recall] says of the similarities; with
    re-ranking also `reranked`, and `k_test`. `tell` is called with the result. It is a `ValueError` or `OSError` if a
    setting or a video cannot be used, or there is no such model."""
    splits = load_captions(settings.data, video_root=settings.video_root, **dataset_options(settings))
    training = {"on_error": "error", "split_by": VIDEO} | read_training(settings.model or "")
    parts = parts_of_training(settings.model or "", training, splits, None)
    split = settings.choose_split(parts or splits)
    model, processor = load_video_text_model(settings.model, device=settings.device, dtype=settings.dtype)
    videos, texts, relevant = group_captions(
        (parts or splits)[split], paragraph=settings.paragraph, first_seconds=settings.first_seconds
    )
    check_readable(settings, videos)
    clips, facts = measured_clips(settings, videos, ClipTask(processor.video_processor), split, parts is not None)
    if broken := facts.get("broken_videos"):
        relevant = relevant[rows_without(videos, broken)]
        kept = np.flatnonzero(relevant.any(axis=0))
        relevant, texts = relevant[:, kept], [texts[number] for number in kept]
    inputs = processor(text=texts, max_length=settings.max_length, return_tensors="pt")
    batches = (batch["pixel_values"] for batch in read_batches(clips, progress=False, **reading_options(settings)))
    options = {"k_test": settings.k_test, "batch_size": settings.batch_size}
    scores = retrieval_scores(model, batches, inputs, progress=True, **options)
    result = facts | {"num_videos": len(relevant), "num_texts": len(texts)}
    result["dual_encoder"] = retrieval_recall(scores.similarity, relevant)
    if scores.of_texts is not None:
        result["k_test"] = settings.k_test
        result["reranked"] = retrieval_recall(scores.of_texts, relevant, scores.of_videos)
    tell(result)
    return result


def tell_recalls(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what [`evaluate_retrieval`] gives."""
    rows = [["recall", "R@1", "R@5", "R@10"]]
    kinds = {"dual_encoder": "dual encoder", "reranked": f"the {result.get('k_test')} best ranked again"}
    for kind in [kind for kind in kinds if kind in result]:
        for direction in ("text_to_video", "video_to_text"):
            cells = (f"{result[kind][f'{direction}_r{k}']:.2f}" for k in (1, 5, 10))
            rows.append([f"{kinds[kind]}, {direction.replace('_', ' ')}", *cells])
    said = f"{count(result['num_videos'], 'video')} and {count(result['num_texts'], 'text')}{tell_split(result)}"
    return [said, *tell_known(result), "", *table_lines(rows)]
