"""A running `berth up`, and what tests need around it: manifests, servers for artifacts, load.

The binary comes from BERTH, the engine from ORT_DYLIB_PATH, the trained models from EXAMPLE_MODELS
(`cargo xtask test` sets all three).
"""

from __future__ import annotations

import http.client
import http.server
import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

BERTH = os.environ["BERTH"]
EXAMPLES = Path(os.environ["EXAMPLE_MODELS"])
ARTIFACTS = EXAMPLES / "artifacts"

# How long anything may take before the test fails; nothing waits longer than it must.
PATIENCE = 60.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what: str, check, patience: float = PATIENCE):
    """The first true answer of `check`, asked again and again; fails the test by saying what never came."""
    end = time.monotonic() + patience
    while True:
        answer = check()
        if answer:
            return answer
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.02)


def manifest(name: str, artifact: str = "iris", **spec) -> dict:
    """A deployment of one of the example models; `spec` is merged over the defaults."""
    model = {"format": "onnx", "uri": f"file:{ARTIFACTS / artifact}.onnx"} | spec.pop("model", {})
    return {
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {"model": model, "replicas": 1} | spec,
    }


IRIS = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}]}


class Berth:
    """A `berth up` process and the client commands against it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.data = folder / "data"
        self.http = f"127.0.0.1:{free_port()}"
        self.api = f"127.0.0.1:{free_port()}"
        self.process: subprocess.Popen | None = None
        self.log = folder / "log"

    # === the server ===

    def start(self, *arguments: str, models: Path | None = None, env: dict | None = None) -> "Berth":
        command = [BERTH, "up", *([str(models)] if models else []), "--data", str(self.data)]
        command += ["--http", self.http, "--api", self.api, *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | (env or {}))
        until("the control API", self.alive)
        return self

    def alive(self) -> bool:
        assert self.process.poll() is None, f"berth ended with {self.process.returncode}:\n{self.logged()}"
        try:
            return self.get("/v2/health/live")[0] == 200 and self.control("/readyz")[0] == 200
        except OSError:
            return False

    def logged(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.kill()

    # === the command line ===

    def run(self, *arguments: str, code: int | None = 0, stdin: str | None = None) -> str:
        env = os.environ | {"BERTH_API": f"http://{self.api}", "BERTH_HTTP": f"http://{self.http}", "NO_COLOR": "1", "COLUMNS": "160"}
        done = subprocess.run([BERTH, *arguments], input=stdin, capture_output=True, text=True, env=env, timeout=PATIENCE + 30)
        if code is not None:
            said = f"berth {' '.join(arguments)}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
            assert done.returncode == code, f"exit code {done.returncode}, not {code}: {said}"
        self.stderr = done.stderr
        return done.stdout

    def apply(self, *manifests: dict) -> str:
        return self.run("apply", "-f", "-", stdin="\n---\n".join(json.dumps(m) for m in manifests))

    def available(self, *names: str) -> None:
        for name in names:
            self.run("wait", f"deployment/{name}", "--for=Available", f"--timeout={PATIENCE:.0f}s")

    def deployment(self, name: str) -> dict:
        return json.loads(self.run("get", "deployment", name, "-o", "json"))

    def status(self, name: str) -> dict:
        return self.deployment(name)["status"]

    # === the wire ===

    def _call(self, address: str, method: str, path: str, body=None, headers=None) -> tuple[int, dict, bytes]:
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, dict, bytes]:
        return self._call(self.http, "GET", path)

    def post(self, path: str, body, headers=None) -> tuple[int, dict, bytes]:
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        return self._call(self.http, "POST", path, body, {"content-type": "application/json"} | (headers or {}))

    def control(self, path: str, method: str = "GET", body=None, headers=None) -> tuple[int, dict, bytes]:
        return self._call(self.api, method, path, body, headers)

    def infer(self, name: str, request: dict = IRIS, headers=None) -> tuple[int, dict]:
        status, _, body = self.post(f"/v2/models/{name}/infer", request, headers)
        return status, json.loads(body)

    def metrics(self) -> dict[str, float]:
        status, _, body = self.control("/metrics")
        assert status == 200
        lines = (line for line in body.decode().splitlines() if line and not line.startswith("#"))
        return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines)}

    def metric(self, name: str, **labels) -> float:
        """The sum of the samples of `name` whose labels include `labels`."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name and all(w in k for w in wanted))


@pytest.fixture
def berth(tmp_path):
    """A server that is not started yet."""
    server = Berth(tmp_path)
    yield server
    server.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server with the example models for tests that only ask."""
    server = Berth(tmp_path_factory.mktemp("shared")).start(models=EXAMPLES)
    server.available("iris", "sentiment")
    yield server
    server.close()


class Load:
    """Callers that ask without pause until stopped, and a record of every answer."""

    def __init__(self, berth: Berth, name: str, callers: int = 4, request: dict = IRIS):
        self.stopping = threading.Event()
        self.records: list[tuple[float, int, str]] = []
        self.threads = [threading.Thread(target=self._ask, args=(berth.http, name, json.dumps(request))) for _ in range(callers)]

    def _ask(self, address: str, name: str, body: str) -> None:
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        while not self.stopping.is_set():
            try:
                connection.request("POST", f"/v2/models/{name}/infer", body, {"content-type": "application/json"})
                response = connection.getresponse()
                self.records.append((time.monotonic(), response.status, response.read().decode()))
            except OSError as error:
                self.records.append((time.monotonic(), 0, repr(error)))
                connection.close()

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(PATIENCE)

    def answered(self, more: int) -> None:
        """Waits until so many more requests were answered."""
        seen = len(self.records)
        until(f"{more} more answers", lambda: len(self.records) >= seen + more)

    def failures(self) -> list[tuple[float, int, str]]:
        return [record for record in self.records if record[1] != 200]


class Files(http.server.ThreadingHTTPServer):
    """An artifact server over HTTP with ranges; counts what is asked, and can break off or refuse."""

    daemon_threads = True

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, str | None]] = []
        self.break_after: int | None = None
        self.sent = 0
        super().__init__(("127.0.0.1", 0), FileHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def gets(self) -> int:
        """How often content was sent; an answer that it has not changed does not count."""
        return self.sent


class FileHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        files: Files = self.server
        wanted = self.headers.get("range")
        files.asked.append((self.command, self.path, wanted))
        content = files.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        etag = f'"{hash(content) & 0xFFFFFFFF:x}"'
        if self.headers.get("if-none-match") == etag:
            self.send_response(304)
            self.send_header("etag", etag)
            self.end_headers()
            return
        start, end = 0, len(content)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else end, end)
        self.send_response(206 if wanted else 200)
        self.send_header("content-length", str(end - start))
        self.send_header("accept-ranges", "bytes")
        self.send_header("etag", etag)
        self.send_header("last-modified", "Sat, 21 Nov 2026 00:00:00 GMT")
        if wanted:
            self.send_header("content-range", f"bytes {start}-{end - 1}/{len(content)}")
        self.end_headers()
        if body:
            files.sent += 1
            piece = content[start:end]
            if files.break_after is not None and len(piece) > files.break_after:
                self.wfile.write(piece[: files.break_after])
                self.close_connection = True
                files.break_after = None
                return
            self.wfile.write(piece)


@pytest.fixture
def files():
    server = Files()
    yield server
    server.shutdown()
    server.server_close()
