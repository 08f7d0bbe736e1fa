"""Digests the content of a video quickly, to find changed and copied files without reading them whole."""

import errno
import hashlib
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO

from hf_video.reading.sources import is_url

_NUM_BLOCKS = 4
_BLOCK_SIZE = 16 * 1024


def content_digest(path: str | os.PathLike) -> str:
    """SHA-256 of the size of a file and of four blocks of 16 KiB: the first, the last and two between them.

    Files of up to 64 KiB are read whole. In a larger file a change between the blocks that keeps the size is not seen.

    Args:
        path: a file; a folder, whose digest is that of the names and digests of the files directly inside; or a URL,
            whose digest is that of its text.

    Returns:
        64 hexadecimal digits.

    Raises:
        OSError: the file does not exist, cannot be read, or is neither file nor folder, such as a FIFO.
    """
    digest = hashlib.sha256()
    if is_url(path):
        digest.update(os.fsencode(path))
    elif os.path.isdir(path):
        for file in sorted(Path(path).iterdir()):
            if file.is_file():
                digest.update(os.fsencode(file.name) + b"\0" + _file_digest(file))
    else:
        digest.update(_file_digest(path))
    return digest.hexdigest()


def path_digest(path: str | os.PathLike) -> str | None:
    """The `content_digest` of a path or URL; None for what cannot be read."""
    try:
        return content_digest(path)
    except OSError:
        return None


def bytes_digest(content: bytes) -> str:
    """The `content_digest` of a file that holds these bytes."""
    return hashlib.sha256(_sample(io.BytesIO(content), len(content))).hexdigest()


def _file_digest(path: str | os.PathLike) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):  # Opening a FIFO would wait for its other end.
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    with open(path, "rb", buffering=0) as file:
        return _sample(file, os.fstat(file.fileno()).st_size)


def _sample(file: BinaryIO | io.RawIOBase, size: int) -> bytes:
    digest = hashlib.sha256(size.to_bytes(8))
    last = max(size - _BLOCK_SIZE, 0)
    for block in range(_NUM_BLOCKS):
        file.seek(last * block // (_NUM_BLOCKS - 1))
        digest.update(file.read(_BLOCK_SIZE) or b"")
    return digest.digest()
