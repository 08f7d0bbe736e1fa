"""The bytes of a video of a data set as a file, wherever they are."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from shutil import copyfileobj
from typing import Any, BinaryIO

from hf_video.reading.ranges import RangeFile, open_ranges
from hf_video.reading.sources import is_url, public_url
from hf_video.text_files import check_regular_file

from .video_column import open_video

_CHUNK = 2**20


@contextmanager
def open_bytes(row: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """An open file with the bytes of a video, at its start. That of a URL is first fetched to a temporary file.

    Args:
        row: A row of `load_video_dataset`.

    Raises:
        VideoReadError: The video is not what its manifest describes, or its URL cannot be fetched.
        OSError: The file does not exist or cannot be read.
        ValueError: It is a folder, FIFO, socket or device.
    """
    source = open_video(row)
    if not isinstance(source, str):
        yield source
    elif is_url(source):
        with tempfile.TemporaryFile() as file:
            _fetch(source, file)
            file.seek(0)
            yield file
    else:
        check_regular_file(source)
        with open(source, "rb") as file:
            yield file


def _fetch(url: str, file: Any) -> None:
    file.raw.name = public_url(url)  # for messages
    with open_ranges(url) as remote:
        if isinstance(remote, str):
            with open(remote, "rb") as local:
                copyfileobj(local, file, _CHUNK)
            return
        if isinstance(remote, RangeFile):
            remote.stream()
        copyfileobj(remote, file, _CHUNK)
