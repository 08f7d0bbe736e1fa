"""Serves the page until the program is interrupted, and removes everything that it was given."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from threading import Event

from .work import MEGABYTE, LoadedModel


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can open, where Gradio puts uploads. After the block it is gone.

    It is relative to the current folder of the process in the block, because Gradio tells a browser the paths of its
    files. Gradio reads its place, and whether to tell its makers of its use, when it is imported.
    """
    folder = Path("uploads")
    with tempfile.TemporaryDirectory(prefix="hf-video-", ignore_cleanup_errors=True) as private, chdir(private):
        folder.mkdir()
        os.environ |= {"GRADIO_TEMP_DIR": str(folder), "GRADIO_ANALYTICS_ENABLED": "False"}
        yield folder


def serve(
    models: Sequence[LoadedModel], *, host: str, port: int, queue: int, tell_address: Callable[[str], None], **options
) -> None:
    """
    Serves the page until an interrupt.

    Args:
        models: the models.
        host: the address to listen at.
        port: the port.
        queue: requests that may wait.
        tell_address: called with the address of the page when it can be opened.
        options: of [`Page`].

    Raises:
        OSError: the port is in use.
        KeyboardInterrupt: Ctrl-C or SIGTERM; everything is removed.
    """
    with private_folder() as folder:
        import gradio as gr
        from starlette.middleware import Middleware

        from .gate import Gate
        from .page import Page
        from .visitors import Visitors

        visitors = Visitors(folder)
        own, most = Path(__file__).parent, options["max_upload"]
        script = (own / "page.js").read_text(encoding="utf-8")
        theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
        page = Page(models, visitors, **options).blocks
        gate = Middleware(Gate, folder=folder, max_size=most * MEGABYTE, only_local=options["only_local"])
        page.queue(max_size=queue, api_open=False)
        try:
            page.launch(
                server_name=host,
                server_port=port,
                max_file_size=most * MEGABYTE,
                app_kwargs={"middleware": [gate]},
                theme=theme,
                css_paths=own / "page.css",
                head=f'<meta name="max-upload" content="{most}">\n<script>{script}</script>',
                footer_links=[],
                prevent_thread_lock=True,
                quiet=True,
                share=False,
                ssr_mode=False,
                mcp_server=False,
                pwa=False,
                run_history=False,
                enable_monitoring=False,
            )
            tell_address(page.local_url)
            Event().wait()
        finally:
            visitors.close()
            if page.is_running:
                # An open page holds a connection for as long as it is open; the server would tell that it breaks it.
                logging.getLogger("uvicorn.error").disabled = page.server.force_exit = True
                page.close(verbose=False)
