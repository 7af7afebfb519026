"""Stores of artifacts: a web server, and an object store that verifies signatures."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from harness.http_server import Answer, HttpServer, Request, part_of
from harness.ports import free_port, listens
from harness.processes import Process


class Web(HttpServer):
    """Serves a folder over HTTP; it can be down, or away, for a while. Every request is remembered."""

    def __init__(self, folder: Path, port: int = 0):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.down, self.asked = folder, False, []
        super().__init__(port)

    def answer(self, request: Request) -> Answer:
        self.asked.append(request.path)
        place = self.folder / unquote(urlsplit(request.path).path).lstrip("/")
        if self.down:
            return Answer(503)
        return part_of(place.read_bytes(), request.headers.get("range"), {}) if place.is_file() else Answer(404)


class S3(Process):
    """An S3-compatible server (crates/worker/examples/s3_server.rs); keys come and go with a file."""

    def __init__(self, folder: Path):
        super().__init__("s3", folder)
        self.root, self.keys, self.port = folder / "buckets", folder / "keys", free_port()
        (self.root / "models").mkdir(parents=True)
        self.allow()
        self.spawn(os.environ["S3_SERVER"], f"127.0.0.1:{self.port}", str(self.root), str(self.keys))

    def answers(self) -> bool:
        assert self.runs(), f"the object store ended with {self.process.returncode}:\n{self.logged()}"
        return listens(self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def allow(self, *pairs: tuple[str, str]) -> None:
        """These keys and no others."""
        # In one step: the server may read the file at any time.
        new = self.keys.with_suffix(".new")
        new.write_text("".join(f"{id} {secret}\n" for id, secret in pairs))
        new.replace(self.keys)
