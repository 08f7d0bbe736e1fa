"""Searches an index of videos by words or by a video, and orders the best clips anew by a closer look."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from hf_video.io import StoredFolder
from hf_video.processing import VideoClipProcessor
from hf_video.reading.sources import kind_of

from .features import feature_key
from .inference_settings import SearchSettings
from .video_text import adapter_of, load_search_model
from .windows import Piece, window_batches

if TYPE_CHECKING:
    import pyarrow as pa

# What a run of `hf-video index` notes about its rows; hidden, as of every folder of Parquet parts.
SETTINGS_FILE = ".bulk.json"


def read_clips(
    processor: VideoClipProcessor,
    source: Any,
    windows: dict[str, Any] | None = None,
    *,
    source_fps: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Piece]:
    """The clips of a video that an index has: its windows, by options of [`window_batches`], or one clip of the whole
    video, as the processor samples it. The end of a folder of frames is 0, and `source_fps` its rate. It is a
    `VideoReadError` if the video cannot be read, or is damaged."""
    if windows is None:
        found = processor(source, num_clips=1, num_crops=1, return_metadata=True, return_tensors="pt")
        clip, metadata = found[processor.model_input_names[0]][0], found["video_metadata"][0]
        yield Piece(clip, 0.0, metadata.duration or 0.0)
        return
    is_frame_folder = isinstance(source, str) and kind_of(source) == "folder"
    options = windows | {"source_fps": source_fps if is_frame_folder else None, "dtype": dtype}
    for batch in window_batches(processor, source, **options):
        yield Piece(batch.pixel_values[0], batch.starts[0], batch.ends[0])


@dataclass
class VideoIndex:
    """The clips of videos, and their vectors: path or URL of the folder; what the vectors follow from, and in `notes`
    the name of the model; a table with `key`, `path`, `start` and `end` of each clip; and (num_clips, width)
    float32."""

    place: str
    settings: dict[str, Any]
    rows: pa.Table
    vectors: np.ndarray

    def find(self, vector: np.ndarray, top_k: int, *, cosine: bool = False) -> tuple[list[int], list[float]]:
        """The numbers of the rows with the largest products with a vector (width,), the largest first, and the
        products; or the same of the cosines."""
        vectors, query = torch.from_numpy(self.vectors), torch.from_numpy(vector)
        scores = vectors @ query
        if cosine:
            scores /= vectors.norm(dim=1) * query.norm()
        best = scores.topk(min(top_k, len(scores)))
        return best.indices.tolist(), best.values.tolist()


def open_index(place: str | os.PathLike) -> VideoIndex:
    """The index that `hf-video index` wrote into a folder.

    Raises:
        FileNotFoundError: there is no index.
        ValueError: the folder has rows of another command, or no clips.
    """
    folder = StoredFolder(place)
    text = folder.read(SETTINGS_FILE)
    settings = json.loads(text or b"{}")
    if settings.get("task") != "index":
        kind = FileNotFoundError if text is None else ValueError
        raise kind(f"{folder} is no index of videos: `hf-video index VIDEOS --model M --output {folder}` writes one.")
    rows = read_rows(folder, ["key", "path", "start", "end", "vector"])
    rows = rows.filter(rows["vector"].is_valid())
    if not len(rows):
        raise ValueError(f"{folder} has no clip of a video: none was read without an error.")
    vectors = np.concatenate([chunk.flatten().to_numpy() for chunk in rows["vector"].chunks])
    return VideoIndex(str(folder), settings, rows.drop_columns("vector"), vectors.reshape(len(rows), -1))


def row_files(folder: StoredFolder) -> list[str]:
    """The names of the files with rows in a folder."""
    return [name for name in folder.names() if name.startswith("part-") and name.endswith(".parquet")]


def read_rows(folder: StoredFolder, columns: Sequence[str], schema: pa.Schema | None = None) -> pa.Table:
    """Columns of all rows in a folder."""
    import pyarrow.dataset as ds  # it imports pandas

    system, root = folder.find()
    files = [f"{root}/{name}" for name in row_files(folder)]
    return ds.dataset(files, schema=schema, format="parquet", filesystem=system).to_table([*columns])


class Hit(NamedTuple):
    """A clip that was found: the path of the video; seconds after its first frame; the mean cosine of the clip's
    vectors with that of a text, or the cosine of its vector with that of a video; and the logit of re-ranking."""

    path: str
    start: float
    end: float
    score: float
    match: float | None = None


class SearchResult(NamedTuple):
    """The best clips, the best first: by `match` where there is re-ranking, otherwise by `score`; and what to know
    about the scores, "" for nothing."""

    hits: list[Hit]
    note: str = ""


class VideoSearch:
    """An index and the model that made it.

    Args:
        index: the folder of an index.
        model: where it is; by default where it was when the index was begun.
        device, dtype: see `load_search_model`; by default the dtype of the model that made the index.
        batch_size: clips in one forward pass of re-ranking.

    Raises:
        OSError, ValueError: there is no index, or no such model, or the index is of another model.
    """

    def __init__(
        self,
        index: str | os.PathLike,
        model: str | None = None,
        *,
        device: str = "auto",
        dtype: str | None = None,
        batch_size: int = 8,
    ):
        self.batch_size, self.index = batch_size, open_index(index)
        known = self.index.settings
        noted, dtype = known["notes"]["model"], dtype or known["config"].get("dtype") or "float32"
        self.model = load_search_model(model or noted, device=device, dtype=dtype)
        own = feature_key(self.model.network, self.model.processor)
        if any(known[name] != own[name] for name in ("model", "weights")):
            raise ValueError(
                f"{self.index.place} is the index of another model, {noted} ({known['model']}): its vectors do not "
                f"compare with those of this {own['model']}. Name that model, or make an index of this one."
            )
        self.adapter = adapter_of(self.model.network)

    @torch.inference_mode()
    def search(
        self, text: str | None = None, *, video: Any = None, top_k: int = 10, rerank: int | None = None
    ) -> SearchResult:
        """The `top_k` clips closest to a text, or to one clip of a `video`, which is what `read_video` takes. The
        `rerank` best ones, at least `top_k`, are matched with the text and ordered anew. It is a `ValueError` if there
        is neither a text nor a video, or both; the text is empty; or the model does not re-rank."""
        if (text is None) == (video is None):
            raise ValueError("Search for a text, or for a video.")
        if text is not None and not text.strip():
            raise ValueError("The text to search for is empty.")
        if rerank is not None and (text is None or not self.adapter.matches):
            kind = type(self.model.network).__name__
            why = "a video is searched for" if text is None else f"{kind} does not see videos and texts together"
            raise ValueError(f"--rerank {rerank} needs a text and a model that matches it: {why}. Leave it out.")
        texts = None if text is None else self.adapter.embed_texts(self.model.tokenize([text]))
        if texts is not None:
            query = texts.vectors[0]
        else:
            query = self.adapter.embed_videos(next(read_clips(self.model.processor, video)).pixel_values[None])[0]
        # A video is most like itself by cosines alone: the mean of its frames' unit vectors is shorter than them.
        rows, scores = self.index.find(query.numpy(), max(top_k, rerank or 0), cosine=texts is None)
        facts = self.index.rows.take(rows).to_pylist()
        hits = [
            Hit(fact["path"], fact["start"], fact["end"], score) for fact, score in zip(facts, scores, strict=True)
        ]
        if rerank is not None and texts is not None:
            found, matched = self._read_again(hits), list[Hit]()
            while batch := list(islice(found, self.batch_size)):
                logits = self.adapter.match(torch.stack([clip for _, clip in batch]), texts).tolist()
                matched += [hit._replace(match=logit) for (hit, _), logit in zip(batch, logits, strict=True)]
            hits = sorted(matched, key=lambda hit: -(hit.match or 0.0))
        return SearchResult(hits[:top_k], self.adapter.note if text is not None else "")

    def _read_again(self, hits: Sequence[Hit]) -> Iterator[tuple[Hit, torch.Tensor]]:
        """Each hit, and the frames of its clip. A video is read once."""
        windows, source_fps = (self.index.settings[name] for name in ("windows", "source_fps"))
        for path in dict.fromkeys(hit.path for hit in hits):
            wanted = {hit.start: hit for hit in hits if hit.path == path}
            for clip in read_clips(self.model.processor, path, windows, source_fps=source_fps):
                if clip.start in wanted:
                    yield wanted.pop(clip.start), clip.pixel_values
                if not wanted:
                    break
            else:
                raise ValueError(f"{path} has changed since it was indexed: run `hf-video index` again.")


def search(settings: SearchSettings) -> SearchResult:
    """Searches an index, as `hf-video search`; the errors are those of [`VideoSearch`]."""
    dtype = settings.dtype if "dtype" in settings.given else None
    searched = VideoSearch(
        settings.index, settings.model, device=settings.device, dtype=dtype, batch_size=settings.batch_size
    )
    return searched.search(settings.text, video=settings.video, top_k=settings.top_k, rerank=settings.rerank)
