"""Users, and what the server keeps: commits, branches and tags of repositories."""

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class User:
    """The owner of a token; `namespaces` are those besides their own name that they may write to."""

    name: str
    role: str = "write"
    namespaces: tuple[str, ...] = ()


class File(NamedTuple):
    """A file of a commit. `oid` names its content. A large one has a `sha256`, and its content is elsewhere."""

    oid: str
    size: int
    content: bytes = b""
    sha256: str | None = None

    @classmethod
    def make(cls, content: bytes) -> "File":
        return cls(hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest(), len(content), content)

    @property
    def etag(self) -> str:
        return self.sha256 or self.oid


@dataclass
class Repository:
    """Commits are the files that they have, by path."""

    private: bool = False
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commit("main", {})

    def commit(self, branch: str, files: dict[str, File]) -> str:
        """Moves a branch to a new commit, and returns its id."""
        oid = self.branches[branch] = secrets.token_hex(20)
        self.commits[oid] = files
        return oid

    def resolve(self, revision: str) -> str | None:
        """The commit of a branch, a tag, or a commit id; None if there is none."""
        found = self.branches.get(revision) or self.tags.get(revision)
        return found or (revision if revision in self.commits else None)
