"""Video-understanding models for Hugging Face Transformers: VideoViT, VideoMamba, MemoryBankQFormer,
VideoTextDualEncoder and STMixer.

Importing this package registers every family with the Auto classes of Transformers, at no cost to programs that never
use Transformers: the registration happens when `transformers` is imported, or at once when it already is.
"""

from typing import Any

import wrapt

from .auto import PUBLIC_NAMES, find_public, register_auto_classes
from .version import __version__

wrapt.register_post_import_hook(lambda transformers: register_auto_classes(), "transformers")

__all__ = ["__version__", *PUBLIC_NAMES]


def __getattr__(name: str) -> Any:
    if name in PUBLIC_NAMES:
        return find_public(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
