"""Loads models and their processors from folders and from the Hub."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "heads": "load_classifier",
    "models": "choose_device load_answering_model load_released load_trained_model load_video_text_model locate_model",
    "processors": "load_processor",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES.items())
