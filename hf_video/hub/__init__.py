"""Publishes models on the Hugging Face Hub, self-contained, checked and with a card, and verifies published ones."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "Publication": ".publishing",
    "publish": ".publishing",
    "PublishError": ".folder_checks",
    "push": ".publishing",
    "stage": ".publishing",
    "Finding": ".self_test",
    "Verification": ".self_test",
    "verify_model": ".self_test",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES)
