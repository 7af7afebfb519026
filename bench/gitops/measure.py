"""How long it takes from a Git commit to a running fleet, step by step; `cargo xtask bench gitops` runs it and writes
docs/benchmarks-gitops.md. Repositories, workers and load are those of tests/gitops: real git, real processes, on one machine.

Every step is read from the log lines of the nodes (docs/observability.md), which share a clock; the rest is what a client
sees: a push that returns, an API that says `Ready`, an answer.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/gitops")]

from conftest import World  # noqa: E402
from fleet import Load, Server  # noqa: E402
from harness.machine import machine  # noqa: E402
from harness.processes import BERTH  # noqa: E402
from harness.waiting import PATIENCE, until  # noqa: E402

# Packages of the model whose environment is made: no small one, and no giant.
PACKAGES = ["numpy==2.3.5"]
MANIFESTS = 1_000

# Steps that the targets are held against.
ALL = "**from the begin of the push to ready everywhere**"
KNOWN = "a worker is killed: until the controller knows"
WARM = "one of them changes: the controller validates, warm"
STORED = "one of them changes: compared, declared, stored"


def now() -> float:
    return time.time()


def at(entry: dict) -> float:
    """Seconds since 1970, of a log line."""
    return datetime.datetime.fromisoformat(entry["timestamp"].replace("Z", "+00:00")).timestamp()


def since(entries: list[dict], begin: float, **context) -> list[dict]:
    """Log lines from `begin` on with these fields."""
    matches = lambda entry: all(entry["context"].get(key) == value for key, value in context.items())
    return [entry for entry in entries if at(entry) >= begin - 0.001 and matches(entry)]


class Steps:
    """Samples by step, in the order in which steps were first seen."""

    def __init__(self):
        self.samples: dict[str, list[float]] = {}

    def add(self, step: str, seconds: float) -> None:
        self.samples.setdefault(step, []).append(max(seconds, 0.0))

    def table(self) -> str:
        rows = [f"| {step} | {p50(samples) * 1e3:.0f} | {p95(samples) * 1e3:.0f} | {len(samples)} |" for step, samples in self.samples.items()]
        return "| step | p50 ms | p95 ms | n |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def p50(samples: list[float]) -> float:
    return statistics.median(samples)


def p95(samples: list[float]) -> float:
    """Of few samples the slowest."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1) + 0.49))]


class Bench:
    """Two workers that follow a registry with the validating hook, and one model on both."""

    def __init__(self, folder: Path, interval: str):
        self.world = World(folder, options=("--source-interval", interval))
        subprocess.run([BERTH, "registry", "hook", "install", "--local-repositories", str(self.world.registry.bare)], check=True, capture_output=True)
        self.model = self.world.model("doubler")

    def deploy(self, version: str, **more) -> None:
        self.world.registry.deploy("doubler", self.model, version, replicas=2, **more)
        self.world.registry.commit(f"Deploy doubler {version}")

    def webhook(self) -> None:
        """To a node that leads, or to one that sends it on."""
        for node in self.world.fleet.nodes:
            node.call("POST", "/v1/sources/git/webhook", "{}", at=node.api)

    def push(self, steps: Steps, by_webhook: bool) -> tuple[float, float]:
        """Pushes; when it began and ended."""
        begun = now()
        self.world.registry.push()
        pushed = now()
        if by_webhook:
            self.webhook()
        steps.add("push, with the hook's validation", pushed - begun)
        return begun, pushed

    def change(self, version: str, steps: Steps, by_webhook: bool) -> None:
        """One version to the next on both workers, while requests come."""
        self.deploy(version)
        begun, pushed = self.push(steps, by_webhook)
        self.world.until_ready("doubler", version, 2)
        seen, logged = now(), self.world.fleet.logged

        def when(event: str, pick=max, **context) -> float:
            return pick(at(entry) for entry in until(event, lambda: since(logged(event), begun, **context)))

        noticed, valid = when("registry_validation_started", min), when("registry_validation_success", min)
        sent = when("command_dispatched", min, deployment_id="doubler", command_type="RELOAD")
        steps.add("noticed by the controller, by webhook" if by_webhook else "noticed by the controller, by polling", noticed - pushed)
        steps.add("validated again by the controller", valid - noticed)
        steps.add("declared, planned, stored, sent", sent - valid)
        one = dict(deployment_id="doubler")
        places = [
            ("code and environment on both workers", when("artifact_download_started", max, **one)),
            ("artifact", when("artifact_download_completed", max, **one)),
            ("the model's process and its own load", when("model_validation_started", max, **one)),
            ("validation inference", when("model_validation_success", max, **one)),
            ("taken over, and told", when("model_reload_success", max, **one)),
            ("seen by a client", seen),
        ]
        before = sent
        for step, then in places:
            steps.add(step, then - before)
            before = max(then, before)
        steps.add(ALL, seen - begun)


def commits(runs: int) -> tuple[Steps, Steps, dict, Steps]:
    """By webhook and by polling; what was answered meanwhile; the emergency and the death of a worker."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        bench = Bench(Path(folder), "30s")
        world = bench.world
        try:
            versions = [f"1.{n}.0" for n in range(runs + 1)]
            for version in versions:
                bench.model.release(version)
            bench.deploy(versions[0])
            world.registry.push()
            world.start()
            world.until_ready("doubler", versions[0], 2)
            load = Load(world.fleet.nodes, "/v1/doubler", {"x": 1}, callers=2)
            steps, mends = Steps(), Steps()
            for version in versions[1:]:
                bench.change(version, steps, by_webhook=True)
            load.end()
            served = {"sent": load.sent, "failed": len(load.failed)}
            for _ in range(runs):
                emergency(bench, versions[-1], mends)
            death(bench, versions[-1], mends)
        finally:
            world.close()
    polled = polling(max(2, runs // 2))
    return steps, polled, served, mends


def polling(runs: int) -> Steps:
    """Nobody tells: the branch is asked for every second."""
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        bench = Bench(Path(folder), "1s")
        try:
            for n in range(runs + 1):
                bench.model.release(f"1.{n}.0")
            bench.deploy("1.0.0")
            bench.world.registry.push()
            bench.world.start()
            bench.world.until_ready("doubler", "1.0.0", 2)
            for n in range(runs):
                bench.change(f"1.{n + 1}.0", steps, by_webhook=False)
        finally:
            bench.world.close()
    return steps


def emergency(bench: Bench, version: str, steps: Steps) -> None:
    """Disabled: when the last answer was given, and when nothing is in memory any more."""
    world = bench.world
    bench.deploy(version, enabled=False)
    world.registry.push()
    pushed = now()
    bench.webhook()
    for node in world.fleet.nodes:
        host, port = node.http.split(":")
        line = http.client.HTTPConnection(host, int(port), timeout=30)
        while True:
            line.request("POST", "/v1/doubler", '{"x": 1}', {"content-type": "application/json"})
            answer = line.getresponse()
            answer.read()
            if answer.status == 503:
                break
            assert time.time() < pushed + PATIENCE, "it is never disabled"
        line.close()
    steps.add("emergency: from the end of the push until every gateway answers 503", now() - pushed)
    until("no replica", lambda: world.replicas("doubler") == {})
    steps.add("emergency: until no worker holds it", now() - pushed)
    bench.deploy(version)
    world.registry.push()
    bench.webhook()
    world.until_ready("doubler", version, 2)


def death(bench: Bench, version: str, steps: Steps) -> None:
    """Of one worker, which the other can make up for by nothing: back to two copies when it has been started again."""
    world = bench.world
    victim = next(node for node in world.fleet.nodes if not leads(world, node.name))
    victim.kill()
    killed = now()
    until("the death", lambda: world.fleet.logged("worker_marked_failed"))
    known = max(at(entry) for entry in world.fleet.logged("worker_marked_failed"))
    steps.add(KNOWN, known - killed)
    world.fleet.start(victim)
    begun = now()
    world.until_ready("doubler", version, 2)
    steps.add("a killed worker is started: until its copy is ready, code, environment and artifact on its disk", now() - begun)


def leads(world: World, name: str) -> bool:
    nodes = world.fleet.listed("nodes")
    return any(node["metadata"]["name"] == name and node["status"].get("leader") for node in nodes)


def environments(runs: int) -> Steps:
    """The first load of a model with packages, on a worker that never saw them; and the next, which finds them."""
    steps = Steps()
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
            world = World(Path(folder), ["worker-eu-west-1a"], options=("--source-interval", "1s"))
            try:
                model = world.model("doubler")
                for version in ("1.0.0", "1.1.0"):
                    model.release(version, **{"runtime.dependencies": PACKAGES})
                world.registry.deploy("doubler", model, "1.0.0")
                world.push("Deploy doubler 1.0.0")
                world.start()
                world.until_ready("doubler", "1.0.0")
                prepared(world, "cold: code fetched, packages from the index, environment made", "model_load_started", steps)
                world.registry.deploy("doubler", model, "1.1.0")
                world.push("Deploy doubler 1.1.0")
                world.until_ready("doubler", "1.1.0")
                prepared(world, "warm: other code, the environment is there", "model_reload_started", steps)
            finally:
                world.close()
    return steps


def prepared(world: World, step: str, event: str, steps: Steps) -> None:
    begun = at(world.fleet.logged(event)[-1])
    ended = at(world.fleet.logged("artifact_download_started")[-1])
    steps.add(step, ended - begun)


def many() -> Steps:
    """A thousand manifests of ten models, all but one disabled, and one change."""
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        folder = Path(folder)
        world = World(folder, ["worker-eu-west-1a"])
        try:
            models = [world.model(f"m{n}") for n in range(10)]
            for model in models:
                model.release("1.0.0")
            for n in range(MANIFESTS - 1):
                world.registry.deploy(f"d{n}", models[n % 10], "1.0.0", enabled=False)
            world.registry.deploy("one", models[0], "1.0.0", priority=50)
            world.push("A thousand")
            begun = now()
            done = subprocess.run([BERTH, "registry", "validate", "--local-repositories", str(world.registry.work)], capture_output=True)
            assert done.returncode == 0, done.stderr
            steps.add(f"`berth registry validate`, {MANIFESTS:,} manifests", now() - begun)
            server = Server("worker-eu-west-1a", folder / "up")
            server.spawn(
                BERTH, "up", "--name", server.name, "--data", str(folder / "up/data"), "--http", server.http, "--api", server.api,
                "--source", f"git={world.registry.url}#main", "--source-interval", "1s", "--local-repositories",
                "--log-format", "json", "--log", "warn,berth=debug",
            )  # fmt: skip
            try:
                until("it answers", lambda: server.ask("/v1/one", {"x": 1})[0] == 200)
                (first,) = server.events("registry_validation_success")
                steps.add("the controller validates them, cold", first["context"]["duration_ms"] / 1e3)
                steps.add("they are declared and planned", at(server.events("registry_commit_applied")[0]) - at(first))
                for priority in range(51, 61):
                    world.registry.deploy("one", models[0], "1.0.0", priority=priority)
                    commit = world.registry.commit(f"Priority {priority}")
                    world.registry.push()
                    applied = until("applied", lambda: [entry for entry in server.events("registry_commit_applied") if entry["context"]["commit_sha"] == commit])
                    valid = server.events("registry_validation_success")[-1]
                    steps.add(WARM, valid["context"]["duration_ms"] / 1e3)
                    steps.add(STORED, at(applied[0]) - at(valid))
            finally:
                server.close()
        finally:
            world.close()
    return steps


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=10)
    arguments.add_argument("--build", default="release", help="how the binary was built, for the page")
    arguments.add_argument("--out", type=Path, help="the page; nothing is written without it")
    options = arguments.parse_args()
    os.environ |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    busy = os.getloadavg()[0]
    steps, polled, served, mends = commits(options.runs)
    made = environments(max(2, options.runs // 3))
    thousand = many()
    version = subprocess.run([BERTH, "--version"], capture_output=True, text=True).stdout.strip()
    page = PAGE.format(
        machine=machine(), build=options.build, version=version, busy=busy, note=note(options.build, busy), webhook=steps.table(), polled=polled.table(),
        sent=served["sent"], failed=served["failed"], mends=mends.table(), environments=made.table(), many=thousand.table(),
        packages=", ".join(PACKAGES), targets=targets(steps, mends, thousand, served),
    )  # fmt: skip
    print(page)
    if options.out:
        options.out.write_text(page)


def note(build: str, busy: float) -> str:
    """What makes the figures worse than they have to be."""
    found = [f"they are of a {build} build"] * (build != "release") + ["the machine was busy before, as the load average says"] * (busy >= 1.0)
    if not found:
        return ""
    return f"The figures are no best case: {', and '.join(found)}.\n\n"


def targets(steps: Steps, mends: Steps, thousand: Steps, served: dict) -> str:
    """Rows of the table of targets, each with the measured value."""
    median = lambda of, step: p50(of.samples[step])
    # Of ten samples each that is the slowest, and both together no less than the slowest of both.
    change = p95(thousand.samples[WARM]) + p95(thousand.samples[STORED])
    rows = [
        ("a new version on all replicas within 5 minutes, the way back within 3", f"{median(steps, ALL):.1f} s, both are the same"),
        ("no request lost while versions change", f"{served['sent']:,} sent, {served['failed']} failed"),
        ("a worker that failed is made up for within 5 minutes", f"known after {median(mends, KNOWN):.1f} s; then the load elsewhere"),
        ("100 models on 50 workers", "150 on 60 in `crates/sim/tests/it/registry.rs`, with the real validator, controller and agents under a simulated clock"),
        ("a reconciliation within 10 s (p95)", f"{change:.1f} s at most for one change among {MANIFESTS:,} manifests, validated and declared"),
    ]  # fmt: skip
    return "\n".join(f"| {target} | {here} |" for target, here in rows) + "\n"


PAGE = """# Benchmarks: from a commit to a running fleet

Written by `bench/gitops/measure.py`, which `cargo xtask bench gitops` runs, on one machine: {machine}. {version}, {build} build. Git repositories, etcd, two workers,
the models' processes and the requests share its cores; the load average before it began was {busy:.1f}. Times are of log lines
of one clock, and of what a client sees.

{note}The model is the smallest there can be (its weights are a line of JSON, it needs no packages), so that what is measured is
Berth, git and the start of a Python process. What a real model adds is its own: the download, and its load.

## A new version on two workers

The way of a commit, with requests all the while: {sent:,} were sent, {failed} failed. The controller is told by a webhook.

{webhook}
The same without a webhook: the branch is polled every second. With the default of 30 s, polling adds 15 s on average.

{polled}
## Preparing a model with packages ({packages})

{environments}
## When something goes wrong

{mends}
## A thousand manifests

{many}
## Targets

| target | here, without the model's own download and load |
|---|---|
{targets}"""


if __name__ == "__main__":
    main()
