"""A web server whose answers are a function of the request."""

from __future__ import annotations

import http.server
import re
import threading
from email.message import Message
from typing import NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    headers: Message
    body: bytes


class Answer(NamedTuple):
    status: int
    headers: dict[str, str] = {}
    body: bytes = b""
    # The line breaks after so many bytes of the body.
    breaks_after: int | None = None


class HttpServer:
    """Serves on loopback from its creation on; what it is says `answer`, which several threads may ask at once."""

    def __init__(self, port: int = 0):
        """`port`: one of the system's choice by default."""
        self._server = Listener(("127.0.0.1", port), Handler)
        self._server.answer = self.answer
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, request: Request) -> Answer:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Listener(http.server.ThreadingHTTPServer):
    # A handful is the default: of many callers at once some would wait a second until they are tried again.
    request_queue_size = 128


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        answer = self.server.answer(Request(self.command, self.path, self.headers, body))
        self.send_response(answer.status)
        # One request to a connection: a server that was closed answers nobody.
        for name, value in ({"content-length": str(len(answer.body))} | answer.headers | {"connection": "close"}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: answer.breaks_after])

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = respond

    def log_message(self, *_) -> None:
        pass


def part_of(content: bytes, wanted: str | None, about: dict[str, str]) -> Answer:
    """All of it with 200, or with 206 the part that the header `Range` asks for."""
    about = about | {"accept-ranges": "bytes"}
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
    if not asked:
        return Answer(200, about, content)
    begin, end = int(asked[1]), min(int(asked[2] or len(content) - 1), len(content) - 1)
    return Answer(206, about | {"content-range": f"bytes {begin}-{end}/{len(content)}"}, content[begin : end + 1])
