"""A server of one file in this process, as far away and as narrow as a benchmark says."""

import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Bytes that are sent at once.
_PIECE = 64 * 2**10


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "RangeServer"

    def do_GET(self) -> None:  # noqa: N802 (the name that http.server calls)
        data = self.server.data
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(asked[1]), min(int(asked[2]) + 1, len(data))) if asked else (0, len(data))
        time.sleep(self.server.latency)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", '"1"')
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.end_headers()
        for place in range(start, end, _PIECE):
            self.server.wait_for_line(min(_PIECE, end - place))
            self.wfile.write(data[place : min(place + _PIECE, end)])
        self.server.count(end - start)

    def log_message(self, *arguments: Any) -> None:
        pass


class RangeServer(ThreadingHTTPServer):
    """
    Answers to requests for ranges of a file.

    Args:
        data: the file.
        latency: seconds before every answer.
        rate: bytes per second of all answers together.

    Attributes:
        url: where the file is.
        num_requests: number of answers.
        num_bytes: bytes of their bodies.
    """

    daemon_threads = True

    def __init__(self, data: bytes, latency: float, rate: float):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.data, self.latency, self.rate = data, latency, rate
        self.url = f"http://127.0.0.1:{self.server_port}/video.mp4"
        self.num_requests = self.num_bytes = 0
        self._lock = threading.Lock()
        self._line_is_free = 0.0

    def __enter__(self) -> "RangeServer":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *reason: Any) -> None:
        self.shutdown()
        self.server_close()

    def wait_for_line(self, num_bytes: int) -> None:
        with self._lock:
            self._line_is_free = max(self._line_is_free, time.monotonic()) + num_bytes / self.rate
            free = self._line_is_free
        time.sleep(max(free - time.monotonic(), 0))

    def count(self, num_bytes: int) -> None:
        with self._lock:
            self.num_requests += 1
            self.num_bytes += num_bytes
