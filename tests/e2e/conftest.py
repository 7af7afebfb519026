"""A running `berth up`, and what tests need around it: its client commands, load, a server for artifacts.

The binary comes from BERTH, the engine from ORT_DYLIB_PATH, the trained models from EXAMPLE_MODELS
(`cargo xtask test` sets all three).
"""

from __future__ import annotations

import pytest

from harness import load
from harness.examples import EXAMPLES, IRIS
from harness.http_server import Answer, HttpServer, Request, part_of
from harness.server import Berth

pytest_plugins = ["harness.failures"]


@pytest.fixture
def berth(tmp_path):
    """A server that is not started yet."""
    server = Berth(tmp_path)
    yield server
    server.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server with the example models for tests that only ask."""
    server = Berth(tmp_path_factory.mktemp("shared"))
    try:
        server.start(models=EXAMPLES).available("iris", "sentiment")
        yield server
    finally:
        server.close()


class Load(load.Load):
    """Callers of one model by the Open Inference Protocol, until the block ends."""

    def __init__(self, berth: Berth, name: str, callers: int = 4, request: dict = IRIS):
        super().__init__([berth.http], f"/v2/models/{name}/infer", request, callers)


class Files(HttpServer):
    """An artifact server over HTTP with ranges; counts what is asked, and can break off."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.break_after: int | None = None
        # How often content was sent; an answer that it has not changed does not count.
        self.gets = 0
        super().__init__()

    def place(self, name: str) -> str:
        """Its URL."""
        return f"{self.url}/{name}"

    def answer(self, request: Request) -> Answer:
        content = self.files.get(request.path.lstrip("/"))
        if content is None:
            return Answer(404)
        etag = f'"{hash(content) & 0xFFFFFFFF:x}"'
        if request.headers.get("if-none-match") == etag:
            return Answer(304, {"etag": etag})
        about = {"etag": etag, "last-modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
        answer = part_of(content, request.headers.get("range"), about)
        if request.method == "HEAD":
            return answer
        self.gets += 1
        if self.break_after is None or len(answer.body) <= self.break_after:
            return answer
        answer, self.break_after = answer._replace(breaks_after=self.break_after), None
        return answer


@pytest.fixture
def files():
    server = Files()
    yield server
    server.close()
