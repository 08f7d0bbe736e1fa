"""The part of the Hub's HTTP protocol that publishing and loading models takes, and its refusals.

The clients need `HF_HUB_DISABLE_XET=1`: large files travel by the LFS protocol. Signed links to them live on a second
origin, as on the Hub, and a token that reaches it is reported in `HubServer.errors`.
"""

import hmac
import secrets
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import routes  # noqa: F401  (registers what the handler answers)
from .handler import Handler
from .storage import Repository, User


class HubServer:
    """Serves repositories until the `with` block ends.

    Args:
        folder: for the contents of large files.
        tokens: users by their tokens.

    Attributes:
        endpoint: the value for `HF_ENDPOINT`.
        requests: `(method, path, status)` of every answer.
        errors: tracebacks of the server's own mistakes, and leaked tokens.
        fail: called with `(method, path)` before every answer; a test lets it raise `Refusal`.
    """

    def __init__(self, folder: Path, tokens: dict[str, User]) -> None:
        self.folder, self.tokens = folder, tokens
        self.repositories: dict[str, Repository] = {}
        self.requests: list[tuple[str, str, int]] = []
        self.errors: list[str] = []
        self.fail: Callable[[str, str], None] = lambda method, path: None
        self.lock = threading.Lock()
        self.secret = secrets.token_bytes(16)
        folder.mkdir(parents=True)
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in ("hub", "storage")]
        self.endpoint, self.storage_endpoint = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def __enter__(self) -> "HubServer":
        for server in self.servers:
            server.hub = self  # type: ignore[attr-defined]
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exception: Any) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def large_file_path(self, sha256: str) -> Path:
        return self.folder / sha256

    def signature(self, sha256: str) -> str:
        return hmac.new(self.secret, sha256.encode(), "sha256").hexdigest()

    def signed_link(self, sha256: str) -> str:
        return f"{self.storage_endpoint}/{sha256}?signature={self.signature(sha256)}"
