"""Opening the video of a URL, so that only those of its bytes travel that are needed.

`http(s)` is read by our own requests, every other protocol by the file system of fsspec that knows it.
"""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from .mp4_index import fetch_moov
from .range_file import FIRST_SIZE, RangeFile
from .range_requests import open_http
from .video_downloading import public_url, read_max_size, tell_too_large
from .video_opening import VideoReadError

# What file systems call the size, the time and the version of a file.
_MARKS = ("size", "mtime", "created", "LastModified", "last_modified", "ETag", "etag", "generation")
# In bytes. Smaller files are fetched as a whole.
_SMALL = 2**20


class _FsspecFile(RangeFile):
    """An open file of fsspec."""

    def __init__(self, label: str, file: Any):
        self._file = file
        self.num_fetches = 0
        super().__init__(label, file.seek(0, io.SEEK_END))

    def _fetch_range(self, start: int, end: int) -> bytes:
        def read() -> bytes:
            self._file.seek(start)
            return self._file.read(end - start)

        self.num_fetches += 1
        data = _call(self.label, read)
        if len(data) != end - start:
            raise VideoReadError(
                f"{self.label} cannot be read: {len(data)} bytes came of the range from {start} to {end - 1}. "
                "Has the file changed? Read it again."
            )
        return data


def is_url(video: Any) -> bool:
    """Whether a video is named by a URL, such as `https://...`, `s3://...` or `hf://...`."""
    return isinstance(video, str) and re.match(r"([A-Za-z0-9]{2,}::)*[A-Za-z][A-Za-z0-9+.-]+://", video) is not None


@contextmanager
def open_url(url: str) -> Iterator[str | BinaryIO]:
    """
    Open the video of a URL. Of an MP4 or MOV file that is not small, only its tables are fetched; of any other file
    everything, for its tables do not tell which bytes are needed.

    Args:
        url (`str`):
            A URL of `http(s)`, or of any protocol that fsspec knows and whose package is installed.

    Returns:
        `str` or `BinaryIO`: the path of a `file://` URL; the open file of any other.

    Raises:
        `VideoReadError`: if the video cannot be fetched; also in the block, if a part of it could not.
        `ValueError`: if `HF_VIDEO_MAX_DOWNLOAD_SIZE` is no positive integer.
    """
    with open_ranges(url) as file:
        if isinstance(file, RangeFile):
            if file.size > _SMALL:
                file.prefetch([(0, FIRST_SIZE)])
            if file.size <= _SMALL or fetch_moov(file) is None:
                file.fetch_whole()
        yield file


@contextmanager
def open_ranges(url: str) -> Iterator[str | BinaryIO]:
    """As [`open_url`], with nothing fetched ahead but the start."""
    if url.lower().startswith(("http://", "https://")):
        with _telling_first_error(open_http(url)) as file:
            yield file
        return
    name = public_url(url)
    system, path = _find_system(url, name)
    if isinstance(system, LocalFileSystem):
        yield path
        return
    # The cache is that of `RangeFile`.
    with _call(name, lambda: system.open(path, "rb", cache_type="none")) as opened:
        file = _call(name, lambda: _FsspecFile(name, opened))
        before = getattr(opened, "details", None) or _call(name, lambda: system.info(path))
        if file.size > (max_size := read_max_size()):
            raise VideoReadError(tell_too_large(name, max_size))
        with _telling_first_error(file):
            yield file
        # The other file systems have no request for a range of one version.
        after = _call(name, lambda: system.info(path)) if file.num_fetches > 1 else before
        if any(before[mark] != after[mark] for mark in _MARKS if mark in before and mark in after):
            raise VideoReadError(f"{name} has changed while it was read; read it again.")


@contextmanager
def _telling_first_error(file: BinaryIO) -> Iterator[BinaryIO]:
    """What went wrong in fetching a file is the reason for all that follows, also where nobody has noticed it."""
    try:
        yield file
    except VideoReadError as error:
        first = getattr(file, "error", None)
        if first is None or first is error:
            raise
        raise first from None
    if getattr(file, "error", None) is not None:
        raise file.error  # type: ignore[attr-defined]


def _find_system(url: str, name: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    if "::" in url:
        raise VideoReadError(
            f"{name} leads through several file systems, which is not read by ranges. Open the file yourself, with "
            "fsspec.open(URL), and give the open file."
        )
    try:
        return url_to_fs(url)
    except ImportError as error:
        raise VideoReadError(f"{name} cannot be read: {error}.") from error
    except ValueError as error:
        protocol = url.partition("://")[0]
        raise VideoReadError(
            f"{name} cannot be read: {protocol}:// is no protocol of files that fsspec knows, or the address is not "
            "complete. Expected http://, https://, s3://, hf://, ..., or a path."
        ) from error


def _call(name: str, function: Callable[[], Any]) -> Any:
    """The result of a function that calls a file system. Each of them has errors of its own."""
    try:
        return function()
    except VideoReadError:
        raise
    except FileNotFoundError as error:
        raise VideoReadError(f"{name} does not exist.") from error
    except Exception as error:
        # A signature or a token stands in the query of an address.
        reason = re.sub(r"\?\S+", "?...", str(error))[:300]
        raise VideoReadError(f"{name} cannot be read: {type(error).__name__}: {reason}") from error
