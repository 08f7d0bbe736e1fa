"""A server of videos in this process, that answers as a test says, and remembers what it was asked."""

import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Seconds that a reader waits for the server.
LIMIT = 0.4


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # noqa: N802 (the name that http.server calls)
        try:
            answers = self.server.answers
            name = self.path.strip("/").partition("?")[0]
            answers.get(name, lambda handler: handler.answer(404))(self)
        except OSError:  # the client has gone, as it should
            self.server.hung_up.append(name)
        self.close_connection = True

    def answer(self, status=200, body=b"", **headers):
        self.send_response(status)
        for key, value in {"Content_Length": str(len(body)), **headers}.items():
            if value is not None:
                self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def answer_range(self, data, **headers):
        """Answer with the range of bytes that the request asks for, or with all bytes if it asks for none."""
        time.sleep(self.server.latency)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            self.server.ranges.append(None)
            self.server.sent += len(data)
            self.answer(body=data, **headers)
            return
        start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
        self.server.ranges.append((start, end))
        self.server.sent += max(end - start, 0)
        if start >= len(data):
            self.answer(416, Content_Range=f"bytes */{len(data)}")
        else:
            self.answer(206, data[start:end], **{"Content_Range": f"bytes {start}-{end - 1}/{len(data)}", **headers})

    def log_message(self, *arguments):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.hung_up, self.ended = {}, [], threading.Event()
        self.ranges, self.sent, self.latency = [], 0, 0.0

    def serve(self, name, data, **headers):
        """Answer to ranges of a file. Returns its URL."""
        self.answers[name] = lambda handler: handler.answer_range(data, **headers)
        return self.url(name)

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"
