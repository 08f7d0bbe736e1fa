"""What features follow from: the weights and the configuration of a model, its processor, settings, and the video."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import BaseVideoProcessor, PreTrainedModel

import hf_video
from hf_video.reading.sources import is_url

# Weights and configuration fields that do not change the features: the head, the classes and the origin.
_HEAD = "classifier."
_NO_PART_OF_FEATURES = (
    "id2label",
    "label2id",
    "problem_type",
    "_name_or_path",
    "transformers_version",
    "architectures",
)


def feature_key(model: PreTrainedModel, processor: BaseVideoProcessor, **settings: Any) -> dict[str, Any]:
    """All that the features of a video follow from, besides the video: features with equal keys are equal.

    Args:
        model: its head, the names of its classes and its name do not count.
        processor: prepares the videos.
        settings: whatever else decides the features; JSON holds their values.

    Returns:
        The settings, and `model` (its class), `weights` (a digest), `config`, `processor` and `hf_video` (the
        version). JSON holds all of it.
    """
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NO_PART_OF_FEATURES}
    weights = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(_HEAD)}
    facts = {
        **settings,
        "model": type(model).__name__,
        "weights": weights_digest(weights),
        "config": config,
        "processor": json.loads(processor.to_json_string()),
        "hf_video": hf_video.__version__,
    }
    return json.loads(json.dumps(facts, sort_keys=True, default=str))


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """The SHA-256 of named tensors, their shapes and dtypes; of quantised ones, that of what they consist of."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if is_traceable_wrapper_subclass(tensor):
            parts, _ = tensor.__tensor_flatten__()
            digest.update(weights_digest({part: getattr(tensor, part) for part in parts}).encode())
            continue
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def video_identity(video: str, sha256: str | None = None) -> list[Any]:
    """Values that differ between videos, and change when the content of a file does.

    Args:
        video: path of a file or of a folder of frames, or a URL, of which only the name is known.
        sha256: the digest of the file, if it is stored elsewhere; `video` is then a name.

    Raises:
        OSError: there is no such file or folder.
    """
    found: Any = sha256
    if sha256 is None and not is_url(video):
        path = Path(video)
        stats = [(file.name, file.stat()) for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
        found = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    return [video, found]
