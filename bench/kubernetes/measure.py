"""The operator beside many objects: `cargo xtask bench kubernetes` runs it and writes docs/benchmarks-kubernetes.md. The control plane
and the operators are those of tests/kubernetes: processes of this machine.

Times are of one clock: that of the API server's audit log and of the operators' logs. A change begins when the API server has
answered who wrote a CLOpsDeployment, and ends when it has answered the operator that wrote the Deployment of that name.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/kubernetes")]

from conftest import Operator, install  # noqa: E402
from control_plane import BERTH as API  # noqa: E402
from control_plane import OPERATOR, ControlPlane  # noqa: E402
from harness.engines import busy, fields  # noqa: E402
from harness.machine import machine  # noqa: E402
from harness.processes import BERTH  # noqa: E402
from harness.waiting import until  # noqa: E402
from models import REDIS, asynchronous, clops, settled  # noqa: E402

NAMESPACE = "bench"
TICKS = os.sysconf("SC_CLK_TCK")
# The objects take turns in having them.
SHAPES = {
    "as small as can be": {},
    "files that are fetched first": {"parameters": [{"name": "weights", "uri": "s3://models/iris/1/", "mountPath": "/models", "credentialsSecret": "store"}]},
    "an autoscaler": {"replicas": None, "autoscaling": {"minReplicas": 2, "maxReplicas": 9, "cpuUtilization": 60}},
    "limits in the executor": {"executor": {"ports": [{"name": "http", "settings": {"maxInFlight": 8, "timeout": "10s"}}]}},
    "an asynchronous port": asynchronous(REDIS),
    "no executor": {"executor": {"enabled": False}},
}  # fmt: skip


def written(number: int, version: str = "1") -> dict:
    """An object with this version of its image."""
    container = {"image": f"registry.example/iris:{version}", "ports": [{"name": "http", "port": 8080}]}
    return clops(NAMESPACE, named(number), container=container, **list(SHAPES.values())[number % len(SHAPES)])


def named(number: int) -> str:
    return f"model-{number}"


def seconds(time_of_day: str) -> float:
    """Since 1970."""
    return datetime.datetime.fromisoformat(time_of_day.replace("Z", "+00:00")).timestamp()


def quantile(samples: list[float], share: float) -> float:
    """The least sample that no fewer than this share of all are below or at."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def counted(requests: Iterable[tuple[str, str]]) -> str:
    """Requests by verb and resource, the most frequent first."""
    return ", ".join(f"{count} {verb} {resource}" for (verb, resource), count in Counter(requests).most_common()) or "none"


class Request:
    """A request in the audit log."""

    def __init__(self, line: dict):
        place = line.get("objectRef", {})
        self.id, self.user, self.verb = line["auditID"], line["user"]["username"], line["verb"]
        self.resource = "/".join(filter(None, [place.get("resource", line["requestURI"]), place.get("subresource")]))
        self.name, self.code = place.get("name", ""), line.get("responseStatus", {}).get("code")
        self.came, self.answered = seconds(line["requestReceivedTimestamp"]), seconds(line["stageTimestamp"])

    def writes(self) -> bool:
        """True for writes to what the operator is there for. It renews its Lease all the time."""
        return self.verb not in ("get", "list", "watch") and self.resource != "leases"


class Measured(Operator):
    """An operator whose log is as it is without a setting."""

    def spawn(self, *command: str, env: dict | None = None) -> None:
        self.begun = time.time()
        super().spawn(*command, env=(env or {}) | {"BERTH_LOG": "info"})

    def is_idle(self) -> bool:
        assert self.runs(), f"it ended: {self.logged()}"
        return super().is_idle()

    def ready_after(self) -> float:
        """From the start of the process until it has looked at all objects, and nothing waits."""
        line = next(line for line in self.logged_lines() if '"ready"' in line)
        return seconds(json.loads(line)["timestamp"]) - self.begun

    def memory(self) -> float:
        """In MiB."""
        return int(fields(self.process.pid)["VmRSS"].split()[0]) / 1024

    def processor(self) -> float:
        """Seconds so far."""
        return busy(self.process.pid) / TICKS


class Bench:
    def __init__(self, folder: Path, options: argparse.Namespace):
        self.folder, self.options, self.started = folder, options, 0
        self.changed = min(options.changes, options.objects // 2)
        self.plane = ControlPlane(folder)

    def operator(self) -> Measured:
        """Another one, not started."""
        self.started += 1
        return Measured(self.folder, self.plane, f"operator-{self.started}")

    def requests(self, begin: float, who: str = OPERATOR) -> list[Request]:
        """What a user asked of the API server from then on, each request once, in the order of the answers."""
        last = {request.id: request for request in map(Request, self.plane.audited()) if request.user == who and request.came >= begin}
        return sorted(last.values(), key=lambda request: request.answered)

    def make(self) -> float:
        """The objects, by one writer, until an operator has made everything for all of them: seconds."""
        self.plane.create("api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        operator = self.operator().start()
        begun = time.time()
        self.plane.create(f"{API}/namespaces/{NAMESPACE}/clopsdeployments", *map(written, range(self.options.objects)))
        # A list of many objects costs the API server more than a change of one.
        until("all objects", lambda: operator.is_idle() and settled(self.plane, NAMESPACE), patience=3600)
        took = max(request.answered for request in self.requests(begun) if request.writes()) - begun
        assert operator.stop() == 0
        return took

    def starts(self) -> tuple[Measured, dict]:
        """Of one operator after the other; the last one runs on."""
        begun, samples = time.time(), []
        for number in range(self.options.starts):
            operator = self.operator().start()
            samples.append((operator.ready_after(), operator.processor(), operator.memory()))
            if number + 1 < self.options.starts:
                assert operator.stop() == 0
        times, processor, memory = zip(*samples)
        writes = [request for request in self.requests(begun) if request.writes()]
        tell("the starts wrote", writes)
        figures = {"start_p50": statistics.median(times), "start_max": max(times), "start_writes": len(writes)}
        return operator, figures | {"start_processor": statistics.median(processor), "start_memory": statistics.median(memory)}

    def change(self, number: int, version: str, plane: ControlPlane) -> None:
        """Returns when the Deployment has it."""
        plane.apply(written(number, version))
        images = lambda: [one["image"] for one in plane.get("deployment", NAMESPACE, named(number))["spec"]["template"]["spec"]["containers"]]
        until(f"{version} of {named(number)}", lambda: f"registry.example/iris:{version}" in images())

    def changes(self, version: str) -> float:
        """One object after another; the time at which that began."""
        begun = time.time()
        for number in range(self.changed):
            self.change(number, version, self.plane)
        return begun

    def latencies(self, begin: float) -> list[float]:
        """Of all that `changes` changed since then, in seconds."""
        names, found, asked = {named(number) for number in range(self.changed)}, [], {}
        both = [*self.requests(begin, "admin"), *self.requests(begin)]
        for one in sorted(both, key=lambda request: request.answered):
            if one.name not in names or one.verb != "patch" or one.code != 200:
                continue
            if one.user == "admin" and one.resource == "clopsdeployments":
                asked[one.name] = one.answered
            elif one.user == OPERATOR and one.resource == "deployments" and one.name in asked:
                found.append(one.answered - asked.pop(one.name))
        return found

    def measured(self, begin: float) -> list[float]:
        """The audit log may be a moment behind."""
        return until("all changes in the audit log", lambda: len(found := self.latencies(begin)) == self.changed and found)

    def alone(self, operator: Measured) -> dict:
        before = operator.processor()
        begun = self.changes("alone")
        until("the statuses", lambda: operator.is_idle() and settled(self.plane, NAMESPACE))
        writes = [(one.verb, one.resource) for one in self.requests(begun) if one.writes()]
        return {
            "alone": self.measured(begun),
            "change_processor": (operator.processor() - before) / self.changed * 1e3,
            "change_writes": len(writes) / self.changed,
            "change_kinds": ", ".join(f"{verb} {resource}" for (verb, resource), _ in Counter(writes).most_common()),
        }

    def beside_writers(self) -> dict:
        """Each writer changes objects of its own, the next one when the Deployment of the last one has the change."""
        done, writers = threading.Event(), self.options.writers

        def write(writer: int) -> int:
            # With a connection of its own.
            plane, count = copy.copy(self.plane), 0
            plane.connection = None
            own = range(self.changed + writer, self.options.objects, writers)
            while own and not done.is_set():
                self.change(own[count % len(own)], f"writer-{count}", plane)
                count += 1
            plane.hang_up()
            return count

        with ThreadPoolExecutor(writers) as threads:
            running = [threads.submit(write, writer) for writer in range(writers)]
            try:
                begun = self.changes("beside")
                took = time.time() - begun
            finally:
                done.set()
            others = sum(one.result() for one in running)
        return {"beside": self.measured(begun), "others": others / took}

    def rest(self, operator: Measured) -> dict:
        until("nothing to do", lambda: operator.is_idle() and settled(self.plane, NAMESPACE))
        memory, before, begun = operator.memory(), operator.processor(), time.time()
        time.sleep(self.options.rest)
        processor = operator.processor() - before
        requests = [(one.verb, one.resource) for one in self.requests(begun) if one.came <= begun + self.options.rest]
        return {"rest_memory": memory, "rest_processor": processor * 1e3, "rest_requests": len(requests), "rest_kinds": counted(requests)}

    def takeovers(self, operator: Measured) -> dict:
        """Each operator is followed by one of another image: seconds until it has reconciled a change, by how the first one ended."""
        told, killed, besides = [], [], 0
        for number in range(2 * self.options.takeovers):
            samples, end = (told, operator.stop) if number % 2 == 0 else (killed, operator.kill)
            following = self.operator().start(image=f"registry.example/berth:{number + 2}", leads=False)
            until("the next one to wait", lambda: '"following"' in following.logged())
            took, others = self.takeover(end, number)
            samples.append(took)
            besides += others
            operator = following
        return {"told": told, "killed": killed, "besides": besides}

    def takeover(self, end: Callable, number: int) -> tuple[float, int]:
        """Seconds, and writes to other objects."""
        begun = time.time()
        end()
        changed = named(number % self.options.objects)
        self.change(number % self.options.objects, f"takeover-{number}", self.plane)
        applied = lambda: next((one for one in self.requests(begun) if (one.verb, one.resource, one.name) == ("patch", "deployments", changed)), None)
        took = until("the Deployment in the audit log", applied).answered - begun
        until("all to be as it should be", lambda: settled(self.plane, NAMESPACE))
        others = [one for one in self.requests(begun) if one.writes() and one.resource != "events" and not belongs(one.name, changed)]
        tell("written for other objects", others)
        return took, len(others)

    def run(self) -> dict:
        said = lambda text: print(text, file=sys.stderr, flush=True)
        self.plane.start()
        install(self.plane)
        said(f"{self.options.objects} objects")
        figures = {"made": self.make()}
        said("starts beside them")
        operator, more = self.starts()
        figures |= more
        said(f"{self.changed} changes")
        figures |= self.alone(operator)
        said(f"{self.changed} changes beside {self.options.writers} writers")
        figures |= self.beside_writers()
        said(f"{self.options.rest} s of rest")
        figures |= self.rest(operator)
        said("takeovers")
        return figures | self.takeovers(operator)

    def close(self) -> None:
        for operator in Operator.of_this_test:
            operator.close()
        self.plane.stop()


def tell(what: str, requests: list[Request]) -> None:
    """Names requests that should not have been."""
    if requests:
        print(f"{what}: {[(one.verb, one.resource, one.name) for one in requests]}", file=sys.stderr)


def belongs(name: str, model: str) -> bool:
    """True for an object of this model."""
    return name == model or name.startswith((f"{model}-", f"{model}."))


def row(samples: list[float]) -> str:
    shown = [quantile(samples, 0.5), quantile(samples, 0.99), max(samples)]
    return " | ".join([*(f"{sample * 1e3:.1f}" for sample in shown), str(len(samples))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000, help="at least 20")
    parser.add_argument("--changes", type=int, default=100, help="no more than half of the objects are changed")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--takeovers", type=int, default=3, help="of each kind")
    parser.add_argument("--rest", type=int, default=60, help="seconds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    version = subprocess.run([BERTH, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        bench = Bench(Path(folder), options)
        try:
            figures = bench.run()
        finally:
            bench.close()
    page = PAGE.format(
        **figures | {"told": statistics.median(figures["told"]), "killed": statistics.median(figures["killed"])},
        told_max=max(figures["told"]), killed_max=max(figures["killed"]), alone_row=row(figures["alone"]), beside_row=row(figures["beside"]),
        alone_p50=quantile(figures["alone"], 0.5) * 1e3, alone_p99=quantile(figures["alone"], 0.99) * 1e3, machine=machine(), version=version,
        busy=load, shapes=", ".join(SHAPES), changes=bench.changed, **{name: value for name, value in vars(options).items() if name not in ("changes", "out")},
    )  # fmt: skip
    print(page)
    if options.out:
        options.out.write_text(page)


PAGE = """# Benchmarks of the operator

Written by `bench/kubernetes/measure.py`, which `cargo xtask bench kubernetes` runs, on one machine: {machine}. {version}, release build. The API server (1.20.2), its etcd, which
does not wait for its disk, the garbage collector, the writers and the [operator](kubernetes.md) share its cores; the load average before it began was {busy:.1f}. No pod runs, and the operator's
webhooks are not registered: a cluster adds their answers to each write.

{objects:,} CLOpsDeployments have these shapes in turn: {shapes}. Times are of the API server's audit log and of the operator's log.

## Start

A start runs from the process to the line `ready`: all objects were read and looked at, and nothing waits. Medians are of {starts} starts.

| | |
|---|---|
| {objects:,} objects are made by one writer, until the last write for them | {made:.1f} s |
| start beside them: median | {start_p50:.2f} s |
| start beside them: longest | {start_max:.2f} s |
| writes of all {starts} starts, the Lease apart | {start_writes} |
| processor time of a start | {start_processor:.2f} s |
| memory (RSS) after a start | {start_memory:.0f} MiB |

## A change

An object gets another image. The time begins when the API server has accepted that, and ends when it has accepted the changed Deployment: the ModelDeployment is on the way. The next object is
changed when the Deployment of the last one is. Each of the {writers} writers does the same with objects of its own: {others:.1f} changes a second, together.

| {changes} changes, one after another | p50 ms | p99 ms | longest ms | n |
|---|---|---|---|---|
| nobody else writes | {alone_row} |
| {writers} writers change other objects | {beside_row} |

| | |
|---|---|
| writes of the operator for one change | {change_writes:.1f}: {change_kinds} |
| its processor time for one change | {change_processor:.1f} ms |

## At rest

{rest} seconds in which nobody changes anything.

| | |
|---|---|
| requests to the API server | {rest_requests}: {rest_kinds} |
| processor time | {rest_processor:.0f} ms |
| memory (RSS) | {rest_memory:.0f} MiB |

## From one operator to the next

An operator with another image waits while the first one leads, and the first one ends; then an object is changed. The time begins when the first one is told to end, or is killed, and ends when
the API server has accepted the changed Deployment. {takeovers} of each.

| | median s | longest s |
|---|---|---|
| it is told to end (SIGTERM), as in an upgrade, and gives its Lease back | {told:.1f} | {told_max:.1f} |
| it is killed: its Lease ends 15 s later | {killed:.1f} | {killed_max:.1f} |

Writes to other objects in all of them: {besides}.

## Targets

| target | here |
|---|---|
| one change among {objects:,} objects within 50 ms | p50 {alone_p50:.1f} ms, p99 {alone_p99:.1f} ms |
| a start beside {objects:,} objects within 10 s, without a write | {start_max:.2f} s at most, {start_writes} writes |
"""


if __name__ == "__main__":
    main()
