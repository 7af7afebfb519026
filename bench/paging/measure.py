"""More models in use than fit into memory: `cargo xtask bench paging` runs it and writes docs/benchmarks-paging.md.

Forests of several sizes are served on demand by one `berth up` whose memory holds a share of them. Clients ask for them with
popularities after Zipf. In a closed loop each asks over one kept connection, the next as soon as the last was answered. In an
open loop as many clients send at random moments, 70 % of what the closed loop of their number came to, whether earlier requests
were answered or not; there a request's time counts from the moment at which it was to be sent.

The same requests, in the order in which they were sent, are then given to Belady's rule, which knows what comes. It gets the
memory that models can get: the bound, less what the process takes without any.

A request that found its model away is a miss (`berth_gateway_misses_total`); of all latencies the longest, as many as there
were misses, are taken for theirs.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import http.client
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/e2e")]
os.environ.setdefault("EXAMPLE_MODELS", str(ROOT / "examples/models"))

from conftest import Berth  # noqa: E402
from harness import forests  # noqa: E402
from harness.examples import manifest  # noqa: E402
from harness.waiting import PATIENCE  # noqa: E402

MIB = 1 << 20
# Trees of the forests, in turn: about 0.3, 0.6, 1.3 and 2.6 MiB of file, and several times that in memory.
SIZES = [40, 80, 160, 320]


def quantile(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Popularity:
    """Zipf with exponent 1 over a shuffled order, so that size and popularity have nothing to do with each other."""

    def __init__(self, count: int, seed: int):
        self.chance = random.Random(seed)
        self.order = list(range(count))
        self.chance.shuffle(self.order)
        self.sums = list(itertools.accumulate(1 / rank for rank in range(1, count + 1)))

    def draw(self) -> int:
        return self.order[bisect.bisect_left(self.sums, self.chance.random() * self.sums[-1])]


# Share of a closed loop's rate at which the open one sends, and the most of its requests that are out at once.
OPEN_SHARE = 0.7
OPEN_AT_ONCE = 512


class Clients:
    """Callers over one list of requests: `count` of them in a closed loop, or as many as it takes for so many a second."""

    def __init__(self, address: str, count: int, models: list[int], per_second: float | None = None):
        self.address, self.models, self.lock = address, iter(models), threading.Lock()
        self.moments: Iterator[float] | None = None
        if per_second is not None:
            chance = random.Random(count)
            self.moments = itertools.accumulate(chance.expovariate(per_second) for _ in models)
            count = OPEN_AT_ONCE
        self.sent: list[int] = []
        self.latencies: list[float] = []
        self.failed: list[tuple[int, str]] = []
        self.threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(count)]

    def run(self) -> float:
        self.begun = time.monotonic()
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        return time.monotonic() - self.begun

    def _next(self) -> tuple[int, float] | None:
        """The next model, and the moment at which it is to be asked for."""
        with self.lock:
            if (model := next(self.models, None)) is None:
                return None
            self.sent.append(model)
            return model, time.monotonic() if self.moments is None else self.begun + next(self.moments)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        body = json.dumps(forests.REQUEST)
        while (request := self._next()) is not None:
            model, begun = request
            if (early := begun - time.monotonic()) > 0:
                time.sleep(early)
            try:
                connection.request("POST", f"/v2/models/forest-{model}/infer", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                status, text = answer.status, answer.read().decode()
            except (OSError, http.client.HTTPException) as error:
                status, text = 0, repr(error)
                connection.close()
            self.latencies.append(time.monotonic() - begun)
            if status != 200:
                self.failed.append((status, text[:300]))
        connection.close()


def belady(requests: list[int], sizes: dict[int, int], memory: int) -> float:
    """The share of hits of whoever knows the future: what is needed last goes first."""
    uses: dict[int, list[int]] = {}
    for at, model in enumerate(requests):
        uses.setdefault(model, []).append(at)
    upcoming = {model: iter(at) for model, at in uses.items()}
    following = {model: next(each) for model, each in upcoming.items()}
    held: set[int] = set()
    last: list[tuple[int, int]] = []  # what is held by its next use, the farthest first; outdated entries are skipped
    free, hits = memory, 0
    for model in requests:
        following[model] = next(upcoming[model], len(requests))
        if model in held:
            hits += 1
        else:
            while sizes[model] > free and held:
                away, other = heapq.heappop(last)
                if other in held and -away == following[other]:
                    held.discard(other)
                    free += sizes[other]
            held.add(model)
            free -= sizes[model]
        heapq.heappush(last, (-following[model], model))
    return hits / len(requests)


class Bench:
    def __init__(self, folder: Path, options: argparse.Namespace):
        self.options = options
        self.files = forests.write(folder / "forests", options.forests, options.trees)
        self.berth = Berth(folder)

    def deploy(self) -> None:
        more = {"resources": {"memory": self.options.declare}} if self.options.declare else {}
        demand = {"min": 0, "max": 1}
        named = [manifest(file.stem, replicas=demand, model={"uri": f"file:{file}"}, timeout="60s", **more) for file in self.files]
        for at in range(0, len(named), 500):
            self.berth.apply(*named[at : at + 500])

    def memory(self, field: str) -> int:
        status = Path(f"/proc/{self.berth.process.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(field))

    def sizes(self) -> dict[int, int]:
        """Memory of each model, as it was measured; of what was never loaded the mean of its size's."""
        measured: dict[int, int] = {}
        for event in json.loads(self.berth.run("get", "events", "-o", "json"))["items"]:
            if event["reason"] == "Loaded":
                number = int(event["deployment"].rsplit("-", 1)[1])
                word = event["message"].split(" is ready on ")[1].split(": ")[1].split(" of memory")[0]
                measured[number] = bytes_of(word)
        of_size = {size: [m for n, m in measured.items() if n % len(self.options.trees) == size] for size in range(len(self.options.trees))}
        means = {size: int(statistics.mean(each)) for size, each in of_size.items() if each}
        usual = int(statistics.mean(means.values()))
        return {n: measured.get(n, means.get(n % len(self.options.trees), usual)) for n in range(self.options.forests)}

    def load(self, clients: int, per_second: float | None = None) -> dict:
        popularity = Popularity(self.options.forests, 7)
        popularity.chance.seed(clients)
        models = [popularity.draw() for _ in range(self.options.requests)]
        callers = Clients(self.berth.http, clients, models, per_second)
        before = self.berth.metric("berth_gateway_misses_total")
        seconds = callers.run()
        misses = int(self.berth.metric("berth_gateway_misses_total") - before)
        latencies = sorted(callers.latencies)
        hit, missed = latencies[: len(latencies) - misses], latencies[len(latencies) - misses :]
        for status, text in callers.failed[:3]:
            print(f"  {status}: {text}", file=sys.stderr)
        row = {
            "clients": clients,
            "loop": "closed" if per_second is None else "open",
            "requests": len(latencies),
            "refused": len(callers.failed),
            "hits": 1 - misses / len(latencies),
            "per_second": len(latencies) / seconds,
            "hit": (quantile(hit, 0.5), quantile(hit, 0.99)),
            "miss": (quantile(missed, 0.5), quantile(missed, 0.99)),
            "resident": self.memory("VmHWM"),
            "sent": callers.sent,
        }
        print({key: value for key, value in row.items() if key != "sent"}, file=sys.stderr)
        return row

    def run(self) -> list[dict]:
        self.berth.start("--memory", self.options.memory, env={"RUST_BACKTRACE": "1"})
        try:
            self.deploy()
            empty = self.memory("VmRSS")
            print(f"without models: {empty / MIB:.0f} MiB", file=sys.stderr)
            rows = [self.load(clients) for clients in self.options.clients]
            rows += [self.load(row["clients"], OPEN_SHARE * row["per_second"]) for row in list(rows)]
            sizes, bound = self.sizes(), bytes_of(self.options.memory)
            print(f"all of them take {sum(sizes.values()) / bound:.1f} times the bound", file=sys.stderr)
            for row in rows:
                row["belady"] = belady(row.pop("sent"), sizes, bound - empty)
            return rows
        finally:
            self.berth.close()


def bytes_of(text: str) -> int:
    units = {"KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30, "B": 1}
    unit = next(unit for unit in units if text.endswith(unit))
    return int(float(text.removesuffix(unit)) * units[unit])


def page(rows: list[dict], options: argparse.Namespace) -> str:
    bound = bytes_of(options.memory)
    milliseconds = lambda pair: f"{pair[0] * 1e3:.1f} / {pair[1] * 1e3:.1f}"
    lines = [
        "# Benchmarks: more models in use than fit",
        "",
        f"`cargo xtask bench paging` wrote this page: {options.forests} forests of four sizes, all on demand, `--memory {options.memory}`, "
        f"{options.requests} requests for each row, popularity after Zipf. In the open loop so many clients send at random moments, {OPEN_SHARE:.0%} of",
        "the closed loop's rate. Latencies are in milliseconds, p50 / p99. Belady's rule knows the future; its hits are what could be had at most.",
        "Peak memory is that of the process, as the kernel counts it. The bars: nothing refused, 95 % of Belady's hits, 110 % of the bound.",
        "",
        "| loop | clients | refused | hits | of Belady's | hit ms | miss ms | requests/s | peak memory of bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['loop']} | {row['clients']} | {row['refused']} of {row['requests']} | {row['hits']:.1%} | {row['hits'] / max(row['belady'], 1e-9):.1%} | "
            f"{milliseconds(row['hit'])} | {milliseconds(row['miss'])} | {row['per_second']:.0f} | {row['resident'] / bound:.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--forests", type=int, default=2_000)
    parser.add_argument("--requests", type=int, default=20_000, help="for each number of clients")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--memory", default="4GiB", help="about a quarter of what the forests take together")
    parser.add_argument("--trees", type=int, nargs="+", default=SIZES, help="of the forests, in turn")
    parser.add_argument("--declare", help="a size for all of them, where none is to be predicted")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        rows = Bench(Path(folder), options).run()
    text = page(rows, options)
    if options.out:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
