"""Stands before Gradio's server, and lets through only what the page itself sends, within limits."""

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .visitors import is_loopback

UNFINISHED_SECONDS = 600
LARGEST_MESSAGE = 2**20
_UPLOAD = "/gradio_api/upload"
_SENT = (_UPLOAD, "/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset")


@dataclass
class Gate:
    """
    Middleware that refuses what is not part of the page.

    - A page for this machine alone answers at the names of this machine alone. Another site could point its own name
      at this machine (DNS rebinding), and would then be the page for the browser.
    - A site in the same browser cannot upload: browsers send forms to any address, and say from where.
    - Gradio's server has more ways in, of which some leave files.
    - The files of a request count together, and the disk keeps space for two more of them.

    Attributes:
        app: what is behind.
        folder: where Gradio writes uploads while they come. Those that were broken off are removed when one comes
            later.
        max_size: bytes that an upload may have.
        only_local: whether the page is for this machine alone.
    """

    app: ASGIApp
    folder: Path
    max_size: int
    only_local: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            most = self._largest_body(scope["method"], scope["path"].removesuffix("/"), Headers(scope=scope))
        except HTTPException as error:
            await PlainTextResponse(error.detail, error.status_code)(scope, receive, send)
            return
        received = 0

        async def receive_within() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(413, "The request is too large.")
            return message

        await self.app(scope, receive_within, send)

    def _largest_body(self, method: str, path: str, headers: Headers) -> int:
        """The bytes that a request may have. Raises `HTTPException` if it is refused."""
        if self.only_local and not is_loopback(_host_name(headers.get("host", ""))):
            raise HTTPException(403, "This page is for its own machine alone: open it at localhost.")
        if method in ("GET", "HEAD", "OPTIONS"):
            return LARGEST_MESSAGE
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise HTTPException(403, "Another site cannot use this page.")
        if path not in _SENT and not path.startswith("/gradio_api/run/"):
            raise HTTPException(404, "The page has nothing here.")
        if path != _UPLOAD:
            return LARGEST_MESSAGE
        self._remove_unfinished()
        if shutil.disk_usage(self.folder).free < 2 * self.max_size:
            raise HTTPException(507, "There is no space for another video. Try again later.")
        return self.max_size + LARGEST_MESSAGE

    def _remove_unfinished(self) -> None:
        """Removes uploads of which nothing has come for a while. Whole ones are in folders of their own."""
        for file in self.folder.iterdir():
            with suppress(FileNotFoundError):
                if file.is_file() and file.stat().st_mtime < time.time() - UNFINISHED_SECONDS:
                    file.unlink()


def _host_name(host: str) -> str:
    """The name in a header `Host`, without a port; empty if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
