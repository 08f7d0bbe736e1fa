"""Serves the page until the program is interrupted, and removes everything that it was given."""

import ipaddress
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

from .work import LoadedModel


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, which no other machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    models: Sequence[LoadedModel],
    *,
    host: str,
    port: int,
    queue: int,
    max_upload: int,
    tell_address: Callable[[str], None],
    **options,
) -> None:
    """
    Serves the page until an interrupt.

    Args:
        models: the models.
        host: the address to listen at. A page for this machine alone answers at its names alone: another site could
            point its own name at this machine, and would then be the page for the browser.
        port: the port.
        queue: requests that may wait.
        max_upload: megabytes that a video may have.
        tell_address: called with the address of the page when it can be opened.
        options: of [`Page`].

    Raises:
        OSError: the port is in use.
        KeyboardInterrupt: Ctrl-C or SIGTERM; everything is removed.
    """
    with tempfile.TemporaryDirectory(prefix="hf-video-", ignore_cleanup_errors=True) as folder:
        # Gradio reads its place, and whether to tell its makers of its use, when it is imported.
        os.environ |= {"GRADIO_TEMP_DIR": folder, "GRADIO_ANALYTICS_ENABLED": "False"}
        import gradio as gr
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware

        from .page import Page

        names = ["localhost", "127.0.0.1", "[::1]", host] if is_loopback(host) else ["*"]
        theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
        page = Page(models, **options).blocks
        page.queue(max_size=queue, api_open=False)
        try:
            page.launch(
                server_name=host,
                server_port=port,
                max_file_size=f"{max_upload}mb",
                allowed_paths=[str(example) for example in options["examples"]],
                app_kwargs={"middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=names)]},
                theme=theme,
                css_paths=Path(__file__).with_name("page.css"),
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
            if page.is_running:
                # An open page holds a connection for as long as it is open; the server would tell that it breaks it.
                logging.getLogger("uvicorn.error").disabled = page.server.force_exit = True
                page.close(verbose=False)
