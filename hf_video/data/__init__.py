"""Finds labelled videos, reads them as clips, and joins clips into batches."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "augment_batch": ".mixing",
    "BoxTask": ".tasks",
    "ClipAugmentation": ".augmentation",
    "ClipMixing": ".mixing",
    "ClipTask": ".tasks",
    "collate_clips": ".mixing",
    "cut_clips": ".tasks",
    "FrameTask": ".tasks",
    "hold_out": ".holding_out",
    "inspect_videos": ".checks",
    "is_multi_label": ".rows",
    "key_frame_times": ".key_frames",
    "label_names": ".rows",
    "load_detections": ".boxes",
    "load_unlabelled_videos": ".video_dataset",
    "load_video_dataset": ".video_dataset",
    "load_video_stream": ".video_stream",
    "MixingCollator": ".mixing",
    "read_annotations": ".annotations",
    "read_key_frame_clip": ".key_frames",
    "ReadAheadLoader": ".loader",
    "Task": ".tasks",
    "TextTask": ".tasks",
    "VideoDataset": ".dataset",
    "VideoStream": ".video_stream",
    "write_annotations": ".annotations",
}

__all__ = list(_PUBLIC_NAMES)
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
