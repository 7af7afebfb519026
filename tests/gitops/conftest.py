"""A registry, a model repository, a store for weights, and two workers that follow them.

The binary comes from BERTH, `uv` from BERTH_UV, the object store from S3_SERVER (`cargo xtask test` sets them).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fleet import Fleet
from forge import Model, Registry
from harness.processes import BERTH
from harness.waiting import PATIENCE, until
from storage import S3, Web

pytest_plugins = ["harness.failures"]

WORKERS = ["worker-eu-west-1a", "worker-eu-west-1b"]


class World:
    """All of it, and the questions that tests ask."""

    def __init__(self, folder: Path, workers: list[str] = WORKERS, options: tuple[str, ...] = ()):
        self.folder = folder
        self.artifacts = folder / "artifacts"
        self.web = Web(self.artifacts)
        self.registry = Registry(folder, workers)
        # What is true is written down once things are quiet; half a minute between two commits is for people.
        self.registry.write("registry.yaml", {"writeBack": {"interval": "1s"}})
        self.workers, self.options = list(workers), options
        self.fleet: Fleet | None = None

    def model(self, name: str, **more) -> Model:
        return Model(self.folder, name, self.artifacts, self.web.url, **more)

    def add_worker(self, name: str) -> None:
        """Before the fleet starts."""
        self.workers.append(name)
        self.registry.worker(name)

    def start(self, *more: str) -> Fleet:
        arguments = ["--local-repositories"]
        for option, usual in (("--memory", "2GiB"), ("--source-interval", "1s")):
            if option not in (*self.options, *more):
                arguments += [option, usual]
        if "--source" not in more:
            arguments += ["--source", f"git={self.registry.url}#main"]
        self.fleet = Fleet(self.folder / "fleet", self.workers, [*arguments, *self.options, *more])
        return self.fleet

    def push(self, message: str) -> str:
        commit = self.registry.commit(message)
        self.registry.push()
        return commit

    # === questions ===

    def replicas(self, id: str) -> dict[str, str]:
        """Replicas of a deployment: worker → `version state`."""
        found = {}
        for replica in (item["status"] for item in self.fleet.listed("replicas")):
            if replica["deployment"] == id:
                words = (replica.get("version", "old"), replica["state"])
                found.setdefault(replica["worker"], []).append(" ".join(words))
        return {worker: ", ".join(sorted(states)) for worker, states in found.items()}

    def ready(self, id: str, version: str, copies: int = 1) -> bool:
        """Exactly so many replicas, all ready with this version."""
        replicas = self.replicas(id)
        return len(replicas) == copies and all(state == f"{version} Ready" for state in replicas.values())

    def place(self, id: str) -> str:
        """The worker of a deployment that has one replica."""

        def place() -> str | None:
            workers = list(self.replicas(id))
            return workers[0] if len(workers) == 1 else None

        # One that has only just begun to lead has not heard of it yet.
        return until(lambda: f"one replica of {id}; there is {self.replicas(id)}", place)

    def until_ready(self, id: str, version: str, copies: int = 1, patience: float = PATIENCE) -> None:
        """The same, and every gateway that lives has been told."""
        what = lambda: f"{id} {version} on {copies}; it is {self.replicas(id)}"
        until(what, lambda: self.ready(id, version, copies), patience)
        for node in (node for node in self.fleet.nodes if node.runs()):
            until(f"{node.name} to route to {id}", lambda: node.get(f"/v2/models/{id}/ready")[0] == 200)

    def actual(self) -> dict | None:
        """The actual state as the broker wrote it down."""
        return self.registry.shown("berth/actual-state", "transactions/actual-state.yaml")

    def written(self, id: str) -> dict[str, str]:
        """Replicas of a deployment as the broker wrote them down: worker → `version state`."""
        workers = (self.actual() or {"workers": []})["workers"]
        held = ((worker["worker_id"], model) for worker in workers for model in worker.get("models") or [])
        return {worker: f"{model['model_version']} {model['status']}" for worker, model in held if model["deployment_id"] == id}

    def until_written(self, id: str, version: str, workers: set[str]) -> None:
        expected = {worker: f"{version} ready" for worker in workers}
        until(lambda: f"the actual state says {expected}; it says {self.written(id)}", lambda: self.written(id) == expected)

    def errors(self) -> list[dict]:
        names = self.registry.listed("berth/actual-state", "errors")
        found = (self.registry.shown("berth/actual-state", name) for name in names if name.endswith(".yaml"))
        # One may be gone since they were listed.
        return [error for error in found if error is not None]

    def source(self) -> dict:
        """As the controller tells of it; one that has only just begun to lead has looked at nothing yet."""
        sources = self.fleet.listed("sources")
        return {"problem": None, "applied": None} | (sources[0]["status"] if sources else {})

    def close(self) -> None:
        if self.fleet:
            self.fleet.close()
        self.web.close()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def s3(tmp_path):
    server = S3(tmp_path / "s3")
    try:
        until("the object store", server.answers)
        yield server
    finally:
        server.close()


@pytest.fixture
def hook():
    """Installs the validating hook into a bare repository."""

    def install(bare: Path) -> None:
        subprocess.run([BERTH, "registry", "hook", "install", "--local-repositories", str(bare)], check=True, capture_output=True, timeout=PATIENCE)

    return install


@pytest.fixture(scope="session", autouse=True)
def quiet_machine(tmp_path_factory):
    """Nothing of the machine's own: neither its git settings, nor what was seen of repositories that stood in the same place."""
    os.environ |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
