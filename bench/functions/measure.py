"""How long it takes from `etcdctl put` to an answer; `cargo xtask bench functions` runs it and writes docs/benchmarks-functions.md.
Real etcd, real builds, processes of this machine."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests")]

from harness.functions import BUILD, WORDS, Etcd, archive, function  # noqa: E402
from harness.machine import machine  # noqa: E402
from harness.processes import BERTH  # noqa: E402
from harness.server import Berth  # noqa: E402
from harness.waiting import until  # noqa: E402

CODE = ROOT / "examples/functions"
# What the real Keras needs; a backend beside it.
KERAS = "keras==3.10.0\njax==0.4.30\njaxlib==0.4.30\nnumpy<2.1\nscipy<1.14\n"
KERAS_HANDLER = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np
MODEL = keras.saving.load_model(os.path.join(os.path.dirname(os.path.abspath(__file__)), "model.keras"))
def predict(body):
    words = body["text"].split()
    return {"positive": MODEL.predict(np.array([[words.count("good"), words.count("bad")]], "float32"), verbose=0)[0][0], "keras": keras.__version__}
"""


class Watch:
    """Statuses of functions as `etcdctl watch` tells them, with their times."""

    def __init__(self, etcd: Etcd):
        self.seen: dict[str, list[tuple[float, dict]]] = {}
        command = ["etcdctl", "--endpoints", etcd.members[0].client, "watch", "--prefix", "/models/deployments/"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"ETCDCTL_API": "3"})
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self) -> None:
        for line in self.process.stdout:
            if line.startswith("{"):
                value = json.loads(line)
                self.seen.setdefault(value["metadata"]["name"], []).append((time.perf_counter(), value))

    def succeeded_at(self, name: str, generation: int) -> float | None:
        for when, value in list(self.seen.get(name, [])):
            status = value.get("status", {})
            if status.get("observedGeneration") == generation:
                assert status["phase"] != "Failed", f"{name}: {status['message']}"
                if status["phase"] == "Succeeded":
                    return when
        return None

    def succeeded(self, name: str, generation: int) -> float:
        return until(f"Succeeded of {name}", lambda: self.succeeded_at(name, generation), BUILD * 4)


def milliseconds(samples: list[float]) -> str:
    ordered = sorted(samples)
    return f"{statistics.median(ordered) * 1e3:.0f} | {ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] * 1e3:.0f} | {len(ordered)}"


class Bench:
    def __init__(self, folder: Path, rounds: int, at_once: int):
        self.folder, self.rounds, self.at_once = folder, rounds, at_once
        self.etcd = Etcd(folder)
        self.berth = Berth(folder)
        self.berth.start("--source", f"etcd={self.etcd.client}", "--function-target", "local")
        self.watch = Watch(self.etcd)

    def put(self, name: str, value: dict) -> float:
        """The time at which etcd has it."""
        self.etcd.put(value)
        return until(f"the put of {name}", lambda: next((when for when, seen in list(self.watch.seen.get(name, [])) if seen["metadata"].get("generation") == value["metadata"]["generation"]), None))

    def took(self, name: str, generation: int) -> float:
        """Seconds of a build, from the log: the status tells tenths."""
        for line in self.berth.logged_lines():
            context = json.loads(line).get("context", {}) if '"function_built"' in line else {}
            if (context.get("function"), context.get("generation")) == (name, generation):
                return context["took_ms"] / 1e3
        raise AssertionError(f"the log tells of no build of generation {generation} of {name}")

    def put_to_answering(self) -> tuple[list[float], list[float]]:
        """Versions of a function without packages: all of it, and the build in it."""
        whole, builds = [], []
        for number in range(1, self.rounds + 1):
            began = self.put("words", function("words", archive(self.folder, f"{number}.zip", {"handler.py": WORDS % number}), number, probe={"text": "a"}))
            whole.append(self.watch.succeeded("words", number) - began)
            builds.append(self.took("words", number))
        return whole, builds

    def change_of_nothing(self) -> tuple[list[float], int]:
        """The same code under another generation: time to `Succeeded`, and builds."""
        before = self.berth.metric("berth_function_builds_total", result="built")
        samples = []
        for number in range(self.rounds + 1, 2 * self.rounds + 1):
            began = self.put("words", function("words", f"file:{self.folder}/{self.rounds}.zip", number, probe={"text": "a"}))
            samples.append(self.watch.succeeded("words", number) - began)
        return samples, int(self.berth.metric("berth_function_builds_total", result="built") - before)

    def many(self) -> float:
        """So many specs at once, each with code of its own, until the last one answers."""
        names = [f"many-{n}" for n in range(self.at_once)]
        values = [function(name, archive(self.folder, f"{name}.zip", {"handler.py": WORDS % (1_000 + n)})) for n, name in enumerate(names)]
        lines = [f"put /models/deployments/{value['metadata']['name']} {json.dumps(json.dumps(value))}" for value in values]
        began = time.perf_counter()
        for start in range(0, len(lines), 50):
            command = ["etcdctl", "--endpoints", self.etcd.client, "txn"]
            puts = "\n".join(lines[start : start + 50])
            subprocess.run(command, input=f"\n{puts}\n\n\n", text=True, check=True, capture_output=True, env=os.environ | {"ETCDCTL_API": "3"})
        return max(self.watch.succeeded(name, 1) for name in names) - began

    def keras(self) -> tuple[float, float, dict]:
        """A model that the real Keras loads and asks: all of it, the build, the answer."""
        more = {"handler.py": KERAS_HANDLER.encode(), "requirements.txt": KERAS.encode()}
        model = (CODE / "sentiment-keras/model.keras").read_bytes()
        uri = archive(self.folder, "keras.zip", more | {"model.keras": model})
        began = self.put("keras", function("keras", uri, type="keras", runtime={"pythonVersion": "3.11"}, limits={"timeoutSeconds": 120}))
        whole = self.watch.succeeded("keras", 1) - began
        answer = json.loads(self.berth.post("/functions/keras", {"text": "good good film"})[2])
        return whole, self.took("keras", 1), answer

    def close(self) -> None:
        self.watch.process.kill()
        self.berth.close()
        self.etcd.close()


def keras_row(bench: Bench) -> str:
    """The real Keras is half a gigabyte of packages; where they cannot be had, the other figures stand."""
    try:
        whole, build, answer = bench.keras()
    except AssertionError as error:
        return f"Keras with JAX was not measured: {str(error)[:300]}"
    shown = f"Keras {answer['keras']} with JAX loads a saved model and answers ({answer['positive']:.3f})"
    return f"{shown}: {whole:.0f} s from put to answering, of which {build:.0f} s are its build."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--controller", type=Path, required=True, help="the program controller_bench")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    busy = os.getloadavg()[0]
    said = lambda text: print(text, file=sys.stderr, flush=True)
    said("the controller with 10,000 functions")
    controller = json.loads(subprocess.run([options.controller], check=True, capture_output=True, text=True).stdout)
    version = subprocess.run([BERTH, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.rounds, options.at_once)
        try:
            said("versions of a function")
            whole, builds = bench.put_to_answering()
            said("the same code again")
            same, built = bench.change_of_nothing()
            said(f"{options.at_once} specs at once")
            many = bench.many()
            said("Keras")
            keras = keras_row(bench)
        finally:
            bench.close()
    page = PAGE.format(
        machine=machine(), version=version, busy=busy, at_once=options.at_once, many=many, keras=keras, built=built,
        whole=milliseconds(whole), builds=milliseconds(builds), rest=milliseconds([a - b for a, b in zip(whole, builds)]),
        same=milliseconds(same), same_p50=statistics.median(same) * 1e3, **controller,
    )  # fmt: skip
    print(page)
    if options.out:
        options.out.write_text(page)


PAGE = """# Benchmarks of functions

Written by `bench/functions/measure.py`, which `cargo xtask bench functions` runs, on one machine: {machine}. {version}, release build. etcd (one member, which does
not wait for its disk), the builds and the processes of functions share its cores; the load average before the run was {busy:.1f}.

## From a put to an answer

Times begin when etcd has the object and end when its phase is `Succeeded`: the new version has started and has answered `spec.probe`. The function is
in Python and has no packages; each version has different code. Builds and processes run in sandboxes if the machine can make them.

| step | p50 ms | p95 ms | n |
|---|---|---|---|
| put → answering | {whole} |
| the build alone | {builds} |
| put → answering, without the build | {rest} |
| a new generation of the same code, {built} builds | {same} |

{keras}

## Many functions

The first row measures the whole way, with as many builds at once as there are cores. The others measure only the controller: its decisions about {functions:,} functions
that serve, without the store, builds and targets. A change is a new version of one of them, from reading the object to its last status.

| | |
|---|---|
| {at_once} specs put at once, each with its own code, until the last one answers | {many:.1f} s |
| one change among {functions:,} functions | p50 {change_ms_p50} ms, p99 {change_ms_p99} ms |
| first listing of {functions:,} objects | {listed_ms} ms |
| memory of the controller for each of them | {bytes_each:,} bytes |

## Targets

| target | measured |
|---|---|
| a new generation of the same code: no build, within 50 ms | {built} builds, p50 {same_p50:.0f} ms |
| one change among 10,000 functions: 5 ms in the controller | p99 {change_ms_p99} ms |
| 2 KiB of memory for each function | {bytes_each:,} bytes |
"""


if __name__ == "__main__":
    main()
