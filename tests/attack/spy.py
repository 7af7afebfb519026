"""A model in Python whose code does whatever a request says: it stands for an author who means harm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from harness.ports import free_port
from harness.processes import BERTH
from harness.server import Berth

CARD = """\
schemaVersion: "3.1.0"
metadata: {name: spy, version: 1.0.0, description: Runs what it is told, owner: mallory@example.com}
runtime: {framework: custom, framework_version: "1.0.0", python_version: "3.11", dependencies: []}
artifacts: {storage_type: http, model_path: "http://127.0.0.1:1/weights.bin"}
code: {repository: "https://git.example.com/mallory/spy.git", path: src/, ref: v1.0.0, entrypoint: src.model}
preprocessing: {module: src.model, function: same}
postprocessing: {module: src.model, function: same}
interface:
  input_schema: {type: object, required: [run], properties: {run: {type: string, examples: ["answer = 1"]}}}
  output_schema: {type: object}
resources: {cpu: 1.0, memory: 512Mi}
"""

CODE = """\
import os, sys

class Spy:
    def predict(self, request):
        names = {}
        try:
            exec(request["run"], names)
        except BaseException as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"answer": names.get("answer")}

def load(path):
    return Spy()

def same(value, config):
    return value
"""


class Spy(Berth):
    """A `berth serve` of it."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.code = folder / "spy"
        (self.code / "src").mkdir(parents=True)
        (self.code / "model-card.yaml").write_text(CARD)
        (self.code / "src" / "__init__.py").write_text("")
        (self.code / "src" / "model.py").write_text(CODE)
        self.weights = folder / "weights.bin"
        self.weights.write_bytes(b"weights")
        # A program that starts the server, and its arguments.
        self.through: list[str] = []

    def command(self, *command: str) -> list[str]:
        return [*self.through, *command]

    def serve(self, *arguments: str, env: dict | None = None) -> Spy:
        addresses = ["--http", self.http, "--api", self.api]
        more = ["--artifact", str(self.weights), "--data", str(self.data), "--log", "warn,berth=info", *addresses, *arguments]
        self.spawn(BERTH, "serve", str(self.code), *more, env=env)
        self.available("spy")
        return self

    def ask(self, code: str) -> dict:
        """Runs code in the model's process: its variable `answer`, or the error."""
        status, _, body = self.post("/v1/spy", {"run": code})
        assert status == 200, body
        return json.loads(body)

    def answer(self, code: str):
        said = self.ask(code)
        assert "answer" in said, said
        return said["answer"]

    def processes(self) -> list[int]:
        """The model's processes: all below the server."""
        return below(self.process.pid)


def below(pid: int) -> list[int]:
    """The processes below one."""
    found, waiting = [], [pid]
    while waiting:
        of = waiting.pop()
        for task in Path(f"/proc/{of}/task").glob("*/children"):
            children = [int(child) for child in task.read_text().split()]
            found += children
            waiting += children
    return found
