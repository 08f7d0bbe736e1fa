"""The Chromium of this machine, without a window."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# The browser sends nothing of its own, so that every request is the page's. The camera gives a test picture.
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)


def find_chromium() -> str | None:
    """The program that `CHROME_BIN` names, or else the first one on the path; `None` without one."""
    return os.environ.get("CHROME_BIN") or next(filter(None, map(shutil.which, _PROGRAMS)), None)


@contextmanager
def start_chromium() -> Iterator[Browser]:
    """A browser with a new profile, which ends with the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
