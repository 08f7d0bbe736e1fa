"""Finds labelled videos, reads them as clips, and joins clips into batches."""

from hf_video.lazy_names import lazy_names

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

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES)
