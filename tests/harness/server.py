"""A running `berth up` and its client commands."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from pathlib import Path

from .examples import IRIS
from .ports import free_port
from .processes import BERTH, Process
from .waiting import PATIENCE, until


class Berth(Process):
    """A `berth up` process and the client commands against it."""

    def __init__(self, folder: Path):
        super().__init__("berth", folder)
        self.data = folder / "data"
        self.http = f"127.0.0.1:{free_port()}"
        self.api = f"127.0.0.1:{free_port()}"

    # === the server ===

    def start(self, *arguments: str, models: Path | None = None, env: dict | None = None) -> Berth:
        command = [BERTH, "up", *([str(models)] if models else []), "--data", str(self.data)]
        self.spawn(*command, "--http", self.http, "--api", self.api, *arguments, env=env)
        until("the control API", self.alive)
        return self

    def alive(self) -> bool:
        assert self.runs(), f"berth ended with {self.process.returncode}:\n{self.logged()}"
        try:
            return self.get("/v2/health/live")[0] == 200 and self.control("/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

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
        """Waits until they are, and the gateway has been told."""
        for name in names:
            self.run("wait", f"deployment/{name}", "--for=Available", f"--timeout={PATIENCE:.0f}s")
            until(f"the gateway to know {name}", lambda: self.get(f"/v2/models/{name}/ready")[0] == 200)

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
