"""A queue between a live video, which nobody can make wait, and a model, which may be slower."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from threading import Condition, Thread
from typing import Any, Generic, TypeVar

from transformers.utils import logging

from .frame_streaming import StreamedFrame

logger = logging.get_logger(__name__)

Item = TypeVar("Item")


class LiveQueue(Generic[Item]):
    """
    Reads a live video in a thread of its own, and keeps what waits for the model. If more than `size` items wait, the
    oldest is dropped, so that answers stay close to the present, and memory stays bounded. Items keep their times.
    `num_items` came, of which `num_dropped` were dropped.
    """

    def __init__(self, size: int) -> None:
        self.num_items = self.num_dropped = 0
        self._waiting: deque[Item] = deque(maxlen=size)
        self._changed = Condition()
        self._error: BaseException | None = None
        self._is_over = False
        # The time of this machine at zero seconds of the video.
        self._origin: float | None = None

    @property
    def seconds(self) -> float:
        """The time of the video at this moment: that of a frame that arrives without delay."""
        return 0.0 if self._origin is None else time.monotonic() - self._origin

    def watch(self, frames: Iterable[StreamedFrame]) -> Iterator[StreamedFrame]:
        """The same frames. The one that arrives earliest for its time tells when the video began."""
        for frame in frames:
            origin = time.monotonic() - frame.seconds
            self._origin = origin if self._origin is None else min(self._origin, origin)
            yield frame

    def newest(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, without those that were dropped. Raises what `items` raises, after the items that wait."""
        # Nothing can interrupt the wait for a silent stream: a program that ends must not wait for the thread.
        Thread(target=self._fill, args=(items,), name="reading", daemon=True).start()
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._is_over)
                    if not self._waiting:
                        break
                    item = self._waiting.popleft()
                yield item
        finally:
            self.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends the items. The thread ends with the next frame."""
        with self._changed:
            self._is_over = True
            self._waiting.clear()
            self._changed.notify_all()

    def _fill(self, items: Iterable[Any]) -> None:
        try:
            for item in items:
                with self._changed:
                    if self._is_over:
                        return
                    self.num_items += 1
                    if len(self._waiting) == self._waiting.maxlen:
                        self.num_dropped += 1
                        logger.warning_once(
                            "The model is slower than the live video: of the frames that wait, the oldest are dropped."
                        )
                    self._waiting.append(item)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
