"""The bytes of a video of a data set as a file, wherever they are."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from shutil import copyfileobj
from typing import Any, BinaryIO

import fsspec

from hf_video.processing.video_downloading import (
    SIZE_VARIABLE,
    open_response,
    public_url,
    read_max_size,
    receive_pieces,
)
from hf_video.text_files import check_regular_file

from .video_column import open_video


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
    elif "://" in source:
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
    if url.startswith(("http://", "https://")):
        max_size = read_max_size()
        with open_response(url) as response:
            too_large = f"{public_url(url)} is larger than {max_size:,} bytes; allow more with {SIZE_VARIABLE}=BYTES."
            file.writelines(receive_pieces(response, public_url(url), max_size, too_large))
    else:
        with fsspec.open(url, "rb") as remote:
            copyfileobj(remote, file)
