"""Videos by their address: http and https alone, within a size, and from no machine of a private network."""

import ipaddress
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from huggingface_hub.utils import httpx

from hf_video.reading.downloading import open_response, receive_pieces
from hf_video.reading.sources import VideoReadError, public_url

from .visitors import Ticket

MEGABYTE = 2**20
_LONGEST_NAME = 80
# Addresses of IPv6 that a network may turn into any address of IPv4: RFC 6052, RFC 8215 and RFC 4291, 2.5.5.1.
_TRANSLATED = [ipaddress.ip_network(each) for each in ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")]


def fetch_video(url: str, folder: Path, max_size: int, only_public: bool, ticket: Ticket) -> Iterator[Path | int]:
    """
    The bytes of a video so far, after each megabyte, and last its file. Of an unfinished one nothing stays.

    Args:
        url: its address.
        folder: an empty folder for the file, which is named as in the address.
        max_size: most bytes.
        only_public: whether machines of this network, and this one, are refused. Each address that a name stands for
            and each redirect are checked when the connection is made.
        ticket: ends the work between two pieces.

    Raises:
        ValueError: it is no address of http or https.
        VideoReadError: the video cannot be fetched, is too large, or is on a machine that is refused.
        Cancelled: the work was cancelled.
    """
    check_address(url)
    name, file = public_url(url), folder / _file_name(url)
    is_whole = False
    try:
        with (
            closing(_client(only_public)) as client,
            open_response(url, client) as response,
            file.open("xb") as output,
        ):
            pieces, told = receive_pieces(response, name, max_size, _too_large(name, max_size)), 0
            for piece in ticket.until_cancelled(pieces):
                output.write(piece)
                if output.tell() - told >= MEGABYTE:
                    told = output.tell()
                    yield told
        is_whole = True
    finally:
        if not is_whole:
            shutil.rmtree(folder, ignore_errors=True)
    yield file


def check_address(url: str) -> None:
    """
    Refuses what is no address of http or https, such as a path on this machine.

    Raises:
        ValueError: it is none.
    """
    try:
        address = urlsplit(url)
        is_address = address.scheme in ("http", "https") and bool(address.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError("This is no address of a video: it begins with http:// or https://, then the server's name.")


def is_public(address: str) -> bool:
    """Whether an address of IPv4 or IPv6 is one of the internet, and of a single machine."""
    number = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(number, "ipv4_mapped", None) or getattr(number, "sixtofour", None) or number
    is_translated = any(number in network for network in _TRANSLATED)
    is_site_local = getattr(number, "is_site_local", False)
    return inner.is_global and number.is_global and not (inner.is_multicast or is_translated or is_site_local)


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, which no other machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _PublicNetwork(httpx.HTTPTransport):
    """Sends each request to a public address of its host, which is looked up once: a name that stands for another
    machine at the second look is not followed."""

    def handle_request(self, request: Any) -> Any:
        host, port = request.url.host, request.url.port or {"http": 80, "https": 443}[request.url.scheme]
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpx.ConnectError(f"{host} has no address", request=request) from error
        addresses = [str(each[4][0]) for each in found]
        if not all(is_public(address) for address in addresses):
            raise VideoReadError(f"{host} is a machine of a private network, from which this page fetches nothing.")
        # The request itself keeps its address, from which the client follows a relative redirect.
        extensions = {**request.extensions, "sni_hostname": host}
        for address in dict.fromkeys(addresses):
            url = request.url.copy_with(host=address)
            pinned = httpx.Request(
                request.method, url, headers=request.headers, stream=request.stream, extensions=extensions
            )
            try:
                return super().handle_request(pinned)
            except httpx.ConnectError as error:
                failure = error
        raise failure


def _client(only_public: bool) -> Any:
    # Proxies of the environment would look up names themselves.
    return httpx.Client(transport=_PublicNetwork()) if only_public else httpx.Client()


def _file_name(url: str) -> str:
    """The last part of an address as the name of a file."""
    name = re.sub(r"[^\w.-]+", "_", unquote(urlsplit(url).path).rpartition("/")[2]).strip("._")
    return name[-_LONGEST_NAME:] or "video"


def _too_large(name: str, max_size: int) -> str:
    return f"{name} is larger than {max_size / MEGABYTE:,.0f} MB, the most that this page takes."
