"""The video of a page: uploaded, recorded or fetched, within limits, and shown as it is."""

import os
from abc import ABCMeta
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.data_classes import FileData

from hf_video.reading.sources import is_url


class _WithoutStub(type(gr.Video)):  # type: ignore[misc]
    """Makes a class of a component. Gradio's own way also writes a stub beside the source file."""

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> Any:
        return ABCMeta.__new__(cls, name, bases, attributes)


class VideoFile(gr.Video, metaclass=_WithoutStub):
    """
    A `gr.Video` that leaves files as they are. Gradio's own converts what a browser cannot play, with a program that
    may be missing, and fetches any address that a browser names, of any size.
    """

    # Gradio then shows it as what it is derived from.
    is_template = True

    def preprocess(self, payload: FileData | None) -> str | None:
        """The path of the file."""
        return None if payload is None else payload.path

    def postprocess(self, value: str | Path | None) -> FileData | None:
        """The file at a path in the folder of the page."""
        return None if value is None else FileData(path=str(value), orig_name=Path(value).name)

    async def async_move_resource_to_block_cache(self, url_or_file_path: Any) -> str | None:
        """The path of an uploaded file, relative as `private_folder` is: the browser is told it.

        Raises:
            gr.Error: it is an address.
        """
        if is_url(str(url_or_file_path)):
            raise gr.Error("A video is uploaded, or opened by its address; a browser cannot name one otherwise.")
        path = await super().async_move_resource_to_block_cache(url_or_file_path)
        return None if path is None else os.path.relpath(path)
