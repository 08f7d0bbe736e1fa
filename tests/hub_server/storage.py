"""Repositories on disk, as the Hub keeps them: commits, branches, tags, and large files by their SHA-256."""

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# What the Hub's default .gitattributes sends to large file storage whatever its size.
LARGE_FILE_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".npy", ".npz", ".zip", ".gz")
LARGE_FILE_SIZE = 10 * 2**20


@dataclass
class File:
    """A file of a commit: `oid` names its content, `sha256` is set where that is a large file."""

    oid: str
    size: int
    sha256: str | None = None

    @property
    def etag(self) -> str:
        return self.sha256 or self.oid


@dataclass
class Commit:
    parent: str | None
    title: str
    author: str
    files: dict[str, File]


@dataclass
class Repository:
    """One model repository in `folder`; `save` makes changes of its fields last."""

    folder: Path
    private: bool = False
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> "Repository | None":
        state = folder / "repository.json"
        return cls(folder, **json.loads(state.read_text())) if state.is_file() else None

    @classmethod
    def create(cls, folder: Path, private: bool, author: str) -> "Repository":
        repository = cls(folder, private)
        (folder / "commits").mkdir(parents=True)
        (folder / "contents").mkdir()
        repository.branches["main"] = repository.commit(Commit(None, "initial commit", author, {}))
        repository.save()
        return repository

    def save(self) -> None:
        state = {"private": self.private, "branches": self.branches, "tags": self.tags}
        temporary = self.folder / f".{secrets.token_hex(4)}"
        temporary.write_text(json.dumps(state))
        temporary.replace(self.folder / "repository.json")

    def commit(self, commit: Commit) -> str:
        """Stores a commit and returns its id; no branch moves."""
        content = json.dumps(asdict(commit), sort_keys=True)
        oid = git_oid("commit", content.encode())
        (self.folder / "commits" / oid).write_text(content)
        return oid

    def read_commit(self, oid: str) -> Commit:
        content: dict[str, Any] = json.loads((self.folder / "commits" / oid).read_text())
        return Commit(**content | {"files": {path: File(**file) for path, file in content["files"].items()}})

    def resolve(self, revision: str) -> str | None:
        """The commit of a branch, a tag, or a commit id; None if there is none."""
        found = self.branches.get(revision) or self.tags.get(revision)
        is_commit = len(revision) == 40 and revision.isalnum() and (self.folder / "commits" / revision).is_file()
        return found or (revision if is_commit else None)

    def add_content(self, content: bytes) -> File:
        file = File(git_oid("blob", content), len(content))
        self.content_path(file).write_bytes(content)
        return file

    def content_path(self, file: File) -> Path:
        return self.folder / "contents" / file.oid


def large_file(sha256: str, size: int) -> File:
    """The entry of a large file; its id is that of the pointer file that git would keep."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
    return File(git_oid("blob", pointer.encode()), size, sha256)


def is_large_file(path: str, size: int) -> bool:
    return size >= LARGE_FILE_SIZE or path.endswith(LARGE_FILE_SUFFIXES)


def git_oid(kind: str, content: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).hexdigest()
