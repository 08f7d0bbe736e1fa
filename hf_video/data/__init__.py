"""Finds labelled videos, reads them as clips, and joins clips into batches."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "ClipAugmentation": ".augmentation",
    "ClipDataset": ".clip_dataset",
    "ClipMixing": ".batches",
    "ClipStream": ".clip_stream",
    "collate_clips": ".batches",
    "DetectionCollator": ".detection_dataset",
    "DetectionDataset": ".detection_dataset",
    "FrameCollator": ".frame_dataset",
    "FrameDataset": ".frame_dataset",
    "hold_out": ".holding_out",
    "inspect_videos": ".checks",
    "is_multi_label": ".rows",
    "key_frame_times": ".key_frames",
    "label_names": ".rows",
    "load_detections": ".boxes",
    "load_unlabelled_videos": ".video_dataset",
    "load_video_dataset": ".video_dataset",
    "load_video_stream": ".video_streams",
    "MixingCollator": ".batches",
    "read_key_frame_clip": ".key_frames",
    "ReadAheadLoader": ".read_ahead",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
