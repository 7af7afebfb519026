"""How long it takes from `etcdctl put` to an answer; `cargo xtask bench functions` runs it and writes docs/benchmarks-functions.md.
Real etcd, real builds, processes of this machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests")]

from harness.functions import BUILD, WORDS, Etcd, archive, archive_of, function  # noqa: E402
from harness.server import Berth  # noqa: E402
from harness.waiting import until  # noqa: E402

CODE = ROOT / "examples/functions"
ROUNDS, AT_ONCE = 20, 200

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

    def at(self, name: str, phase: str, generation: int) -> float | None:
        for when, value in list(self.seen.get(name, [])):
            status = value.get("status", {})
            if status.get("phase") == phase and status.get("observedGeneration") == generation:
                return when
        return None

    def until(self, name: str, phase: str, generation: int) -> float:
        return until(f"{phase} of {name}", lambda: self.at(name, phase, generation), BUILD * 4)


def milliseconds(samples: list[float]) -> str:
    ordered = sorted(samples)
    return f"{statistics.median(ordered) * 1e3:.0f} | {ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] * 1e3:.0f} | {len(ordered)}"


class Bench:
    def __init__(self, folder: Path):
        self.folder, self.etcd = folder, Etcd(folder)
        self.berth = Berth(folder)
        self.berth.start("--source", f"etcd={self.etcd.client}", "--function-target", "local")
        self.watch = Watch(self.etcd)

    def put(self, name: str, value: dict) -> float:
        """The time at which etcd has it."""
        self.etcd.put(value)
        return until(f"the put of {name}", lambda: next((when for when, seen in list(self.watch.seen.get(name, [])) if seen["metadata"].get("generation") == value["metadata"]["generation"]), None))

    def took(self, name: str) -> float:
        return float(self.etcd.status(name)["build"]["took"].removesuffix("s"))

    def put_to_answering(self) -> tuple[list[float], list[float]]:
        """Versions of a function without packages: all of it, and the build in it."""
        whole, builds = [], []
        for number in range(1, ROUNDS + 1):
            began = self.put("words", function("words", archive(self.folder, f"{number}.zip", {"handler.py": WORDS % number}), number, probe={"text": "a"}))
            whole.append(self.watch.until("words", "Succeeded", number) - began)
            builds.append(self.took("words"))
        return whole, builds

    def change_of_nothing(self) -> tuple[list[float], int]:
        """The same code under another generation: time to `Succeeded`, and builds."""
        before = self.berth.metric("berth_function_builds_total", result="built")
        samples = []
        for number in range(ROUNDS + 1, 2 * ROUNDS + 1):
            began = self.put("words", function("words", f"file:{self.folder}/{ROUNDS}.zip", number, probe={"text": "a"}))
            samples.append(self.watch.until("words", "Succeeded", number) - began)
        return samples, int(self.berth.metric("berth_function_builds_total", result="built") - before)

    def many(self) -> float:
        """So many specs at once, each with code of its own, until the last one answers."""
        values = [function(f"many-{n}", archive(self.folder, f"many-{n}.zip", {"handler.py": WORDS % (1_000 + n)})) for n in range(AT_ONCE)]
        began = time.perf_counter()
        text = "".join(f"put /models/deployments/{v['metadata']['name']} {json.dumps(json.dumps(v))}\n" for v in values)
        for start in range(0, AT_ONCE, 50):
            lines = "\n".join(text.splitlines()[start : start + 50])
            command = ["etcdctl", "--endpoints", self.etcd.client, "txn"]
            subprocess.run(command, input=f"\n{lines}\n\n\n", text=True, check=True, capture_output=True, env=os.environ | {"ETCDCTL_API": "3"})
        return max(self.watch.until(f"many-{n}", "Succeeded", 1) for n in range(AT_ONCE)) - began

    def keras(self) -> tuple[float, float, dict]:
        """A model that the real Keras loads and asks: all of it, the build, the answer."""
        more = {"handler.py": KERAS_HANDLER.encode(), "requirements.txt": KERAS.encode()}
        model = (CODE / "sentiment-keras/model.keras").read_bytes()
        uri = archive(self.folder, "keras.zip", more | {"model.keras": model})
        began = self.put("keras", function("keras", uri, type="keras", runtime={"pythonVersion": "3.11"}, limits={"timeoutSeconds": 120}))
        whole = self.watch.until("keras", "Succeeded", 1) - began
        answer = json.loads(self.berth.post("/functions/keras", {"text": "good good film"})[2])
        return whole, self.took("keras"), answer

    def close(self) -> None:
        self.watch.process.kill()
        self.berth.close()
        self.etcd.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--controller", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    controller = json.loads(subprocess.run([options.controller], check=True, capture_output=True, text=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            whole, builds = bench.put_to_answering()
            same, built = bench.change_of_nothing()
            many = bench.many()
            keras = bench.keras()
        finally:
            bench.close()
    cores = os.cpu_count()
    text = f"""# Functions: figures

<!-- Written by `cargo xtask bench functions`. -->

{cores} cores, {platform.machine()}, Linux {platform.release()}; a single etcd, bubblewrap where the machine has it. Times begin when etcd has the object and end when
it says `Succeeded`: the new version has started and has answered `spec.probe`.

| step | p50 ms | p95 ms | n |
|---|---|---|---|
| put → answering, a Python function without packages | {milliseconds(whole)} |
| of that the build | {milliseconds(builds)} |
| put → answering, build apart | {milliseconds([a - b for a, b in zip(whole, builds)])} |
| a new generation of the same code ({built} builds) | {milliseconds(same)} |

| | |
|---|---|
| {AT_ONCE} specs put at once, each with its own code, until the last one answers | {many:.1f} s |
| {controller['functions']:,} functions: one change, time of the controller | p50 {controller['change_ms_p50']} ms, p99 {controller['change_ms_p99']} ms |
| {controller['functions']:,} functions: first listing | {controller['listed_ms']} ms |
| memory of the controller for each of them | {controller['bytes_each']:,} bytes |
| Keras {keras[2]['keras']} with JAX, from put to an answer ({keras[2]['positive']:.3f}) | {keras[0]:.0f} s, of which {keras[1]:.0f} s build |
"""
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
