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
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from huggingface_hub import constants, get_session
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import httpx

from .sources import Source, VideoReadError

SIZE_VARIABLE = "HF_VIDEO_MAX_DOWNLOAD_SIZE"
# More than an hour of full HD.
_DEFAULT_MAX_SIZE = 4 * 2**30
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
WAITS = (1.0, 2.0)


@contextmanager
def open_address(source: Source) -> Iterator[Any]:
    """The path of a `file://` URL; of any other a [`RemoteFile`], or a file that was fetched as a whole. Raises
    `VideoReadError` if the video, or in the block a part of it, cannot be fetched."""
    # A wrong limit is told before anything is fetched.
    read_max_size()
    with ExitStack() as stack:
        opened: Any = _open_http(source.place, source.name) if source.is_http else _open_file_system(source, stack)
        try:
            yield opened
        except VideoReadError as error:
            # What went wrong first is the reason for all that follows.
            first = getattr(opened, "error", None) or error
            raise first from first.__cause__
        # FFmpeg may have passed over it.
        if getattr(opened, "error", None):
            raise opened.error


class RemoteFile:
    """
    A file of `size` bytes, which are fetched when they are read: in larger and larger pieces where reading goes on.
    The latest 64 MiB are kept. A `read` ends where a piece ends, and may so return fewer bytes than asked for.
    `fetch` gives the bytes between two places; `start` are the first ones, which have come already.
    """

    def __init__(self, name: str, size: int, fetch: Callable[[int, int], bytes], start: bytes = b""):
        if size > read_max_size():
            raise _too_large(name)
        # `ahead` is how many bytes the next fetch brings, if it is known how many are needed.
        self.name, self.size, self.ahead = name, size, 0
        # That of the first fetch that failed. FFmpeg passes over some errors: every later `read` raises it too.
        self.error: VideoReadError | None = None
        self._fetch, self._position = fetch, 0
        if len(start) < size <= SMALL_FILE:
            start += fetch(len(start), size)
        # Their places and bytes, the latest at the end.
        self._pieces: list[tuple[int, bytes]] = [(0, start)]

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def read(self, size: int) -> bytes:
        if self.error is not None:
            raise self.error
        data = bytes(self._at_hand()[:size]) if self._position < self.size else b""
        self._position += len(data)
        return data

    def hollow(self) -> "RemoteFile | None":
        """The file with zeros where its bytes have not come; `None` if some that came have been dropped since."""
        if self._pieces[0][0] != 0:
            return None
        hollow = RemoteFile(self.name, self.size, lambda start, end: bytes(end - start))
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
                raise _other_bytes(self.name)
        except VideoReadError as error:
            self.error = error
            raise
        self._pieces.append((place, data))
        while sum(len(data) for _, data in self._pieces) > _KEPT:
            self._pieces.pop(0)
        return memoryview(data)


def _open_file_system(source: Source, stack: ExitStack) -> str | RemoteFile:
    """The path of a URL of a local file, or a file of another file system, which `stack` closes."""
    url, name = source.place, source.name
    if "::" in url:
        raise VideoReadError(f"{name} leads through several file systems: give the open file of fsspec.open(URL).")
    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        raise VideoReadError(f"{name} cannot be read: {error}.") from error
    except ValueError as error:
        protocol = url.partition("://")[0]
        raise VideoReadError(f"{name}: {protocol}:// is not a protocol of files that fsspec knows.") from error
    if isinstance(system, LocalFileSystem):
        if not os.path.isfile(path):
            raise VideoReadError(f"{name} does not exist.")
        return path

    def fetch(start: int, end: int) -> bytes:
        # Each file system has errors of its own.
        with _telling(name, Exception):
            file.seek(start)
            return file.read(end - start)

    with _telling(name, Exception):
        # `RemoteFile` keeps what was read.
        file = stack.enter_context(system.open(path, "rb", cache_type="none"))
        size = file.seek(0, io.SEEK_END)
    return RemoteFile(name, size, fetch)


def _open_http(url: str, name: str) -> io.BytesIO | RemoteFile:
    """A file of a server that answers to ranges, and always with the version of the first answer; of another one the
    whole video in memory."""
    with open_response(url, name, {"Range": f"bytes=0-{FIRST_SIZE - 1}"}) as response:
        if response.status_code != 206:
            return _receive(response, read_max_size(), _too_large(name))
        version = _read_version(response, name, 0)
        start = _receive(response, min(FIRST_SIZE, version[0]), _other_bytes(name)).getvalue()
        request = response.request
    first: tuple[str, dict[str, str]] = (url, {})
    # Redirects are not followed again.
    target = str(request.url), {key: request.headers[key] for key in ("Authorization",) if key in request.headers}

    def fetch(start: int, end: int) -> bytes:
        nonlocal target
        waits = list(WAITS)
        while True:
            url, headers = target
            try:
                with open_response(url, name, headers | {"Range": f"bytes={start}-{end - 1}"}) as response:
                    if _read_version(response, name, start) != version:
                        raise _other_bytes(name)
                    return _receive(response, end - start, _other_bytes(name)).getvalue()
            except VideoReadError as error:
                passing = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.HTTPStatusError)
                if not waits or not isinstance(error.__cause__, passing):
                    raise
                if isinstance(error.__cause__, httpx.HTTPStatusError):
                    target = first  # a signed address may have expired
            time.sleep(waits.pop(0))

    return RemoteFile(name, version[0], fetch, start)


def _read_version(response: Any, name: str, start: int) -> tuple[int, str | None, str | None]:
    """What tells whether a file is still the same: its size, and what the server says of its version."""
    stated = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", response.headers.get("Content-Range", "").strip())
    if stated is None or int(stated[1]) != start:
        raise _other_bytes(name)
    return int(stated[2]), response.headers.get("ETag"), response.headers.get("Last-Modified")


@contextmanager
def open_response(url: str, name: str, headers: dict[str, str] | None = None) -> Iterator[Any]:
    """The answer to a request for a URL of `http(s)`, whose body has not been read. Raises `VideoReadError`, in the
    block too; its cause is the error of httpx."""
    with (
        _telling(name, httpx.HTTPError, OfflineModeIsEnabled),
        closing(_request(url, name, headers or {})) as response,
    ):
        if not response.is_success:
            told = f"the server answers {response.status_code} {response.reason_phrase}".strip()
            raise httpx.HTTPStatusError(told, request=response.request, response=response)
        yield response


def _request(url: str, name: str, headers: dict[str, str]) -> Any:
    """The open response after all redirects."""
    client, timeout = get_session(), httpx.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    try:
        # Videos are compressed already.
        headers = headers | {"Accept-Encoding": "identity"}
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
        raise VideoReadError(f"{name} is not a valid address of http:// or https://.") from error
    raise httpx.TooManyRedirects(f"it redirects more than {_MAX_REDIRECTS} times", request=request)


def _receive(response: Any, most: int, too_much: VideoReadError) -> io.BytesIO:
    """The body of a response. Raises `too_much` if it has more than `most` bytes, and httpx's error if it stalls."""
    if "Content-Encoding" not in response.headers and int(response.headers.get("Content-Length", 0)) > most:
        raise too_much
    body, since, received = io.BytesIO(), time.monotonic(), 0
    for piece in response.iter_bytes():
        if body.tell() + len(piece) > most:
            raise too_much
        body.write(piece)
        elapsed = time.monotonic() - since
        if elapsed > constants.HF_HUB_DOWNLOAD_TIMEOUT:
            if response.num_bytes_downloaded - received < SLOWEST_RATE * elapsed:
                raise httpx.ReadTimeout("")
            since, received = time.monotonic(), response.num_bytes_downloaded
    return body


@contextmanager
def _telling(name: str, *kinds: type[Exception]) -> Iterator[None]:
    """What httpx, huggingface_hub or a file system of fsspec raises in the block becomes `VideoReadError`."""
    try:
        yield
    except kinds as error:
        if isinstance(error, FileNotFoundError):
            raise VideoReadError(f"{name} does not exist.") from error
        if isinstance(error, OfflineModeIsEnabled):
            reason = "downloaded in offline mode: unset HF_HUB_OFFLINE"
        elif isinstance(error, httpx.TimeoutException):
            silence = f"{constants.HF_HUB_DOWNLOAD_TIMEOUT} s (HF_HUB_DOWNLOAD_TIMEOUT)"
            reason = f"downloaded: the server sent nothing, or next to nothing, for {silence}. Try again"
        elif isinstance(error, httpx.HTTPError):
            reason = f"downloaded: {error}. Check the address and the network"
        else:
            # A signature or a token stands in the query of an address.
            text = re.sub(r"\?\S+", "?...", str(error))[:300]
            reason = f"read: {type(error).__name__}: {text}"
        raise VideoReadError(f"{name} cannot be {reason}, or give the path of a file.") from error


def _other_bytes(name: str) -> VideoReadError:
    return VideoReadError(
        f"{name} has changed on the server while it was read, or other bytes come than are asked for."
    )


def _too_large(name: str) -> VideoReadError:
    return VideoReadError(
        f"{name} cannot be downloaded: it is larger than {read_max_size():,} bytes; {SIZE_VARIABLE}=BYTES allows more."
    )


def read_max_size() -> int:
    """The largest size of a download in bytes, from the environment."""
    text = os.environ.get(SIZE_VARIABLE) or str(_DEFAULT_MAX_SIZE)
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{SIZE_VARIABLE}={text!r} must be a positive number of bytes.")
    return int(text)
