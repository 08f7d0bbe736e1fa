"""Loads models and their processors from folders and from the Hub."""

from hf_video.lazy_names import lazy_names

_HOMES = {"load_classifier": ".heads", "load_processor": ".processors"} | dict.fromkeys(
    (
        *("choose_device", "load_answering_model", "load_released", "load_trained_model", "load_video_text_model"),
        "locate_model",
    ),
    ".models",
)

__all__, __dir__, __getattr__ = lazy_names(__name__, _HOMES)
