"""The name of a video in the files that a command writes."""

from pathlib import Path
from urllib.parse import urlsplit


def name_of(video: str) -> str:
    """The name of a video's file or address, without folders, ending, user or password."""
    from hf_video.reading.sources import is_url

    if not is_url(video):
        return Path(video).resolve().stem
    address = urlsplit(video)
    return Path(address.path).stem or str(address.hostname)
