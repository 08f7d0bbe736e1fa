"""
Keeps what numba compiles for hf_video in the user's cache folder.

numba itself keeps it beside the sources. There it would outlive a package that pip removes, and the folder that stays
would hide an editable installation. `NUMBA_CACHE_DIR` is taken if the user has set it; to set it here would move the
files of other packages too.
"""

import contextlib
import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, InTreeCacheLocator
from numba.misc.appdirs import user_cache_dir

from hf_video import __version__

# Kernels hold the code of the functions that they take from there.
VECTORS = Path(__file__).with_name("numba_vectors.py")


class UserCacheLocator(InTreeCacheLocator):
    """A folder for each version of hf_video, and in it for each folder of sources."""

    def get_cache_path(self) -> str:
        root = config.CACHE_DIR or user_cache_dir()
        return os.path.join(root, "hf_video", __version__, self.get_suitable_cache_subpath(self._py_file))

    def get_source_stamp(self) -> str:
        return hashlib.sha256(Path(self._py_file).read_bytes() + VECTORS.read_bytes()).hexdigest()


class UserCacheImplementation(CompileResultCacheImpl):
    _locator_classes = [UserCacheLocator]


class UserCache(FunctionCache):
    _impl_class = UserCacheImplementation

    def _guard_against_spurious_io_errors(self) -> contextlib.AbstractContextManager[None]:
        """Surrounds reading and writing. A full disk or a damaged file costs the time to compile, not the result."""
        return contextlib.suppress(OSError, EOFError, pickle.UnpicklingError)


def keep_compiled(dispatcher: Any) -> None:
    """Let a function that numba compiles read and write the cache, if its folder can be written."""
    with contextlib.suppress(RuntimeError):
        dispatcher._cache = UserCache(dispatcher.py_func)
