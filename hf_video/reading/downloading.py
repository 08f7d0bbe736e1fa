"""Requests for a video over `http(s)`, within limits of time and size, and the sentences for errors of the network.

`HF_HUB_DOWNLOAD_TIMEOUT` of huggingface_hub is the longest time in seconds to wait for a server: for the connection,
for the first byte, and between bytes. `HF_VIDEO_MAX_DOWNLOAD_SIZE` is the largest size of a video in bytes.
"""

import io
import os
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from huggingface_hub import constants, get_session
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import httpx, tqdm

from .sources import VideoReadError, public_url

SIZE_VARIABLE = "HF_VIDEO_MAX_DOWNLOAD_SIZE"
# More than an hour of full HD. The video is held in memory.
DEFAULT_MAX_SIZE = 4 * 2**30
# As in browsers and huggingface_hub.
_MAX_REDIRECTS = 20
# In bytes per second. A server that sends less during the whole time limit has stalled.
SLOWEST_RATE = 1024
# In seconds. Shorter downloads show no progress.
UNSHOWN_SECONDS = 1.0


class RefusedError(VideoReadError):
    """The server answers with an error, whose number is `status`."""

    def __init__(self, name: str, response: Any):
        self.status = response.status_code
        status = f"{self.status} {response.reason_phrase}".strip()
        super().__init__(
            f"{name} cannot be downloaded: the server answers {status}. Check the address, or download the file "
            "yourself and give its path."
        )


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


@contextmanager
def open_response(
    url: str, client: Any = None, headers: dict[str, str] | None = None, name: str | None = None
) -> Iterator[Any]:
    """
    The answer to a request for a URL, whose body has not been read. Errors of the network in the block become
    `VideoReadError`.

    Args:
        url (`str`):
            A URL of `http` or `https`. At most 20 redirects are followed.
        client (`httpx.Client`, *optional*):
            Sends the requests; by default the client of huggingface_hub.
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
        with closing(_request(url, name, client or get_session(), headers or {})) as response:
            if not response.is_success:
                raise RefusedError(name, response)
            yield response
    except (httpx.HTTPError, OfflineModeIsEnabled) as error:
        raise network_error(name, error) from error


def _request(url: str, name: str, client: Any, headers: dict[str, str]) -> Any:
    """The open response after all redirects."""
    # Videos are compressed already.
    headers = headers | {"Accept-Encoding": "identity"}
    timeout = httpx.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    try:
        request = client.build_request("GET", url, headers=headers, timeout=timeout)
        # The client would read the whole body of every redirect, so redirects are followed here.
        for _ in range(_MAX_REDIRECTS + 1):
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


def receive_video(response: Any, name: str, max_size: int) -> io.BytesIO:
    """The body of the response to a request, at its start. On a terminal, a download of more than a second shows its
    progress. Raises what `receive_pieces` does."""
    video = io.BytesIO()
    with show_progress(name, _announced_size(response)) as progress:
        for piece in receive_pieces(response, name, max_size, tell_too_large(name, max_size)):
            video.write(piece)
            progress.update(len(piece))
    video.seek(0)
    return video


def show_progress(name: str, size: int | None) -> Any:
    """A bar of `size` bytes, on a terminal, if the download takes more than a moment."""
    return tqdm(total=size, unit="B", unit_scale=True, desc=name[-40:], delay=UNSHOWN_SECONDS, disable=None)


def receive_pieces(response: Any, name: str, max_size: int, too_large: str) -> Iterator[bytes]:
    """
    The body of the response to a request, piece by piece.

    Raises:
        `VideoReadError`: if it has more than `max_size` bytes, with the message `too_large`, or the server stalls.
    """
    seconds = constants.HF_HUB_DOWNLOAD_TIMEOUT
    if (_announced_size(response) or 0) > max_size:
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


def _announced_size(response: Any) -> int | None:
    """The number of bytes that the server announces; None if it does not, or if it counts compressed ones."""
    is_encoded = "Content-Encoding" in response.headers
    return None if is_encoded else int(response.headers.get("Content-Length", 0)) or None


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
