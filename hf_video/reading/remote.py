"""Videos behind addresses, as files whose bytes are fetched when FFmpeg reads them.

`http(s)` is fetched by requests for ranges (RFC 9110, 14), every other protocol by the file system of fsspec that
knows it. FFmpeg itself opens no address: by default its own http trusts any certificate, and loses packets without an
error where a server keeps connections open.

`HF_HUB_DOWNLOAD_TIMEOUT` of huggingface_hub is the longest time in seconds to wait for a server: for the connection,
for the first byte, and between bytes. `HF_VIDEO_MAX_DOWNLOAD_SIZE` is the largest size of a video in bytes.
"""

import io
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from typing import Any, BinaryIO

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from huggingface_hub import constants, get_session
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import httpx

from .sources import Source, VideoReadError, public_url

SIZE_VARIABLE = "HF_VIDEO_MAX_DOWNLOAD_SIZE"
# More than an hour of full HD.
DEFAULT_MAX_SIZE = 4 * 2**30
# As in browsers and huggingface_hub.
_MAX_REDIRECTS = 20
# In bytes per second. A server that sends less during the whole time limit has stalled.
SLOWEST_RATE = 1024
# All sizes are in bytes. What is fetched first: a short clip, or the start of a longer video.
FIRST_SIZE = 256 * 2**10
# A smaller file is fetched as a whole.
SMALL_FILE = 2**20
# The smallest and the largest piece that is fetched, and how much of the latest is kept.
_PIECES = (64 * 2**10, 4 * 2**20)
_KEPT = 64 * 2**20
# A broken connection and a server in trouble may be better a moment later, in seconds.
_PASSING_STATUSES = (429, 500, 502, 503, 504)
WAITS = (1.0, 2.0)


class RefusedError(VideoReadError):
    """The server answers with an error, whose number is `status`."""

    def __init__(self, name: str, response: Any):
        self.status = response.status_code
        status = f"{self.status} {response.reason_phrase}".strip()
        super().__init__(
            f"{name} cannot be downloaded: the server answers {status}. Check the address, or download the file "
            "yourself and give its path."
        )


@contextmanager
def open_address(source: Source) -> Iterator[Any]:
    """
    Open the video of a URL of `http(s)`, or of any protocol that fsspec knows and whose package is installed.

    Returns:
        `str` or `BinaryIO`: the path of a `file://` URL; of any other a [`RemoteFile`], or if the server does not
        answer to ranges, a file that was fetched as a whole.

    Raises:
        `VideoReadError`: if the video cannot be fetched; also in the block, if a part of it could not.
        `ValueError`: if `HF_VIDEO_MAX_DOWNLOAD_SIZE` is not a positive integer.
    """
    url, name, max_size = source.place, source.name, read_max_size()
    with ExitStack() as stack:
        opened = _open_http(url, max_size) if source.is_http else _open_file_system(url, name, stack)
        if not isinstance(opened, RemoteFile):
            yield opened
            return
        if opened.size > max_size:
            raise VideoReadError(tell_too_large(name, max_size))
        if opened.size <= SMALL_FILE:
            opened.ahead = opened.size
            opened.readall()
        try:
            yield opened
        except VideoReadError as error:
            # What went wrong first is the reason for all that follows.
            first = opened.error or error
            raise first from first.__cause__
        # FFmpeg may have passed over it.
        if opened.error is not None:
            raise opened.error


class RemoteFile(io.RawIOBase):
    """
    A file whose bytes are fetched when they are read: in larger and larger pieces where reading goes on. The latest
    64 MiB are kept.

    A `read` ends where a piece ends, and may so return fewer bytes than asked for. An error of a fetch is raised by
    every later `read` too: FFmpeg passes over some errors, and would take the file for shorter than it is.

    Args:
        label (`str`):
            Name of the file in messages.
        size (`int`):
            Its size in bytes.
        fetch (`Callable`):
            Called with two places, gives the bytes from the first to before the second.
        start (`bytes`):
            Its first bytes, which have been fetched already.

    Attributes:
        error (`Exception`, *optional*): that of the first fetch that failed.
        ahead (`int`): how many bytes the next fetch brings, if it is known how many are needed.
    """

    def __init__(self, label: str, size: int, fetch: Callable[[int, int], bytes], start: bytes = b""):
        super().__init__()
        self.label, self.size = label, size
        self.error: Exception | None = None
        self.ahead = 0
        self._fetch = fetch
        self._position = 0
        # Their places and bytes, the latest at the end.
        self._pieces: list[tuple[int, bytes]] = [(0, start)]

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
        if self._position >= self.size:
            return 0
        data = self._at_hand()[: len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def hollow(self) -> "RemoteFile | None":
        """The file with zeros where its bytes have not come; `None` if some that came have been dropped since."""
        if self._pieces[0][0] != 0:
            return None
        hollow = RemoteFile(self.label, self.size, lambda start, end: bytes(end - start))
        hollow._pieces = list(self._pieces)
        return hollow

    def holds(self, mark: bytes) -> bool:
        """Whether bytes stand in what has come."""
        return mark in b"".join(data for _, data in sorted(self._pieces))

    def _at_hand(self) -> memoryview:
        """Bytes from the position on; fetched, if there are none."""
        place = self._position
        for start, data in reversed(self._pieces):
            if start <= place < start + len(data):
                return memoryview(data)[place - start :]
        read_on = max((len(data) for start, data in self._pieces if start + len(data) == place), default=0)
        smallest, largest = _PIECES
        size, self.ahead = min(max(self.ahead or 2 * read_on, smallest), largest), 0
        end = min([place + size, self.size, *(start for start, _ in self._pieces if start > place)])
        try:
            data = self._fetch(place, end)
            if len(data) != end - place:
                raise VideoReadError(
                    f"{self.label} cannot be read: {len(data)} bytes came of the range from {place} to {end - 1}. "
                    "Has the file changed? Read it again."
                )
        except VideoReadError as error:
            self.error = error
            raise
        self._pieces.append((place, data))
        while sum(len(data) for _, data in self._pieces) > _KEPT:
            self._pieces.pop(0)
        return memoryview(data)


def _open_file_system(url: str, name: str, stack: ExitStack) -> str | RemoteFile:
    """The path of a URL of a local file, or a file of another file system, which `stack` closes."""
    if "::" in url:
        raise VideoReadError(
            f"{name} leads through several file systems, which is not read by ranges. Open the file yourself, with "
            "fsspec.open(URL), and give the open file."
        )
    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        raise VideoReadError(f"{name} cannot be read: {error}.") from error
    except ValueError as error:
        protocol = url.partition("://")[0]
        raise VideoReadError(
            f"{name} cannot be read: {protocol}:// is not a protocol of files that fsspec knows, or the address is "
            "not complete. Expected http://, https://, s3://, hf://, ..., or a path."
        ) from error
    if isinstance(system, LocalFileSystem):
        if not os.path.isfile(path):
            raise VideoReadError(f"{name} does not exist.")
        return path

    def fetch(start: int, end: int) -> bytes:
        try:
            file.seek(start)
            return file.read(end - start)
        except Exception as error:  # Each file system has errors of its own.
            raise network_error(name, error) from error

    try:
        # `RemoteFile` keeps what was read.
        file = stack.enter_context(system.open(path, "rb", cache_type="none"))
        size = file.seek(0, io.SEEK_END)
    except Exception as error:
        raise network_error(name, error) from error
    return RemoteFile(name, size, fetch)


def _open_http(url: str, max_size: int) -> BinaryIO | RemoteFile:
    """A file of a server that answers to ranges; of another one the whole video in memory."""
    name = public_url(url)
    with open_response(url, _range_header(0, FIRST_SIZE)) as response:
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            return io.BytesIO(b"".join(receive_pieces(response, name, max_size, tell_too_large(name, max_size))))
        size = _read_version(response, name, 0)[0]
        source = _HttpRanges(url, response)
        end = min(FIRST_SIZE, size)
        return RemoteFile(name, size, source.fetch, source.receive(response, 0, end))


class _HttpRanges:
    """Ranges of a file on a server, of the version that the first answer states. Redirects are not followed again."""

    def __init__(self, url: str, response: Any):
        self._name = public_url(url)
        self._version = _read_version(response, self._name, 0)
        request = response.request
        signed_in = {name: request.headers[name] for name in ("Authorization",) if name in request.headers}
        self._first: tuple[str, dict[str, str]] = (url, {})
        self._target = (str(request.url), signed_in)

    def fetch(self, start: int, end: int) -> bytes:
        for wait in (*WAITS, None):
            url, headers = self._target
            try:
                with open_response(url, headers | _range_header(start, end), self._name) as response:
                    return self.receive(response, start, end)
            except VideoReadError as error:
                is_broken = isinstance(error.__cause__, (httpx.NetworkError, httpx.RemoteProtocolError))
                may_pass = is_broken or getattr(error, "status", None) in _PASSING_STATUSES
                # A signed address may have expired.
                is_expired = isinstance(error, RefusedError) and self._target != self._first
                if wait is None or not (may_pass or is_expired):
                    raise
            self._target = self._first
            time.sleep(wait if may_pass else 0)
        raise AssertionError("The last try returns or raises.")

    def receive(self, response: Any, start: int, end: int) -> bytes:
        is_part = response.status_code == HTTPStatus.PARTIAL_CONTENT
        if not is_part or _read_version(response, self._name, start) != self._version:
            raise VideoReadError(f"{self._name} has changed on the server while it was read; read it again.")
        return b"".join(receive_pieces(response, self._name, end - start, _tell_wrong(self._name)))


def _range_header(start: int, end: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-{end - 1}"}


def _read_version(response: Any, name: str, start: int) -> tuple[int, str | None, str | None]:
    """What tells whether a file is still the same: its size, and what the server says of its version. Raises
    `VideoReadError` for an answer to another range."""
    stated = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", response.headers.get("Content-Range", "").strip())
    if stated is None or int(stated[1]) != start:
        raise VideoReadError(_tell_wrong(name))
    return int(stated[2]), response.headers.get("ETag"), response.headers.get("Last-Modified")


def _tell_wrong(name: str) -> str:
    return (
        f"{name} cannot be downloaded: the server answers with other bytes than it was asked for. Download the file "
        "yourself and give its path."
    )


@contextmanager
def open_response(url: str, headers: dict[str, str] | None = None, name: str | None = None) -> Iterator[Any]:
    """
    The answer to a request for a URL, whose body has not been read. Errors of the network in the block become
    `VideoReadError`.

    Args:
        url (`str`):
            A URL of `http` or `https`. At most 20 redirects are followed.
        headers (`dict[str, str]`, *optional*):
            Further headers of the request.
        name (`str`, *optional*):
            Name of the video in messages; by default the URL without what may hold keys.

    Raises:
        `RefusedError`: if the server refuses.
        `VideoReadError`: if the URL is not valid, the server cannot be reached, stalls or breaks off, or
            huggingface_hub is in offline mode.
    """
    name = name or public_url(url)
    try:
        with closing(_request(url, name, headers or {})) as response:
            if not response.is_success:
                raise RefusedError(name, response)
            yield response
    except (httpx.HTTPError, OfflineModeIsEnabled) as error:
        raise network_error(name, error) from error


def _request(url: str, name: str, headers: dict[str, str]) -> Any:
    """The open response after all redirects."""
    # Videos are compressed already.
    headers = headers | {"Accept-Encoding": "identity"}
    timeout = httpx.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    client = get_session()
    try:
        request = client.build_request("GET", url, headers=headers, timeout=timeout)
        # The client would read the whole body of every redirect, so redirects are followed here.
        for _ in range(_MAX_REDIRECTS + 1):
            try:
                response = client.send(request, stream=True, follow_redirects=False)
            except httpx.RemoteProtocolError:
                # The server may have closed a kept connection at this moment; it gets the request on a new one.
                response = client.send(request, stream=True, follow_redirects=False)
            if response.next_request is None:
                return response
            response.close()
            request = response.next_request
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, ValueError, OverflowError) as error:
        raise VideoReadError(
            f"{name} is not a valid address; expected http://HOST/PATH or https://HOST/PATH."
        ) from error
    raise httpx.TooManyRedirects("", request=request)


def receive_pieces(response: Any, name: str, max_size: int, too_large: str) -> Iterator[bytes]:
    """
    The body of the response to a request, piece by piece.

    Raises:
        `VideoReadError`: if it has more than `max_size` bytes, with the message `too_large`, or the server stalls.
    """
    seconds = constants.HF_HUB_DOWNLOAD_TIMEOUT
    if "Content-Encoding" not in response.headers and int(response.headers.get("Content-Length", 0)) > max_size:
        raise VideoReadError(too_large)
    total, window_start, window_bytes = 0, time.monotonic(), 0
    for piece in response.iter_bytes():
        total += len(piece)
        if total > max_size:
            raise VideoReadError(too_large)
        yield piece
        elapsed = time.monotonic() - window_start
        if elapsed > seconds:
            if response.num_bytes_downloaded - window_bytes < SLOWEST_RATE * elapsed:
                raise network_error(name, httpx.ReadTimeout(""))
            window_start, window_bytes = time.monotonic(), response.num_bytes_downloaded


def network_error(name: str, error: Exception) -> VideoReadError:
    """The error to raise for a video that cannot be fetched: the sentence for what httpx, huggingface_hub or a file
    system of fsspec, each of which has errors of its own, has raised."""
    if isinstance(error, httpx.TimeoutException):
        reason = (
            f"the server sent nothing, or next to nothing, for {constants.HF_HUB_DOWNLOAD_TIMEOUT} s. Try again, wait "
            "longer with HF_HUB_DOWNLOAD_TIMEOUT=SECONDS, or download the file yourself and give its path."
        )
    elif isinstance(error, OfflineModeIsEnabled):
        return VideoReadError(
            f"{name} cannot be downloaded in offline mode. Unset HF_HUB_OFFLINE, or give the path of a file."
        )
    elif isinstance(error, httpx.TooManyRedirects):
        reason = f"it redirects more than {_MAX_REDIRECTS} times. Check the address."
    elif isinstance(error, httpx.HTTPError):
        reason = f"{error}. Check the address and the network, or give the path of a file."
    elif isinstance(error, FileNotFoundError):
        return VideoReadError(f"{name} does not exist.")
    else:
        # A signature or a token stands in the query of an address.
        text = re.sub(r"\?\S+", "?...", str(error))[:300]
        return VideoReadError(f"{name} cannot be read: {type(error).__name__}: {text}")
    return VideoReadError(f"{name} cannot be downloaded: {reason}")


def tell_too_large(name: str, max_size: int) -> str:
    """The message of the error for a video of more than `max_size` bytes."""
    return (
        f"{name} cannot be downloaded: it is larger than {max_size:,} bytes. Allow more with {SIZE_VARIABLE}=BYTES, "
        "or download the file yourself and give its path."
    )


def read_max_size() -> int:
    """The largest size of a download in bytes, from the environment."""
    text = os.environ.get(SIZE_VARIABLE) or str(DEFAULT_MAX_SIZE)
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{SIZE_VARIABLE}={text!r} must be a positive number of bytes.")
    return int(text)
