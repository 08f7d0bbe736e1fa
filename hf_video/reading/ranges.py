"""Videos behind addresses as files that are read by ranges of bytes, so that only what is needed travels.

Of a five-minute MP4 behind a slow line, a dense clip takes 0.3 of the time of the whole file, and a uniform one 0.6
(`benchmarks/range_reads.py`). `http(s)` is read by our own requests for ranges (RFC 9110, 14), every other protocol by
the file system of fsspec that knows it.
"""

import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import Any, BinaryIO, NamedTuple, TypeVar

from fsspec.caching import BlockCache
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from huggingface_hub.utils import httpx

from .downloading import (
    RefusedError,
    network_error,
    open_response,
    read_max_size,
    receive_pieces,
    receive_video,
    show_progress,
    tell_too_large,
)
from .sources import VideoReadError, is_http, public_url

T = TypeVar("T")
# First byte, and the byte behind the last one.
Span = tuple[int, int]

# Bytes that are fetched first: a short clip, or the start of a longer video with its tables.
FIRST_SIZE = 256 * 2**10
# In bytes, and how many are kept: what is read without having been announced is fetched in blocks.
_PASSING_BLOCKS = (64 * 2**10, 64)
BLOCKS_OF_STREAM = (4 * 2**20, 4)
# In bytes: what is fetched ahead is kept in blocks of this size.
BLOCK_SIZE = 16 * 2**10
# To fetch this many blocks more costs less than another request.
_WORTH_A_REQUEST = 4
# With a larger share of the file, the whole of it is fetched in one request.
_WORTH_THE_WHOLE = 0.6
# Requests at the same time.
_MOST_REQUESTS = 4
# A broken connection and a server in trouble may be better a moment later. Huggingface_hub tries the same statuses
# again, with the same waits in seconds, but more often.
_PASSING_STATUSES = (429, 500, 502, 503, 504)
WAITS = (1.0, 2.0)


@contextmanager
def open_ranges(url: str) -> Iterator[str | BinaryIO]:
    """
    Open the video of a URL, with nothing fetched ahead but its start.

    Args:
        url (`str`):
            A URL of `http(s)`, or of any protocol that fsspec knows and whose package is installed.

    Returns:
        `str` or `BinaryIO`: the path of a `file://` URL; of any other a [`RangeFile`], or a file that was fetched as a
        whole.

    Raises:
        `VideoReadError`: if the video cannot be fetched; also in the block, if a part of it could not.
        `ValueError`: if `HF_VIDEO_MAX_DOWNLOAD_SIZE` is not a positive integer.
    """
    name = public_url(url)
    with ExitStack() as stack:
        if is_http(url):
            opened: Any = _open_http(url)
        else:
            system, path = _find_system(url, name)
            if isinstance(system, LocalFileSystem):
                yield path
                return
            # The cache is that of `RangeFile`.
            remote = stack.enter_context(_call_file_system(name, lambda: system.open(path, "rb", cache_type="none")))
            opened = _call_file_system(name, lambda: FsspecFile(name, remote))
            if opened.size > (max_size := read_max_size()):
                raise VideoReadError(tell_too_large(name, max_size))
        try:
            yield opened
        except VideoReadError as error:
            if getattr(opened, "error", None) in (None, error):
                raise
            # What went wrong first is the reason for all that follows.
            raise opened.error from None
        # FFmpeg may have passed over it.
        if getattr(opened, "error", None) is not None:
            raise opened.error


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
            f"{name} cannot be read: {protocol}:// is not a protocol of files that fsspec knows, or the address is "
            "not complete. Expected http://, https://, s3://, hf://, ..., or a path."
        ) from error


def _call_file_system(name: str, function: Callable[[], T]) -> T:
    try:
        return function()
    except VideoReadError:
        raise
    except Exception as error:  # Each file system has errors of its own.
        raise network_error(name, error) from error


class RangeFile(io.RawIOBase):
    """
    A file whose bytes are fetched when they are read. What is known to be needed is fetched ahead, with `prefetch` or
    `fetch_whole`, and stays; of the other bytes, at most 4 MiB are kept, or 16 MiB of a stream.

    A `read` ends where the bytes at hand end, and may so return fewer bytes than asked for. An error of a fetch is
    raised by every later `read` too: FFmpeg passes over some errors, and would take the file for shorter than it is.

    Args:
        label (`str`):
            Name of the file in messages.
        size (`int`):
            Its size in bytes.
        start (`bytes`):
            Its first bytes, which have been fetched already.

    Attributes:
        error (`Exception`, *optional*): that of the first fetch that failed.
    """

    def __init__(self, label: str, size: int, start: bytes = b""):
        super().__init__()
        self.label = label
        self.size = size
        self.error: Exception | None = None
        self._position = 0
        # What was fetched ahead, by number.
        self._blocks: dict[int, memoryview] = {}
        self._keep(0, start)
        self._passing = self._make_cache(*_PASSING_BLOCKS)

    def fetch_range(self, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`. Raises `VideoReadError`."""
        raise NotImplementedError

    def _fetch_ranges(self, spans: list[Span]) -> list[bytes]:
        """The bytes of each span. Raises `VideoReadError`."""
        return [self.fetch_range(*span) for span in spans]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self.error is not None:
            raise self.error
        end = min(self._position + len(buffer), self.size)
        if self._position >= end:
            return 0
        number, offset = divmod(self._position, BLOCK_SIZE)
        if number in self._blocks:
            data = self._blocks[number][offset : offset + end - self._position]
        else:
            # No more than one block, for which one request is enough.
            block_size = self._passing.blocksize
            end = min(end, self._position - self._position % block_size + block_size)
            data = memoryview(self._passing._fetch(self._position, end))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def stream(self) -> None:
        """Prepare for reading from the start to the end: with fewer, larger requests."""
        self._passing = self._make_cache(*BLOCKS_OF_STREAM)

    def is_at_hand(self, start: int, end: int) -> bool:
        """Whether these bytes have been fetched ahead, up to the end of the file."""
        return all(number in self._blocks for number in self._numbers(start, end))

    def read_span(self, start: int, end: int) -> bytes:
        """All bytes from `start` to before `end`, or to the end of the file; they are fetched first, and stay."""
        self.prefetch([(start, end)])
        numbers = self._numbers(start, end)
        data = b"".join(self._blocks[number] for number in numbers)
        return data[start - numbers.start * BLOCK_SIZE :][: end - start]

    def prefetch(self, spans: Iterable[Span]) -> None:
        """Fetch what is needed next: what lies close together in a request, or the whole file if the spans are most of
        it. They may come in any order, overlap, and reach over the end of the file. Raises `VideoReadError`."""
        missing = {number for span in spans for number in self._numbers(*span)} - self._blocks.keys()
        if len(missing) * BLOCK_SIZE > _WORTH_THE_WHOLE * self.size:
            self.fetch_whole()
            return
        runs: list[list[int]] = []
        for number in sorted(missing):
            if runs and number - runs[-1][-1] <= _WORTH_A_REQUEST:
                runs[-1].append(number)
            else:
                runs.append([number])
        self._fetch_blocks(runs)

    def fetch_whole(self) -> None:
        """Fetch what is missing of the file, in one request. Raises `VideoReadError`."""
        missing = [number for number in self._numbers(0, self.size) if number not in self._blocks]
        self._fetch_blocks([missing] if missing else [])

    def _numbers(self, start: int, end: int) -> range:
        """The blocks that hold these bytes."""
        return range(start // BLOCK_SIZE, -(-min(end, self.size) // BLOCK_SIZE))

    def _fetch_blocks(self, runs: list[list[int]]) -> None:
        spans = [(run[0] * BLOCK_SIZE, min((run[-1] + 1) * BLOCK_SIZE, self.size)) for run in runs]
        for (start, _), data in zip(spans, self._call(spans) if spans else [], strict=True):
            self._keep(start, data)

    def _keep(self, start: int, data: bytes) -> None:
        for offset in range(0, len(data), BLOCK_SIZE):
            block = memoryview(data)[offset : offset + BLOCK_SIZE]
            # A block that has come in part is fetched again.
            if len(block) == BLOCK_SIZE or start + len(data) == self.size:
                self._blocks[(start + offset) // BLOCK_SIZE] = block

    def _call(self, spans: list[Span]) -> list[bytes]:
        if self.error is not None:
            raise self.error
        try:
            return self._fetch_ranges(spans)
        except VideoReadError as error:
            self.error = error
            raise

    def _make_cache(self, block_size: int, num_blocks: int) -> BlockCache:
        return BlockCache(block_size, self._fetch_block, self.size, maxblocks=num_blocks)

    def _fetch_block(self, start: int, end: int) -> bytes:
        return self._call([(start, min(end, self.size))])[0]


class FsspecFile(RangeFile):
    """An open file of fsspec."""

    def __init__(self, label: str, file: Any):
        self._file = file
        super().__init__(label, file.seek(0, io.SEEK_END))

    def fetch_range(self, start: int, end: int) -> bytes:
        def read() -> bytes:
            self._file.seek(start)
            return self._file.read(end - start)

        data = _call_file_system(self.label, read)
        if len(data) != end - start:
            raise VideoReadError(
                f"{self.label} cannot be read: {len(data)} bytes came of the range from {start} to {end - 1}. "
                "Has the file changed? Read it again."
            )
        return data


class _Version(NamedTuple):
    """What tells whether a file on a server is still the same."""

    size: int
    etag: str | None
    modified: str | None


class _HttpFile(RangeFile):
    """A file on a server that answers to ranges, from the answer to the request for its start: the response after
    redirects, its body, and the version that it states."""

    def __init__(self, url: str, response: Any, start: bytes, version: _Version):
        super().__init__(public_url(url), version.size, start)
        self._url = url
        self._version = version
        self._remember(response)

    def _remember(self, response: Any) -> None:
        """Redirects are not followed again for every range."""
        request = response.request
        self._target = str(request.url)
        is_signed_in = "Authorization" in request.headers
        self._target_headers = {"Authorization": request.headers["Authorization"]} if is_signed_in else {}

    def _fetch_ranges(self, spans: list[tuple[int, int]]) -> list[bytes]:
        if len(spans) == 1:
            return [self.fetch_range(*spans[0])]
        with ThreadPoolExecutor(min(_MOST_REQUESTS, len(spans))) as pool:
            return list(pool.map(lambda span: self.fetch_range(*span), spans))

    def fetch_range(self, start: int, end: int) -> bytes:
        # What a broken connection has brought is kept.
        received = bytearray()
        with show_progress(self.label, end - start) as progress:
            _try_again(lambda: self._receive(received, start, end, progress), is_known=True)
        return bytes(received)

    def _receive(self, received: bytearray, start: int, end: int, progress: Any) -> None:
        """Adds the rest of a range to what has been received of it."""
        start += len(received)
        target, headers = self._target, self._target_headers | _range_header(start, end)
        if self._version.etag and not self._version.etag.startswith("W/"):
            headers["If-Range"] = self._version.etag
        try:
            with open_response(target, headers=headers, name=self.label) as response:
                # The answer to `If-Range` for another version is the whole file.
                is_whole = response.status_code != HTTPStatus.PARTIAL_CONTENT
                if is_whole or _read_version(response, self.label, start, end) != self._version:
                    raise VideoReadError(f"{self.label} has changed on the server while it was read; read it again.")
                self._remember(response)
                for piece in _receive_range(response, self.label, start, end):
                    received += piece
                    progress.update(len(piece))
        except RefusedError as error:
            if target == self._url or error.status in _PASSING_STATUSES:
                raise
            # A signed address has expired.
            self._target, self._target_headers = self._url, {}
            self._receive(received, start - len(received), end, progress)


def _open_http(url: str) -> BinaryIO:
    """The video of a URL as a file of ranges at its start; as `io.BytesIO` if the server does not answer to ranges.
    Raises `VideoReadError`."""
    max_size = read_max_size()
    try:
        return _try_again(lambda: _open(url, max_size), is_known=False)
    except RefusedError as error:
        if error.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        # An empty file has no range.
        with open_response(url) as response:
            return receive_video(response, public_url(url), max_size)


def _open(url: str, max_size: int) -> Any:
    name = public_url(url)
    with open_response(url, headers=_range_header(0, FIRST_SIZE)) as response:
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            return receive_video(response, name, max_size)
        version = _read_version(response, name, 0, FIRST_SIZE)
        if version.size > max_size:
            raise VideoReadError(tell_too_large(name, max_size))
        end = min(FIRST_SIZE, version.size)
        start = b"".join(_receive_range(response, name, 0, end))
        return _HttpFile(url, response, start, version)


def _range_header(start: int, end: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-{end - 1}"}


def _read_version(response: Any, name: str, start: int, end: int) -> _Version:
    """The version that an answer states. Raises `VideoReadError` if it does not answer to a request for this range."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise VideoReadError(f"{_tell_wrong(name, start, end)} It compresses them as {encoding!r}.")
    stated = response.headers.get("Content-Range", "").strip()
    numbers = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", stated)
    first, last, size = map(int, numbers.groups()) if numbers else (-1, -1, 0)
    if (first, last) != (start, min(end, size) - 1):
        raise VideoReadError(f"{_tell_wrong(name, start, end)} It states the range {stated[:100]!r}.")
    return _Version(size, response.headers.get("ETag"), response.headers.get("Last-Modified"))


def _receive_range(response: Any, name: str, start: int, end: int) -> Iterator[bytes]:
    """The body of an answer that states this range. Raises `VideoReadError` if it has more or fewer bytes."""
    missing = end - start
    for piece in receive_pieces(response, name, missing, _tell_wrong(name, start, end) + " It sends more bytes."):
        missing -= len(piece)
        yield piece
    if missing:
        raise VideoReadError(f"{_tell_wrong(name, start, end)} It sends {missing} bytes fewer.")


def _tell_wrong(name: str, start: int, end: int) -> str:
    return (
        f"{name} cannot be downloaded: the server answers wrongly to a request for the bytes {start} to {end - 1}. "
        "Download the file yourself and give its path."
    )


def _try_again(request: Callable[[], T], is_known: bool) -> T:
    """The result of a request, which is sent again after errors that may pass. A server that `is_known` has answered
    before, so a connection that it refuses is such an error."""
    for wait in WAITS:
        try:
            return request()
        except VideoReadError as error:
            cause = error.__cause__
            is_broken = isinstance(cause, (httpx.NetworkError, httpx.RemoteProtocolError))
            if isinstance(cause, httpx.ConnectError):
                is_broken = is_known
            if not is_broken and getattr(error, "status", None) not in _PASSING_STATUSES:
                raise
        time.sleep(wait)
    return request()
