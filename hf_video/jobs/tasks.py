"""What is computed of each video: the features of its windows, or its most likely classes.

A task travels to the processes that read videos, so it holds no model. What only a model needs is imported where it is
used: a process that reads videos starts in half the time without it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from hf_video.inference.windows import choose_windows, warn_if_sparse, window_batches
from hf_video.reading.sources import describe, kind_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.inference.features import Pooling
    from hf_video.processing import VideoClipProcessor
    from hf_video.reading.windows import LastWindow


class Piece(NamedTuple):
    """One row of a model's batch.

    Attributes:
        pixel_values: (num_frames, num_channels, height, width), or (num_views, num_frames, ...). The tasks of this
            file give uint8, resized and cropped but not normalised: a quarter of the bytes then passes between
            processes.
        start, end: seconds after the first frame of the video; 0 where the piece is not a window.
    """

    pixel_values: np.ndarray
    start: float = 0.0
    end: float = 0.0


class Task:
    """How a video becomes pieces, how a model encodes a batch of them, and what the outputs of a video become.

    Attributes:
        name: what it is called in a folder of results.
        quantity: what the outputs are, for messages.
        is_single: whether a video is a single piece, so that threads can read many videos ahead.
    """

    name = quantity = ""
    is_single = False

    def key(self, model: PreTrainedModel) -> dict[str, Any]:
        """All that the outputs of a video follow from, besides the video."""
        raise NotImplementedError

    @property
    def columns(self) -> pa.Schema:
        """The columns of a video's outputs. They are null where the video has an error."""
        raise NotImplementedError

    def read(self, source: Any) -> Iterator[Piece]:
        """The pieces of a video, from what `ListedVideo.open` gives. Raises whatever a decoder raises."""
        raise NotImplementedError

    def encode(self, model: PreTrainedModel, pixel_values: torch.Tensor) -> np.ndarray:
        """The outputs (batch_size, ...) float32 of a batch of pieces."""
        raise NotImplementedError

    def describe(self, times: Sequence[tuple[float, float]], outputs: Sequence[np.ndarray]) -> dict[str, pa.Array]:
        """The columns of a video, each an array of the same number of rows, at least one, from the start and end of
        each of its pieces and their outputs."""
        raise NotImplementedError


class ExtractTask(Task):
    """The features of the windows of a video: `features` (num_windows, *shape), `starts` and `ends` in seconds.

    Args:
        model: a video classifier or the base of one; put into evaluation mode, and not kept.
        processor: prepares the frames.
        pooling, layer: which features, see `choose_features`; by default what the head sees.
        last: see `group_samples`.
        source_fps: the rate of folders of frames.
        windows: `num_frames`, `stride`, `fps` and `frame_sampling_rate`, see `choose_windows`.

    Raises:
        ValueError: an option is out of range, or the model does not take such windows.
    """

    name, quantity = "extract", "features"

    def __init__(
        self,
        model: PreTrainedModel,
        processor: VideoClipProcessor,
        *,
        pooling: Pooling | None = None,
        layer: int | None = None,
        last: LastWindow = "pad",
        source_fps: float | None = None,
        **windows: Any,
    ):
        from hf_video.inference.features import choose_features, feature_shape

        self.settings = choose_features(model, pooling, layer)
        self.windows = choose_windows(processor, **windows) | {"last": last}
        # A wrong option shows before a video is read.
        window_batches(processor, (), source_fps=source_fps or 1, **self.windows)
        self.shape = feature_shape(model, processor, self.settings, self.windows["num_frames"])
        self.processor, self.frame_processor = processor, without_normalizing(processor)
        self.source_fps = source_fps

    def key(self, model: PreTrainedModel) -> dict[str, Any]:
        from hf_video.inference.features import feature_key

        settings = self.settings._asdict() | self.windows | {"source_fps": self.source_fps, "shape": self.shape}
        return {"task": self.name} | feature_key(model, self.processor, **settings)

    @property
    def columns(self) -> pa.Schema:
        times = pa.list_(pa.float64())
        window = pa.float32()
        for size in reversed(self.shape):
            window = pa.list_(window, size)
        return pa.schema([("features", pa.list_(window)), ("starts", times), ("ends", times)])

    def read(self, source: Any) -> Iterator[Piece]:
        is_frame_folder = isinstance(source, str) and kind_of(source) == "folder"
        rate = self.source_fps if is_frame_folder else None
        windows = self.windows | {"source_fps": rate, "dtype": torch.uint8}
        for batch in window_batches(self.frame_processor, source, **windows):
            yield Piece(batch.pixel_values[0].numpy(), batch.starts[0], batch.ends[0])

    def encode(self, model: PreTrainedModel, pixel_values: torch.Tensor) -> np.ndarray:
        from hf_video.inference.features import encode_clips

        return encode_clips(model, normalize(self.processor, pixel_values, model.device), self.settings).numpy()

    def describe(self, times: Sequence[tuple[float, float]], outputs: Sequence[np.ndarray]) -> dict[str, pa.Array]:
        values = pa.array(np.stack(outputs).reshape(-1) if outputs else np.empty(0, np.float32))
        for size in reversed(self.shape):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        features = pa.ListArray.from_arrays(pa.array([0, len(outputs)], pa.int32()), values)
        starts, ends = (pa.array([[time[place] for time in times]], pa.list_(pa.float64())) for place in (0, 1))
        return {"features": features, "starts": starts, "ends": ends}


class PredictTask(Task):
    """The most likely classes of a video: `labels` and `scores` of the best `top_k`, the best first.

    Args:
        processor: prepares the clips of a video.
        class_names: the classes in the order of their ids.
        top_k: classes of each video; all if there are fewer.
    """

    name, quantity, is_single = "predict", "scores", True

    def __init__(self, processor: VideoClipProcessor, class_names: Sequence[str], top_k: int):
        self.processor, self.class_names, self.top_k = processor, tuple(class_names), min(top_k, len(class_names))
        self.frame_processor = without_normalizing(processor)

    def key(self, model: PreTrainedModel) -> dict[str, Any]:
        from hf_video.inference.features import feature_key, weights_digest

        head = {name: value for name, value in model.state_dict().items() if name.startswith("classifier.")}
        settings = {"top_k": self.top_k, "classes": self.class_names, "problem_type": model.config.problem_type}
        return {"task": self.name} | feature_key(model, self.processor, **settings, head=weights_digest(head))

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([("labels", pa.list_(pa.string())), ("scores", pa.list_(pa.float32()))])

    def read(self, source: Any) -> Iterator[Piece]:
        inputs = self.frame_processor(source, return_tensors="pt", return_metadata=True)
        warn_if_sparse(self.processor, inputs["video_metadata"][0], describe(source))
        yield Piece(inputs[self.processor.model_input_names[0]][0].numpy())

    def encode(self, model: PreTrainedModel, pixel_values: torch.Tensor) -> np.ndarray:
        from hf_video.inference.scores import predict_scores

        return predict_scores(model, normalize(self.processor, pixel_values, model.device)).numpy()

    def find_best(self, scores: np.ndarray) -> tuple[list[str], list[float]]:
        """The best classes and their scores, of the scores (num_classes,) of a video."""
        best = torch.from_numpy(scores).topk(self.top_k)
        return [self.class_names[index] for index in best.indices.tolist()], best.values.tolist()

    def describe(self, times: Sequence[tuple[float, float]], outputs: Sequence[np.ndarray]) -> dict[str, pa.Array]:
        labels, scores = self.find_best(outputs[0])
        values: dict[str, list] = {"labels": [labels], "scores": [scores]}
        return {name: pa.array(values[name], self.columns.field(name).type) for name in values}


def without_normalizing(processor: VideoClipProcessor) -> VideoClipProcessor:
    """The processor, which then gives uint8 frames."""
    changed = copy.deepcopy(processor)
    changed.do_rescale = changed.do_normalize = False
    return changed


def normalize(processor: VideoClipProcessor, frames: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What the processor makes of frames that are resized and cropped: (..., num_frames, num_channels, height, width)
    float32, on the device."""
    options = {"do_sample_frames": False, "do_resize": False, "do_center_crop": False, "num_crops": 1}
    # As one clip they are not copied once more, to join clips of floats.
    inputs = processor(frames.to(device).flatten(0, -4), return_tensors="pt", **options)
    return inputs[processor.model_input_names[0]].view(frames.shape)
