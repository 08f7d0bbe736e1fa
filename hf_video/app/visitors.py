"""Who has the page open: the files and the running work of each, which end with the page."""

import ipaddress
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import Event, Lock
from typing import Any


class Cancelled(Exception):
    """Work has ended because nobody wants it any more."""


@dataclass(eq=False)
class Ticket:
    """
    A piece of work that may be cancelled.

    Attributes:
        video: the file that the page showed when the work was asked for.
        model: name of the model that it showed.
        is_outdated: whether it was cancelled because the page shows another video or model.
    """

    video: Path | None
    model: str
    is_outdated: bool = False
    _cancelled: Event = field(default_factory=Event)

    @property
    def file(self) -> Path:
        """The video; it is a `ValueError` if there is none."""
        if self.video is None:
            raise ValueError("There is no video yet: drop one, or record one.")
        # A folder would be read as frames; nobody can send one.
        if not self.video.is_file():
            raise ValueError("The video was removed: open it again.")
        return self.video

    def cancel(self, is_outdated: bool = False) -> None:
        """Ends the work at its next check."""
        self.is_outdated = is_outdated
        self._cancelled.set()

    def check(self) -> None:
        """Goes on, or raises `Cancelled`."""
        if self._cancelled.is_set():
            raise Cancelled

    def until_cancelled(self, items: Any) -> Iterator[Any]:
        """The items, each after a [`check`]. The generator is closed at the end, however it comes."""
        with closing(items):
            self.check()
            for item in items:
                yield item
                self.check()


@dataclass(eq=False)
class Visitor:
    """
    An open page.

    Attributes:
        folder: for the files that are made for this page; made when the first one is.
        video: the file that the page holds.
        was_cancelled: whether its last work was, perhaps while it waited.
        watched: what was watched last, for further questions about it: (model, video, watcher).
        found: what was found last, to be drawn on the video: (model, video, segments, end in seconds).
        worked_on: the video of the last work, until the page tells which one it holds.
    """

    folder: Path
    video: Path | None = None
    was_cancelled: bool = False
    watched: tuple[Any, ...] = ()
    found: tuple[Any, ...] = ()
    worked_on: Path | None = None
    # Read by other threads while they change: a copy is one step.
    _tickets: set[Ticket] = field(default_factory=set)

    @contextmanager
    def work(self, video: Path | None, model: str) -> Iterator[Ticket]:
        """A ticket for the work in the block, on what the page showed when it was asked for."""
        ticket = Ticket(video, model)
        self._tickets.add(ticket)
        self.worked_on = video
        try:
            yield ticket
        finally:
            self._tickets.discard(ticket)

    def cancel(self) -> None:
        """Cancels all work of this page."""
        for ticket in self._tickets.copy():
            ticket.cancel()

    def cancel_outdated(self, **shown: Path | str | None) -> None:
        """Cancels the work on another `video` or `model` than the page shows. Work on this one may have begun before
        the page told that it shows it."""
        for ticket in self._tickets.copy():
            if any(getattr(ticket, name) != value for name, value in shown.items()):
                ticket.cancel(is_outdated=True)

    def new_folder(self) -> Path:
        """An empty folder of this page."""
        folder = self.folder / token_hex(8)
        folder.mkdir(parents=True)
        return folder

    @property
    def is_busy(self) -> bool:
        """Whether there is any work of this page."""
        return bool(self._tickets)


class Visitors:
    """
    All open pages, by the name that Gradio gives to each.

    Args:
        folder: for their files. Nobody can guess the names in it: Gradio serves a file to whoever names it. Gradio
            puts uploads there, each into a folder that is named by content: two pages with one video share its file.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._by_session: dict[str, Visitor] = {}
        self._lock = Lock()

    def __getitem__(self, session: str) -> Visitor:
        with self._lock:
            return self._by_session.setdefault(session, Visitor(self.folder / token_hex(16)))

    def keep(self, session: str, video: Path | None) -> bool:
        """Notes which video a page holds. Work on another one ends; the file that the page held before is removed,
        unless another page holds it as well.

        Returns:
            Whether all results on the page are of another video.
        """
        visitor = self[session]
        visitor.cancel_outdated(video=video)
        with self._lock:
            before, visitor.video = visitor.video, video
            worked_on, visitor.worked_on = visitor.worked_on, None
            if before != video:
                self._remove(before)
            if visitor.watched[1:2] != (video,):
                visitor.watched = ()
            if visitor.found[1:2] != (video,):
                visitor.found = ()
        return video is None or worked_on != video

    def leave(self, session: str) -> None:
        """A page was closed: its work ends, and its files are removed."""
        with self._lock:
            visitor = self._by_session.pop(session, None)
            if visitor is None:
                return
            visitor.cancel()
            self._remove(visitor.video)
        shutil.rmtree(visitor.folder, ignore_errors=True)

    def close(self) -> None:
        """All pages end."""
        for session in list(self._by_session):
            self.leave(session)

    def _remove(self, video: Path | None) -> None:
        if video is None or any(each.video == video for each in self._by_session.values()):
            return
        # Only what a page was given: never a file elsewhere, whatever its browser says.
        if self.folder in video.parents:
            video.unlink(missing_ok=True)
            with suppress(OSError):
                video.parent.rmdir()


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, which no other machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
