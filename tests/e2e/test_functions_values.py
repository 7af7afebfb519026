"""Values that functions return: what becomes JSON, and what is refused in a sentence instead of being sent as something else."""

from __future__ import annotations

import pytest

from harness.functions import Etcd, archive, ask, function
from harness.waiting import until

PYTHON = """
import asyncio, sys

class Model:
    pass

def predict(kind):
    if kind == "exit":
        sys.exit(3)
    if kind == "cancelled":
        raise asyncio.CancelledError
    return {
        "nan": lambda: {"scores": [0.5, float("nan")]},
        "generator": lambda: (n for n in range(3)),
        "object": lambda: [Model()],
        "bytes": lambda: b"text",
        "set": lambda: {1},
        "none": lambda: None,
    }[kind]()
"""

JAVASCRIPT = """
export const handler = (kind) => ({
  nan: () => ({ scores: [0.5, NaN] }),
  generator: () => (function* () { yield 1; })(),
  stream: () => ({ scores: (async function* () { yield 1; })() }),
  function: () => () => 1,
  typed: () => Float32Array.of(0.5),
  nothing: () => undefined,
})[kind]();
"""


@pytest.fixture
def etcd(tmp_path):
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.close()


@pytest.mark.timeout(600)
def test_values_become_json_or_are_refused(berth, etcd, tmp_path):
    berth.start("--source", f"etcd={etcd.client}", "--function-target", "local")
    etcd.put(function("python", archive(tmp_path, "python.zip", {"handler.py": PYTHON})))
    script = archive(tmp_path, "script.zip", {"handler.mjs": JAVASCRIPT})
    etcd.put(function("script", script, type="javascript", entrypoint="handler.handler"))
    for name in ("python", "script"):
        etcd.settled(name, "Succeeded", 1)
    # A strict parser reads no NaN.
    for name, kind, refusal in [
        ("python", "nan", "ValueError: Out of range float values are not JSON compliant"),
        ("python", "generator", "TypeError: the function returned a generator, which is no JSON"),
        ("python", "object", "TypeError: the function returned a Model, which is no JSON"),
        ("python", "exit", "SystemExit: 3"),
        ("python", "cancelled", "CancelledError: "),
        ("script", "generator", "TypeError: the function returned an iterator, which is no JSON"),
        ("script", "stream", "TypeError: the function returned an iterator, which is no JSON"),
        ("script", "function", "TypeError: the function returned a function, which is no JSON"),
    ]:
        status, answer = ask(berth, name, kind)
        assert (status, answer["error"].startswith(refusal)) == (500, True), (name, kind, answer)
    for name, kind, value in [
        ("python", "bytes", "text"),
        ("python", "set", [1]),
        ("python", "none", None),
        ("script", "nan", {"scores": [0.5, None]}),
        ("script", "typed", [0.5]),
        ("script", "nothing", None),
    ]:
        assert ask(berth, name, kind) == (200, value), (name, kind)
    # All of it by one process of each: none was lost to an answer.
    until("both processes to be counted", lambda: berth.metric("berth_function_processes") == 2)
    # The next function of its name may be somebody else's.
    log = berth.data / "functions/builds/logs/python.log"
    assert log.exists()
    etcd.ctl("del", "/models/deployments/python")
    until("its log to go", lambda: not log.exists())
