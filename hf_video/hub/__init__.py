"""Publishes models on the Hugging Face Hub, self-contained, checked and with a card, and verifies published ones."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "folder_checks": "PublishError",
    "publishing": "Publication publish push stage",
    "self_test": "Finding Verification verify_model",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES.items())
