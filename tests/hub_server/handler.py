"""One HTTP request: who asks, what they may see, which route answers, and how a refusal looks."""

import json
import re
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from .storage import Repository, User

if TYPE_CHECKING:
    from .server import HubServer


class Refusal(Exception):
    """An answer other than success, in the headers and words by which the clients know it."""

    def __init__(self, status: int, message: str, code: str | None = None, commit: str | None = None) -> None:
        self.status, self.message = status, message
        headers = {"X-Error-Message": message, "X-Error-Code": code, "X-Repo-Commit": commit}
        self.headers = {name: value for name, value in headers.items() if value}


Route = tuple[str, re.Pattern, Callable[..., None]]
ROUTES: list[Route] = []


def route(methods: str, pattern: str) -> Callable:
    """Answers requests whose path matches; `{name}` matches up to a slash, `{repo}` a name with its namespace."""
    pattern = pattern.replace("{repo}", r"(?P<repo_id>[^/]+/[^/]+?)").replace("{path}", "(?P<path>.+)")
    compiled = re.compile(re.sub(r"\{([a-z_]+)\}", r"(?P<\1>[^/]+)", pattern))

    def register(answer: Callable) -> Callable:
        ROUTES.extend((method, compiled, answer) for method in methods.split())
        return answer

    return register


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_request(self) -> None:
        self.hub: HubServer = self.server.hub  # type: ignore[attr-defined]
        self.status = 0
        self.user: User | None = None
        url = urlsplit(self.path)
        # A data set is kept as a model is: here a name stands for one of them.
        place = re.sub("^/datasets/", "/", url.path.replace("/api/datasets/", "/api/models/"))
        try:
            self.body = self.read_body()
            self.hub.fail(self.command, url.path)
            self.user = self.authenticate()
            for method, pattern, answer in ROUTES:
                if method == self.command and (match := pattern.fullmatch(place)):
                    answer(self, **{name: unquote(value) for name, value in match.groupdict("").items()})
                    break
            else:
                raise Refusal(404, f"No route for {self.command} {url.path}")
        except Refusal as refusal:
            self.send(refusal.status, {"error": refusal.message}, refusal.headers)
        except Exception:
            # Not 5xx: the clients would repeat the request for half a minute.
            self.hub.errors.append(traceback.format_exc())
            self.send(400, {"error": "The test server failed, see HubServer.errors."})
        finally:
            self.hub.requests.append((self.command, url.path, self.status))

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def log_message(self, *arguments: Any) -> None:
        """Keeps the output of tests free of requests."""

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    def send(self, status: int = 200, content: Any = b"", headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and status == 200:
            first, last = int(wanted[1]), min(int(wanted[2] or len(body)), len(body) - 1)
            headers = {**(headers or {}), "Content-Range": f"bytes {first}-{last}/{len(body)}"}
            status, body = 206, body[first : last + 1]
        self.status = status
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def authenticate(self) -> User | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.hub.tokens[token] if token else None

    def may_access(self, namespace: str) -> bool:
        return self.user is not None and namespace in (self.user.name, *self.user.namespaces)

    def require_write(self, namespace: str) -> User:
        if self.user is None:
            raise Refusal(401, "Invalid username or password.")
        if self.user.role != "write":
            raise Refusal(403, "Forbidden: you must use a write token to upload to a repository.")
        if not self.may_access(namespace):
            raise Refusal(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')
        return self.user

    def find(self, repo_id: str, write: bool = False) -> Repository:
        """A repository that the user may see, or write to; one that they may not see does not exist."""
        repository, namespace = self.hub.repositories.get(repo_id), repo_id.split("/")[0]
        if repository is None or (repository.private and not self.may_access(namespace)):
            anonymous = self.user is None
            message = "Invalid username or password." if anonymous else "Repository not found"
            raise Refusal(401 if anonymous else 404, message, "RepoNotFound")
        if write:
            self.require_write(namespace)
        return repository
