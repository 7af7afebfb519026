"""Where artifacts are: a web server, and an object store that verifies signatures."""

from __future__ import annotations

import functools
import http.server
import os
import socket
import subprocess
import threading
from pathlib import Path


class Handler(http.server.SimpleHTTPRequestHandler):
    """A file, or 503 while the store is down; every request is remembered."""

    def __init__(self, *arguments, web: Web, **more):
        self.web = web
        super().__init__(*arguments, **more)

    def do_GET(self):
        self.web.asked.append(self.path)
        if self.web.down:
            self.send_error(503)
        else:
            super().do_GET()

    def log_message(self, *_):
        pass


class Web:
    """Serves a folder over HTTP; it can be down, or away, for a while."""

    def __init__(self, folder: Path, port: int = 0):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.down, self.asked = folder, False, []
        handler = functools.partial(Handler, web=self, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class S3:
    """An S3-compatible server (crates/worker/examples/s3_server.rs); keys come and go with a file."""

    def __init__(self, folder: Path):
        self.root, self.keys = folder / "buckets", folder / "keys"
        (self.root / "models").mkdir(parents=True)
        self.keys.write_text("")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.process = subprocess.Popen([os.environ["S3_SERVER"], f"127.0.0.1:{self.port}", str(self.root), str(self.keys)])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def allow(self, *pairs: tuple[str, str]) -> None:
        """These keys and no others."""
        self.keys.write_text("".join(f"{id} {secret}\n" for id, secret in pairs))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
