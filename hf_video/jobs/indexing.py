"""Makes an index of videos that `hf-video search` searches: `hf-video index` for programs."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import PreTrainedModel

from hf_video.data.video_listing import list_videos
from hf_video.inference.features import feature_key
from hf_video.inference.inference_settings import IndexSettings
from hf_video.inference.video_search import read_clips
from hf_video.inference.video_text import adapter_of
from hf_video.inference.windows import windows_of
from hf_video.loading.models import SearchModel, load_search_model
from hf_video.reading.sources import kind_of
from hf_video.settings import few

from .bulk import BulkResult, check_engine, run_in_bulk
from .tasks import Piece, Task, normalize, without_normalizing

# Settings that cut a video into windows, where one clip would stand for it.
_OF_WINDOWS = ("window", "stride", "fps", "frame_sampling_rate", "last_window")


class IndexTask(Task):
    """The vector of each clip of a video, which is the mean of the clip's unit vectors: a row a clip with `start`,
    `end` and `vector`.

    Args:
        model: compares videos; its network is not kept.
        windows: options of `window_batches`. None takes one clip of each video, as the processor samples it.
        source_fps: the rate of folders of frames.

    Raises:
        ValueError: the model does not take such clips.
    """

    name, quantity = "index", "vectors"

    def __init__(self, model: SearchModel, windows: dict[str, Any] | None = None, source_fps: float | None = None):
        self.processor, self.frame_processor = model.processor, without_normalizing(model.processor)
        self.windows, self.source_fps, self.is_single = windows, source_fps, windows is None
        num_frames = (windows or {}).get("num_frames", model.processor.num_frames)
        black = np.zeros((num_frames, 256, 256, 3), np.uint8)
        clip = model.processor(black, do_sample_frames=False, num_crops=1, return_tensors="pt")
        with torch.inference_mode():
            found = adapter_of(model.network).embed_videos(clip[model.processor.model_input_names[0]])
        self.width = found.shape[-1]

    def key(self, model: PreTrainedModel) -> dict[str, Any]:
        settings = {"windows": self.windows, "source_fps": self.source_fps, "width": self.width}
        return {"task": self.name} | feature_key(model, self.processor, **settings)

    @property
    def columns(self) -> pa.Schema:
        return pa.schema({"start": pa.float64(), "end": pa.float64(), "vector": pa.list_(pa.float32(), self.width)})

    def read(self, source: Any) -> Iterator[Piece]:
        options: dict[str, Any] = {"source_fps": self.source_fps, "dtype": torch.uint8}
        is_empty = True
        for clip in read_clips(self.frame_processor, source, self.windows, **options):
            is_empty = False
            yield Piece(clip.pixel_values.numpy(), clip.start, clip.end)
        if is_empty:
            raise ValueError("The video is shorter than a window: change --last-window, or take a smaller --window.")

    @torch.inference_mode()
    def encode(self, model: PreTrainedModel, pixel_values: torch.Tensor) -> np.ndarray:
        return adapter_of(model).embed_videos(normalize(self.processor, pixel_values, model.device)).numpy()

    def describe(self, times: Sequence[tuple[float, float]], outputs: Sequence[np.ndarray]) -> dict[str, pa.Array]:
        starts, ends = zip(*times, strict=True)
        values = {"start": starts, "end": ends, "vector": list(outputs)}
        return {name: pa.array(values[name], self.columns.field(name).type) for name in values}


def build_index(settings: IndexSettings) -> BulkResult:
    """Writes the index of videos, as `hf-video index`. The same call continues after an interruption. It adds videos,
    does changed ones again, and with `prune` removes those that are not named.

    Args:
        settings: the videos, the model, the folder, and what differs from the defaults.

    Returns:
        What the folder holds.

    Raises:
        ValueError, OSError: a setting cannot be used, there is no such model or video, or the folder holds something
            else, such as the index of another model.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    check_engine(settings)
    videos = list_videos(settings.videos, settings.video_root)
    if missing := [each.source for each in videos if each.rows is None and _is_missing(each.source)]:
        raise FileNotFoundError(f"{few(missing)} does not exist. The index is as it was.")
    device = "cpu" if settings.engine == "ray" else settings.device
    model = load_search_model(settings.model, device=device, dtype=settings.dtype)
    windows = None
    if any(name in settings.given for name in _OF_WINDOWS):
        windows = windows_of(settings, model.processor)
        windows.pop("source_fps")
    task = IndexTask(model, windows, settings.source_fps)
    place = Path(settings.model).expanduser()
    notes = {"model": str(place.absolute()) if place.is_dir() else settings.model}
    return run_in_bulk(settings, videos, task, model.network, notes=notes, renews=True, prunes=settings.prune)


def _is_missing(source: str) -> bool:
    return kind_of(source) == "path" and not os.path.exists(source)
