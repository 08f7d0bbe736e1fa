"""Frames of videos, wherever they are: files, addresses, folders, streams, windows."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "sources": "VideoReadError",
    "video": "probe_video read_video VideoReader",
    "windows": "group_samples Sample SampleGroup timed_samples",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES.items())
