"""A package index that wants a password, and watches who else on this machine could read it."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import threading
import zipfile
from pathlib import Path

NAME, VERSION = "acme_doubling", "1.0.0"
WHEEL = f"{NAME}-{VERSION}-py3-none-any.whl"


def wheel() -> bytes:
    """A package with one module and nothing else."""
    about = f"{NAME}-{VERSION}.dist-info"
    files = {
        f"{NAME}.py": "FACTOR = 2\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


def of_processes(what: str) -> dict[str, bytes]:
    """`cmdline` or `environ` of every process that this user may look at."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                found[process.name] = (process / what).read_bytes()
            except OSError:
                pass
    return found


class Index:
    """PEP 503 over HTTP with Basic authentication. At each request it looks at the arguments of all processes."""

    def __init__(self, user: str, password: str):
        self.answered, self.shown = [], []
        content = wheel()
        wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        link = f'<!DOCTYPE html><a href="/files/{WHEEL}#sha256={hashlib.sha256(content).hexdigest()}">{WHEEL}</a>'
        pages = {f"/simple/{NAME.replace('_', '-')}/": ("text/html", link.encode()), f"/files/{WHEEL}": ("application/zip", content)}
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                arguments = of_processes("cmdline")
                index.shown += [line for line in arguments.values() if password.encode() in line]
                if self.headers.get("authorization") != wanted:
                    status, kind, body = 401, "text/plain", b""
                else:
                    status, (kind, body) = (200, pages[self.path]) if self.path in pages else (404, ("text/plain", b""))
                index.answered.append(status)
                self.send_response(status)
                if status == 401:
                    self.send_header("www-authenticate", 'Basic realm="packages"')
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
