"""What a user does on the page of the app, and what the browser notices meanwhile."""

import base64
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from playwright.sync_api import Browser, Locator, Page, Request

_TIMEOUT_MS = 60_000
_DROP = """([name, type, content]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, {type}));
  return transfer;
}"""
_READ_FRAME = """async (video) => {
  video.pause();
  await new Promise((done) => { video.onseeked = done; video.currentTime = 0.5; });
  const canvas = new OffscreenCanvas(64, 48).getContext("2d");
  canvas.drawImage(video, 0, 0, 64, 48);
  return Array.from(canvas.getImageData(0, 0, 64, 48).data);
}"""


class Visit:
    """A user of their own on the page of the app at an address: a browser context without cookies. `problems` are
    errors in the console and on the page, and requests that failed or went to another host; `expected` is a pattern of
    those that belong to what the test does."""

    def __init__(self, browser: Browser, address: str, **context: Any):
        self.problems: list[str] = []
        self.expected = "(?!)"
        self._host = urlsplit(address).netloc
        self._context = browser.new_context(**context)
        self._context.set_default_timeout(_TIMEOUT_MS)
        self.page = self._context.new_page()
        self._watch(self.page)
        self.page.goto(address)
        self["video"].wait_for()

    def __getitem__(self, name: str) -> Locator:
        """The element of the page with an id."""
        return self.page.locator(f"#{name}")

    def unexpected(self) -> list[str]:
        """Problems that do not belong to what the test does."""
        return [problem for problem in self.problems if not re.search(self.expected, problem)]

    def close(self) -> None:
        self._context.close()

    def drop(self, path: str | Path) -> None:
        """Drops a file on the page, as from a file manager."""
        path = Path(path)
        content = base64.b64encode(path.read_bytes()).decode()
        transfer = self.page.evaluate_handle(_DROP, [path.name, "video/mp4", content])
        target = self["video"].locator("input[type=file]").locator("xpath=..")
        for event in ("dragenter", "dragover", "drop"):
            target.dispatch_event(event, {"dataTransfer": transfer})
        self._wait_for_video()

    def choose(self, path: str | Path, is_taken: bool = True) -> None:
        """Chooses a file in the dialog of the browser, and waits until the page has it, unless it will refuse it."""
        self["video"].locator("input[type=file]").set_input_files(path)
        if is_taken:
            self._wait_for_video()

    def choose_model(self, name: str) -> None:
        self["model"].locator("input").click()
        self.page.get_by_role("option", name=name).click()

    def show(self, name: str) -> None:
        self.wait_until(lambda: self[name].is_visible() or self._open_tabs(name))

    def press(self, button: str) -> None:
        self.show(button)
        self[button].click()

    def clear(self) -> None:
        self["video"].get_by_label("Clear").first.click()

    def record(self, frames: int) -> None:
        """Records with the camera, until its picture has changed so many times."""
        camera = self["video"]
        camera.get_by_label("Capture from camera").click()
        camera.get_by_title("grant webcam access").get_by_role("button").click()
        self.wait_until(self._camera_frames)
        camera.get_by_title("start recording").click()
        camera.get_by_title("stop recording").wait_for()
        begun = self._camera_frames()
        self.wait_until(lambda: self._camera_frames() >= begun + frames)
        camera.get_by_title("stop recording").click()
        self._wait_for_video()

    def _camera_frames(self) -> int:
        preview = self["video"].locator("video")
        return preview.evaluate("video => video.getVideoPlaybackQuality().totalVideoFrames") if preview.count() else 0

    def ask(self, question: str) -> None:
        self.show("ask")
        self["question"].locator("input, textarea").fill(question)
        self["ask"].click()

    # What a user sees.

    def classes(self) -> list[str]:
        """Classes in the order of their scores; none before there is a result."""
        return self["classes"].locator("[data-testid$=confidence-set] .text").all_inner_texts()

    def segments(self) -> list["SeenSegment"]:
        """Rows of the timeline."""
        found = []
        for row in self["segments"].locator(".virtual-body [role=row]").all():
            cells = row.get_by_role("gridcell")
            start, end, label, _ = (cell.strip() for cell in cells.all_inner_texts())
            found.append(SeenSegment(cells.first, _seconds(start), _seconds(end), label))
        return found

    def seconds_done(self) -> float:
        """Seconds of the video that work on the timeline has come to, as the message says; 0 before."""
        match = re.search(r"Looked at ([\d:.]+)", self.message())
        return _seconds(match[1]) if match else 0.0

    def player_time(self) -> float:
        return self["player"].locator("video").evaluate("video => video.currentTime")

    def video_width(self, name: str) -> int:
        """Width of the decoded frame that a player shows, in pixels; 0 without one."""
        players = self[name].locator("video")
        return players.evaluate("video => video.videoWidth") if players.count() else 0

    def pixels(self, name: str) -> np.ndarray:
        """(48, 64, 3) uint8: what a player shows at half a second."""
        values = self[name].locator("video").evaluate(_READ_FRAME)
        return np.array(values, dtype=np.uint8).reshape(48, 64, 4)[..., :3]

    def shows_picture(self, name: str) -> bool:
        pictures = self[name].locator("img")
        return bool(pictures.count()) and pictures.first.evaluate("img => img.naturalWidth > 0")

    def answer(self) -> str:
        return self["answer"].locator("textarea").input_value()

    def message(self) -> str:
        """The sentence that says what goes on or what went wrong."""
        return self["message"].get_by_role("status").inner_text().strip()

    def about(self) -> str:
        """The sentence about a file that is no video, or that the browser cannot play."""
        return self["about"].inner_text().strip()

    def wait_until(self, condition: Callable[[], Any], seconds: float = _TIMEOUT_MS / 1000) -> Any:
        """The first value of `condition` that is true; an error with the message on the page if there is none."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s; the page says: {self.message()!r}")
            self.page.wait_for_timeout(50)
        return value

    def _open_tabs(self, name: str) -> bool:
        for tab in self.page.get_by_role("tab").filter(visible=True).all():
            tab.click()
            if self[name].is_visible():
                return True
        return False

    def _wait_for_video(self) -> None:
        """The server has the video, and the page a player for it."""
        self["video"].locator("video[src]").wait_for()

    def _watch(self, page: Page) -> None:

        def note(event: str, is_problem: Callable[[Any], bool], text: Callable[[Any], str]) -> None:
            page.on(event, lambda each: self.problems.append(f"{event}: {text(each)}") if is_problem(each) else None)

        def is_elsewhere(request: Request) -> bool:
            address = urlsplit(request.url)
            return address.scheme not in ("data", "blob") and address.netloc != self._host

        note("console", lambda each: each.type == "error", lambda each: each.text)
        note("pageerror", bool, str)
        note("request", is_elsewhere, lambda each: each.url)
        # The page itself ends a stream of events or a part of a video that it does not need any more.
        note("requestfailed", lambda each: each.failure != "net::ERR_ABORTED", lambda each: each.url)
        note("response", lambda each: each.status >= 400, lambda each: f"{each.status} {each.url}")


class SeenSegment(NamedTuple):
    """A row of the timeline: its first cell, times in seconds, and the class."""

    row: Locator
    start: float
    end: float
    label: str


def _seconds(clock: str) -> float:
    hours, minutes, seconds = clock.split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)
