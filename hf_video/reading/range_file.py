"""A file far away that is read by ranges of bytes, so that only what is needed travels."""

import io
import os
from bisect import bisect_right
from collections.abc import Iterable

from fsspec.caching import BlockCache

from .video_opening import VideoReadError

# Bytes that are fetched first: a short clip, or the start of a longer video with its tables.
FIRST_SIZE = 256 * 2**10
# In bytes, and how many are kept: what is read without having been announced is fetched in blocks.
_BLOCKS = (64 * 2**10, 64)
_BLOCKS_OF_STREAM = (4 * 2**20, 4)
# To fetch this many bytes more costs less than another request.
_WORTH_A_REQUEST = 64 * 2**10
# With a larger share of the file, the whole of it is fetched in one request.
_WORTH_THE_WHOLE = 0.6

# First byte, and the byte behind the last one.
Span = tuple[int, int]


class RangeFile(io.RawIOBase):
    """
    A file whose bytes are fetched when they are read. What is known to be needed is fetched ahead, with `prefetch` or
    `fetch_whole`, and stays; of the other bytes, at most 4 MiB are kept, or 16 MiB of a stream.

    A `read` ends where the bytes at hand end, and may so return fewer bytes than asked for. An error of a fetch is
    raised by every later `read` too: FFmpeg passes over some errors, and would take the file for shorter than it is.

    Args:
        label (`str`):
            Name of the file in messages.
        size (`int`):
            Its size in bytes.
        start (`bytes`):
            Its first bytes, which have been fetched already.

    Attributes:
        error (`Exception`, *optional*): that of the first fetch that failed.
    """

    def __init__(self, label: str, size: int, start: bytes = b""):
        super().__init__()
        self.label = label
        self.size = size
        self.error: Exception | None = None
        self._position = 0
        # Disjoint, rising.
        self._parts: list[tuple[int, bytes]] = [(0, start)] if start else []
        self._blocks = self._make_cache(*_BLOCKS)

    def _fetch_range(self, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`. Raises `VideoReadError`."""
        raise NotImplementedError

    def _fetch_ranges(self, spans: list[Span]) -> list[bytes]:
        """The bytes of each span. Raises `VideoReadError`."""
        return [self._fetch_range(*span) for span in spans]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self.error is not None:
            raise self.error
        end = min(self._position + len(buffer), self.size)
        if self._position >= end:
            return 0
        number = self._find_part(self._position)
        if number is None:
            # No more than one block, for which one request is enough.
            block_size = self._blocks.blocksize
            end = min(end, self._position - self._position % block_size + block_size)
            data = memoryview(self._blocks._fetch(self._position, end))
        else:
            start, part = self._parts[number]
            data = memoryview(part)[self._position - start : end - start]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def stream(self) -> None:
        """Prepare for reading from the start to the end: with fewer, larger requests."""
        self._blocks = self._make_cache(*_BLOCKS_OF_STREAM)

    def is_at_hand(self, start: int, end: int) -> bool:
        """Whether these bytes have been fetched ahead, up to the end of the file."""
        return not any(max(start, first) < min(end, last) for first, last in self._gaps())

    def read_span(self, start: int, end: int) -> bytes:
        """All bytes from `start` to before `end`, or to the end of the file; they are fetched first, and stay."""
        self.prefetch([(start, end)])
        self.seek(start)
        pieces = []
        while self._position < min(end, self.size):
            pieces.append(self.read(end - self._position))
        return b"".join(pieces)

    def prefetch(self, spans: Iterable[Span]) -> None:
        """
        Fetch what is needed next: each span in a request, or the whole file if the spans are most of it.

        Args:
            spans (`Iterable[tuple[int, int]]`):
                Spans in any order. They may overlap, and reach over the end of the file.

        Raises:
            `VideoReadError`: if a range cannot be fetched.
        """
        gaps = self._gaps()
        missing = [
            (max(start, first), min(end, last))
            for start, end in _join(spans)
            for first, last in gaps
            if max(start, first) < min(end, last)
        ]
        if sum(end - start for start, end in missing) > _WORTH_THE_WHOLE * self.size:
            self.fetch_whole()
        elif missing:
            self._add(missing)

    def fetch_whole(self) -> None:
        """
        Fetch what is missing of the file, in one request.

        Raises:
            `VideoReadError`: if it cannot be fetched.
        """
        if gaps := self._gaps():
            start, end = gaps[0][0], gaps[-1][1]
            self._parts = [(first, part) for first, part in self._parts if first < start or first >= end]
            self._add([(start, end)])

    def _add(self, spans: list[Span]) -> None:
        starts = [start for start, _ in spans]
        self._parts = sorted([*self._parts, *zip(starts, self._call(spans), strict=True)])

    def _call(self, spans: list[Span]) -> list[bytes]:
        if self.error is not None:
            raise self.error
        try:
            return self._fetch_ranges(spans)
        except VideoReadError as error:
            self.error = error
            raise

    def _make_cache(self, block_size: int, num_blocks: int) -> BlockCache:
        return BlockCache(block_size, self._fetch_block, self.size, maxblocks=num_blocks)

    def _fetch_block(self, start: int, end: int) -> bytes:
        return self._call([(start, min(end, self.size))])[0]

    def _find_part(self, position: int) -> int | None:
        number = bisect_right(self._parts, position, key=lambda part: part[0]) - 1
        if number < 0 or position >= self._parts[number][0] + len(self._parts[number][1]):
            return None
        return number

    def _gaps(self) -> list[Span]:
        """The spans that have not been fetched ahead."""
        ends = [0, *(start + len(part) for start, part in self._parts)]
        starts = [*(start for start, _ in self._parts), self.size]
        return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def _join(spans: Iterable[Span]) -> list[Span]:
    """The spans in their order, those joined that overlap or lie close together."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] <= _WORTH_A_REQUEST:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
