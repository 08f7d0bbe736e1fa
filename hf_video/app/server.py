"""Serves the page until the program is interrupted, and removes everything that it was given."""

import ipaddress
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from .work import LoadedModel


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, which no other machine reaches."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host).is_loopback
    except ValueError:
        return False


def serve(models: Sequence[LoadedModel], settings: Any, tell_address: Callable[[str], object], **options: Any) -> None:
    """Serves the page by the settings of `hf-video app` until Ctrl-C or SIGTERM, and then removes everything.
    `tell_address` is called with the address when the page can be opened; the options are those of [`Page`]."""
    host = settings.host
    with tempfile.TemporaryDirectory(prefix="hf-video-", ignore_cleanup_errors=True) as folder:
        # Gradio reads its place, and whether to tell its makers of its use, when it is imported.
        os.environ |= {"GRADIO_TEMP_DIR": folder, "GRADIO_ANALYTICS_ENABLED": "False"}
        import gradio as gr
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware

        from .page import Page

        # Another site could point its own name at this machine, and would then be the page for the browser.
        names = ["localhost", "127.0.0.1", "[::1]", host] if is_loopback(host) else ["*"]
        theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
        page = Page(models, settings.workers, **options).blocks
        page.queue(max_size=settings.queue, api_open=False)
        try:
            page.launch(
                server_name=host,
                server_port=settings.port,
                max_file_size=f"{settings.max_upload}mb",
                allowed_paths=[str(example) for example in options["examples"]],
                app_kwargs={"middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=names)]},
                theme=theme,
                css_paths=Path(__file__).with_name("page.css"),
                footer_links=[],
                prevent_thread_lock=True,
                quiet=True,
                **dict.fromkeys(("share", "ssr_mode", "mcp_server", "pwa", "run_history", "enable_monitoring"), False),
            )
            tell_address(page.local_url)
            Event().wait()
        finally:
            if page.is_running:
                # An open page holds a connection for as long as it is open; the server would tell that it breaks it.
                logging.getLogger("uvicorn.error").disabled = page.server.force_exit = True
                page.close(verbose=False)
