"""Finds labelled videos, reads them as clips, and joins clips into batches."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "annotations": "read_annotations write_annotations",
    "augmentation": "ClipAugmentation",
    "boxes": "load_detections",
    "checks": "inspect_videos",
    "dataset": "VideoDataset",
    "holding_out": "hold_out",
    "key_frames": "read_key_frame_clip",
    "loader": "ReadAheadLoader",
    "mixing": "augment_batch ClipMixing collate_clips MixingCollator",
    "rows": "is_multi_label label_names",
    "tasks": "BoxTask ClipTask cut_clips FrameTask Task TextTask",
    "video_dataset": "load_unlabelled_videos load_video_dataset",
    "video_stream": "load_video_stream VideoStream",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES.items())
