"""Frames of videos, wherever they are: files, addresses, folders, streams, windows."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "group_samples": ".windows",
    "probe_video": ".video",
    "read_video": ".video",
    "Sample": ".windows",
    "SampleGroup": ".windows",
    "timed_samples": ".windows",
    "VideoReader": ".video",
    "VideoReadError": ".sources",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES)
