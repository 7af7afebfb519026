"""A package index that wants a password, and watches who else on this machine could read it."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path

from harness.http_server import Answer, HttpServer, Request

NAME, VERSION = "acme_doubling", "1.0.0"
WHEEL = f"{NAME}-{VERSION}-py3-none-any.whl"


def wheel() -> bytes:
    """A package with one module and nothing else. Always the same bytes: its files have a fixed date."""
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
            archive.writestr(zipfile.ZipInfo(name), text)
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


class Index(HttpServer):
    """PEP 503 over HTTP with Basic authentication. At each request it looks at the arguments of all processes."""

    def __init__(self, user: str, password: str):
        self.answered, self.shown, self.password = [], [], password
        self.wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        content = wheel()
        link = f'<!DOCTYPE html><a href="/files/{WHEEL}#sha256={hashlib.sha256(content).hexdigest()}">{WHEEL}</a>'
        self.pages = {f"/simple/{NAME.replace('_', '-')}/": ("text/html", link.encode()), f"/files/{WHEEL}": ("application/zip", content)}
        super().__init__()

    def answer(self, request: Request) -> Answer:
        arguments = of_processes("cmdline")
        self.shown += [line for line in arguments.values() if self.password.encode() in line]
        answer = self.page(request)
        self.answered.append(answer.status)
        return answer

    def page(self, request: Request) -> Answer:
        if request.headers.get("authorization") != self.wanted:
            return Answer(401, {"www-authenticate": 'Basic realm="packages"'})
        if request.path not in self.pages:
            return Answer(404)
        kind, content = self.pages[request.path]
        return Answer(200, {"content-type": kind}, content)
