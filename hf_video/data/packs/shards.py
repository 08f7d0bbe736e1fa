"""Writes shards in the layout of WebDataset, and reads them back.

A sample is a run of members whose names are the same up to the first dot of the base name: `KEY.mp4`, `KEY.json`, and
`KEY.cls` if each has one class (https://github.com/webdataset/webdataset). The same samples give the same bytes.
"""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from itertools import count
from typing import Any, BinaryIO, NamedTuple

from hf_video.reading.sources import is_url

_CHUNK = 2**20


class Member(NamedTuple):
    """A video in a shard: its name there, the place of its first byte, its size in bytes, and its SHA-256."""

    path: str
    offset: int
    size: int
    sha256: str


class ShardWriter:
    """Appends samples to a shard.

    Args:
        file: an empty file.

    Attributes:
        digests: offset and SHA-256 of each member, by name.
    """

    def __init__(self, file: BinaryIO):
        self._tar: Any = tarfile.TarFile(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, copybufsize=_CHUNK)
        self._stems: set[str] = set()
        self.digests: dict[str, tuple[int, str]] = {}

    def add(self, key: str, suffix: str, video: BinaryIO, facts: Mapping[str, Any], label: int | None) -> Member:
        """Appends a sample. A large video is never in memory as a whole.

        Args:
            key: decides the name, in which dots become underscores.
            suffix: of the video, with its dot.
            video: an open file, which is read from its start.
            facts: content of the `.json` member.
            label: class id in the `.cls` member; None for no such member.

        Raises:
            OSError: writing failed, or the video was cut off meanwhile.
        """
        stem = self._choose_stem(key)
        size = video.seek(0, io.SEEK_END)
        video.seek(0)
        member = self._append(f"{stem}{suffix}", video, size)
        texts = {".json": json.dumps(facts, ensure_ascii=False)} | ({} if label is None else {".cls": str(label)})
        for ending, text in texts.items():
            content = text.encode()
            self._append(stem + ending, io.BytesIO(content), len(content))
        return member

    def close(self) -> None:
        """Writes the end of the archive. The file stays open."""
        self._tar.close()

    def _choose_stem(self, key: str) -> str:
        """A relative path without dots that no other sample has."""
        parts = [part.replace(".", "_") for part in key.split("/") if part]
        stem = "/".join(parts) or "video"
        numbered = (f"{stem}_{number}" for number in count(2))
        while stem in self._stems:
            stem = next(numbered)
        self._stems.add(stem)
        return stem

    def _append(self, name: str, file: BinaryIO, size: int) -> Member:
        # The rest of a `TarInfo` is the same everywhere: owner and time are zero.
        header = tarfile.TarInfo(name)
        header.size = size
        source = _Hashing(file)
        try:
            self._tar.addfile(header, source)
        except OSError as error:
            if error.errno is not None:
                raise
            raise OSError(f"{getattr(file, 'name', name)} became shorter while it was packed: {error}") from error
        self._tar.members = []  # otherwise all headers stay in memory
        padded = -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        self.digests[name] = self._tar.offset - padded, source.sha256.hexdigest()
        return Member(name, self._tar.offset - padded, size, self.digests[name][1])


def verify_shard(file: BinaryIO, digests: Mapping[str, tuple[int, str]], name: str) -> None:
    """Reads a shard and compares each member with what was written.

    Args:
        file: the shard.
        digests: from `ShardWriter`.
        name: the shard, for messages.

    Raises:
        OSError: the shard is not what was written.
    """
    found = {}
    try:
        tar: Any
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for header in tar:
                source = _Hashing(tar.extractfile(header) or io.BytesIO())
                while source.read(_CHUNK):
                    pass
                found[header.name] = header.offset_data, source.sha256.hexdigest()
                tar.members = []  # otherwise the headers of all members stay in memory
    except tarfile.TarError as error:
        raise OSError(f"{name} cannot be read back: {error}. {_WAY_OUT}") from error
    if found != digests:
        wrong = next((each for each in digests if found.get(each) != digests[each]), "a member that nobody wrote")
        raise OSError(f"{name} is not what was written: {wrong} differs when it is read back. {_WAY_OUT}")


_WAY_OUT = "Check the disk or network, and run the same command again: it writes this shard anew."


def video_suffix(video: str) -> str:
    """The suffix of a video by its path or URL; `.mp4` if it has none."""
    found = re.search(r"\.[A-Za-z0-9]{1,5}$", re.sub(r"[?#].*$", "", video) if is_url(video) else video)
    return found[0] if found else ".mp4"


class _Hashing:
    """A file that is read, and the SHA-256 of what was read."""

    def __init__(self, file: Any):
        self._file = file
        self.sha256 = hashlib.sha256()

    def read(self, size: int) -> bytes:
        piece = self._file.read(size)
        self.sha256.update(piece)
        return piece
