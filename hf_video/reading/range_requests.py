"""Reading the video of an `http(s)` URL by requests for ranges of its bytes (RFC 9110, 14)."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, BinaryIO, NamedTuple, TypeVar

from huggingface_hub.utils import httpx

from .range_file import FIRST_SIZE, RangeFile
from .video_downloading import (
    RefusedError,
    download_video,
    open_response,
    public_url,
    read_max_size,
    receive_pieces,
    receive_video,
    show_progress,
    tell_too_large,
)
from .video_opening import VideoReadError

T = TypeVar("T")

# Requests at the same time.
_MOST_REQUESTS = 4
# A broken connection and a server in trouble may be better a moment later. Huggingface_hub tries the same statuses
# again, with the same waits in seconds, but more often.
_PASSING_STATUSES = (429, 500, 502, 503, 504)
_WAITS = (1.0, 2.0)


class _Version(NamedTuple):
    """What tells whether a file on a server is still the same."""

    size: int
    etag: str | None
    modified: str | None


class HttpFile(RangeFile):
    """
    A file on a server that answers to ranges. It is opened by [`open_http`].

    Args:
        url (`str`):
            Its URL.
        response (`httpx.Response`):
            The answer to the request for its start, after redirects.
        start (`bytes`):
            The body of that answer.
        version (`tuple`):
            The version that the answer states.
    """

    def __init__(self, url: str, response: Any, start: bytes, version: _Version):
        super().__init__(public_url(url), version.size, start)
        self._url = url
        self._version = version
        self._whole: bytes | None = None
        self._remember(response)

    def _remember(self, response: Any) -> None:
        """Redirects are not followed again for every range."""
        request = response.request
        self._target = str(request.url)
        is_signed_in = "Authorization" in request.headers
        self._target_headers = {"Authorization": request.headers["Authorization"]} if is_signed_in else {}

    def _fetch_ranges(self, spans: list[tuple[int, int]]) -> list[bytes]:
        if len(spans) == 1:
            return [self._fetch_range(*spans[0])]
        with ThreadPoolExecutor(min(_MOST_REQUESTS, len(spans))) as pool:
            return list(pool.map(lambda span: self._fetch_range(*span), spans))

    def _fetch_range(self, start: int, end: int) -> bytes:
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
        if self._whole is not None:
            received += self._whole[start:end]
            return
        try:
            with open_response(target, headers=headers, name=self.label) as response:
                is_whole = response.status_code != HTTPStatus.PARTIAL_CONTENT
                version = _read_version(response, self.label, None if is_whole else (start, end))
                if version != self._version:
                    raise VideoReadError(f"{self.label} has changed on the server while it was read; read it again.")
                self._remember(response)
                if is_whole:
                    # The server answers to ranges no longer.
                    self._whole = receive_video(response, self.label, self.size).getvalue()
                    received += self._whole[start:end]
                    return
                for piece in _receive_range(response, self.label, start, end):
                    received += piece
                    progress.update(len(piece))
        except RefusedError as error:
            if target == self._url or error.status in _PASSING_STATUSES:
                raise
            # A signed address has expired.
            self._target, self._target_headers = self._url, {}
            self._receive(received, start - len(received), end, progress)


def open_http(url: str) -> BinaryIO:
    """
    Open the video of a URL.

    Args:
        url (`str`):
            A URL of `http` or `https`. At most 20 redirects are followed.

    Returns:
        `BinaryIO`: a [`HttpFile`] at its start; if the server does not answer to ranges, `io.BytesIO` of the file.

    Raises:
        `VideoReadError`: as [`download_video`]; also if the server answers wrongly to a request for a range.
        `ValueError`: if `HF_VIDEO_MAX_DOWNLOAD_SIZE` is no positive integer.
    """
    max_size = read_max_size()
    try:
        return _try_again(lambda: _open(url, max_size), is_known=False)
    except RefusedError as error:
        if error.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        # An empty file has no range.
        return download_video(url)


def _open(url: str, max_size: int) -> Any:
    name = public_url(url)
    with open_response(url, headers=_range_header(0, FIRST_SIZE)) as response:
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            return receive_video(response, name, max_size)
        version = _read_version(response, name, (0, FIRST_SIZE))
        if version.size > max_size:
            raise VideoReadError(tell_too_large(name, max_size))
        end = min(FIRST_SIZE, version.size)
        start = b"".join(_receive_range(response, name, 0, end))
        return HttpFile(url, response, start, version)


def _range_header(start: int, end: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-{end - 1}"}


def _read_version(response: Any, name: str, span: tuple[int, int] | None) -> _Version:
    """The version that an answer states. Raises `VideoReadError` if it is not that to a request for `span`."""
    etag, modified = response.headers.get("ETag"), response.headers.get("Last-Modified")
    if span is None:
        return _Version(int(response.headers.get("Content-Length", 0)), etag, modified)
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise VideoReadError(f"{_tell_wrong(name, *span)} It compresses them as {encoding!r}.")
    stated = response.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", stated.strip())
    if found is None:
        raise VideoReadError(f"{_tell_wrong(name, *span)} It states the range {stated[:100]!r}.")
    first, last, size = map(int, found.groups())
    if (first, last) != (span[0], min(span[1], size) - 1):
        raise VideoReadError(f"{_tell_wrong(name, *span)} It states the range {stated[:100]!r}.")
    return _Version(size, etag, modified)


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
    for wait in _WAITS:
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
