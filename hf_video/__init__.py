"""Video-understanding models for Hugging Face Transformers: VideoViT, VideoMamba, MemoryBankQFormer,
VideoTextDualEncoder and STMixer.

Importing this package registers every family with the Auto classes of Transformers, at no cost to programs that never
use Transformers: the registration happens when `transformers` is imported, or at once when it already is.
"""

import wrapt

from .auto import PUBLIC_NAMES, register_auto_classes
from .lazy_names import lazy_names
from .version import __version__

wrapt.register_post_import_hook(lambda transformers: register_auto_classes(), "transformers")

_FILES = ((file.removeprefix("."), name) for name, file in PUBLIC_NAMES.items())
__all__, __dir__, __getattr__ = lazy_names(__name__, _FILES)
__all__ += ["__version__"]
