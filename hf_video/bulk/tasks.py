"""What is computed of each video: its pieces, what a model makes of a batch of them, and the columns of their rows.

A task travels to the processes that read videos, so it holds no model, and what only a model needs is imported where
it is used: a process that reads videos starts in half the time without it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from hf_video.inference.windows import Piece, warn_if_sparse
from hf_video.reading.sources import describe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.inference.inference_settings import DetectSettings, ExtractSettings
    from hf_video.inference.video_text import SearchModel
    from hf_video.processing import VideoClipProcessor, VideoDetectionProcessor

Windows = dict[str, Any]
# Outputs (batch_size, ...) float32 on the CPU, of clips as the model takes them.
Embed = Callable[["PreTrainedModel", torch.Tensor], torch.Tensor]

_PERSON = {name: pa.float32() for name in ("score", "x1", "y1", "x2", "y2")}
_PERSON |= {"actions": pa.list_(pa.string()), "action_scores": pa.list_(pa.float32())}


@dataclass(frozen=True)
class Task:
    """How a video becomes rows, one a piece. The `pixel_values` of a piece are uint8, resized and cropped but not
    normalised: a quarter of the bytes then passes between processes.

    Attributes:
        quantity: what the outputs are, for messages.
        key: all that a row follows from, besides the video.
        columns: those of a piece. They are null where there is an error, or a video has no piece.
        read: the pieces of a video, from what `ListedVideo.open` gives. It raises whatever a decoder raises.
        encode: the outputs (batch_size, ...) float32 of a model for `pixel_values` of a batch of pieces.
        values: the values of the columns, of a piece and its output.
        is_single: whether a video is a single piece, so that threads can read many videos ahead.
    """

    quantity: str
    key: dict[str, Any]
    columns: pa.Schema
    read: Callable[[Any], Iterator[Piece]]
    encode: Callable[[PreTrainedModel, torch.Tensor], np.ndarray]
    values: Callable[[Piece, np.ndarray], tuple[Any, ...]]
    is_single: bool = False


def predict_task(
    model: PreTrainedModel, processor: VideoClipProcessor, class_names: Sequence[str], top_k: int
) -> Task:
    """The most likely classes of a video, the best first: `labels` and `scores` of the best `top_k`."""
    from hf_video.inference.features import weights_digest
    from hf_video.inference.scores import predict_scores

    # What scores follow from, besides the features.
    head = {name: value for name, value in model.state_dict().items() if name.startswith("classifier.")}
    more = {"problem_type": model.config.problem_type, "head": weights_digest(head)}
    return _class_task(model, processor, class_names, top_k, predict_scores, more)


def zero_shot_task(model: SearchModel, labels: Sequence[str], top_k: int, template: str) -> Task:
    """The classes in words that are most like a video. The scores are the softmax of the similarities over the model's
    temperature. It is a `ValueError` if the model knows no texts."""
    from hf_video.inference.video_text import adapter_of

    with torch.inference_mode():
        texts = adapter_of(model.network).embed_texts(model.tokenize([template.format(each) for each in labels]))

    def score(network: PreTrainedModel, clips: torch.Tensor) -> torch.Tensor:
        return adapter_of(network).score_texts(clips, texts).softmax(-1)

    return _class_task(model.network, model.processor, labels, top_k, score, {"template": template})


def extract_task(
    model: PreTrainedModel, processor: VideoClipProcessor, windows: Windows, settings: ExtractSettings
) -> Task:
    """The `features` of each window, (hidden_size,), or (num_tokens, hidden_size) without pooling. It is a
    `ValueError` if an option is out of range, or the model does not take such windows."""
    from hf_video.inference.features import choose_features, encode_clips, feature_shape

    chosen = choose_features(model.eval(), settings.pooling, settings.layer)
    embed = partial(encode_clips, settings=chosen)
    shape = feature_shape(partial(embed, model), processor, windows["num_frames"])
    kind = pa.float32()
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    key = _key("extract", model, processor, **chosen._asdict(), **windows, shape=shape)
    return _window_task("features", key, kind, processor, windows, embed)


def index_task(model: SearchModel, windows: Windows | None, source_fps: float | None) -> Task:
    """The `vector` of each clip, the mean of the clip's unit vectors; None for windows takes one clip of each video.
    It is a `ValueError` if the model does not take such clips."""
    from hf_video.inference.features import feature_shape
    from hf_video.inference.video_text import adapter_of

    @torch.inference_mode()
    def embed(network: PreTrainedModel, clips: torch.Tensor) -> torch.Tensor:
        return adapter_of(network).embed_videos(clips)

    network, processor = model.network, model.processor
    (width,) = feature_shape(
        partial(embed, network), processor, (windows or {}).get("num_frames", processor.num_frames)
    )
    # What `VideoSearch` reads clips with.
    settings = {"windows": windows and {name: windows[name] for name in windows if name != "source_fps"}}
    key = _key("index", network, processor, **settings, source_fps=source_fps, width=width)
    windows = windows or {"source_fps": source_fps}
    return _window_task("vector", key, pa.list_(pa.float32(), width), processor, windows, embed)


def detect_task(
    model: PreTrainedModel, processor: VideoDetectionProcessor, class_names: Sequence[str], settings: DetectSettings
) -> Task:
    """The persons at each key frame: `second`, and `persons` with the score of each, its box as shares of width and
    height, and the names and scores of its actions, the best first."""
    from hf_video.inference.detection import detect_clips, key_frame_clips, read_persons, thresholds_of

    times, thresholds = (sorted(set(settings.seconds)), settings.every), thresholds_of(processor, settings)

    def read(source: Any) -> Iterator[Piece]:
        return key_frame_clips(processor, source, *times)

    def encode(network: PreTrainedModel, pixel_values: torch.Tensor) -> np.ndarray:
        return detect_clips(network, processor, pixel_values)

    def values(piece: Piece, output: np.ndarray) -> tuple[Any, ...]:
        (found,) = read_persons([piece.start], [output], class_names, size=(1, 1), **thresholds)
        persons = [(each.score, *each.box, [*each.actions], [*each.actions.values()]) for each in found.persons]
        return piece.start, [dict(zip(_PERSON, each, strict=True)) for each in persons]

    key = {"class_names": class_names, "seconds": times[0], "every": times[1], **thresholds}
    columns = pa.schema({"second": pa.float64(), "persons": pa.list_(pa.struct(_PERSON))})
    return Task("detections", _key("detect", model, processor, **key), columns, read, encode, values)


def _window_task(
    quantity: str,
    key: dict[str, Any],
    kind: pa.DataType,
    processor: VideoClipProcessor,
    windows: Windows,
    embed: Embed,
) -> Task:
    columns, frames = pa.schema({"start": pa.float64(), "end": pa.float64(), quantity: kind}), dict(windows)
    source_fps, frame_processor = frames.pop("source_fps"), _without_normalizing(processor)

    def read(source: Any) -> Iterator[Piece]:
        from hf_video.inference.video_search import read_clips

        for piece in read_clips(frame_processor, source, frames or None, source_fps=source_fps, dtype=torch.uint8):
            yield piece._replace(pixel_values=piece.pixel_values.numpy())

    def values(piece: Piece, output: np.ndarray) -> tuple[Any, ...]:
        # Arrow takes nested arrays as lists of one dimension.
        return piece.start, piece.end, output if output.ndim == 1 else list(output)

    encode = partial(_encode, processor, embed)
    return Task(quantity, key, columns, read, encode, values, is_single=not frames)


def _class_task(
    model: PreTrainedModel, processor: Any, names: Sequence[str], top_k: int, score: Embed, more: dict[str, Any]
) -> Task:
    frame_processor = _without_normalizing(processor)

    def read(source: Any) -> Iterator[Piece]:
        inputs = frame_processor(source, return_tensors="pt", return_metadata=True)
        warn_if_sparse(frame_processor, inputs["video_metadata"][0], describe(source))
        yield Piece(inputs[frame_processor.model_input_names[0]][0].numpy())

    def values(piece: Piece, output: np.ndarray) -> tuple[list[str], list[float]]:
        best = torch.from_numpy(output).topk(min(top_k, len(names)))
        return [names[index] for index in best.indices.tolist()], best.values.tolist()

    key = _key("predict", model, processor, top_k=top_k, classes=names, **more)
    columns = pa.schema({"labels": pa.list_(pa.string()), "scores": pa.list_(pa.float32())})
    return Task("scores", key, columns, read, partial(_encode, processor, score), values, is_single=True)


def _key(name: str, model: PreTrainedModel, processor: Any, **settings: Any) -> dict[str, Any]:
    from hf_video.inference.features import feature_key

    # A row a piece: a folder with a row a video is of another key.
    return {"task": name, "row": "piece"} | feature_key(model, processor, **settings)


def _without_normalizing(processor: VideoClipProcessor) -> VideoClipProcessor:
    """The processor, which then gives uint8 frames."""
    changed = copy.deepcopy(processor)
    changed.do_rescale = changed.do_normalize = False
    return changed


@torch.inference_mode()
def _encode(
    processor: VideoClipProcessor, embed: Embed, network: PreTrainedModel, pixel_values: torch.Tensor
) -> np.ndarray:
    """What a model gives for frames that are resized and cropped: (..., num_frames, num_channels, height, width)
    uint8, which are normalised on its device."""
    options = {"do_sample_frames": False, "do_resize": False, "do_center_crop": False, "num_crops": 1}
    # As one clip they are not copied once more, to join clips of floats.
    inputs = processor(pixel_values.to(network.device).flatten(0, -4), return_tensors="pt", **options)
    return embed(network, inputs[processor.model_input_names[0]].view(pixel_values.shape)).numpy()
