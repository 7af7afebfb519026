"""Several sources on one machine: two registries and a folder stand beside each other and beside the API."""

from __future__ import annotations

import json

import pytest

from conftest import WORKERS
from forge import Registry
from harness.examples import manifest
from harness.server import Berth
from harness.waiting import until


class Sources:
    """Registry `a` declares `first`, registry `b` declares `second`, the folder `shared` declares `third`, the API `fourth`."""

    def __init__(self, world, folder):
        self.model = world.model("doubler")
        self.model.release("1.0.0")
        self.a, self.b = world.registry, Registry(folder, ["worker-eu-west-1c"], "other-registry")
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.deploy(self.a, "first", "1.0.0")
        self.deploy(self.b, "second", "1.0.0")
        self.declare("third", json.dumps(manifest("third")))
        self.berth = Berth(folder / "up")

    def start(self) -> None:
        sources = (f"a=git+{self.a.url}#main", f"b=git+{self.b.url}#main", f"shared={self.shared}")
        arguments = [word for source in sources for word in ("--source", source)]
        self.berth.start("--name", WORKERS[0], *arguments, "--source-interval", "1s")
        self.berth.apply(manifest("fourth"))

    def deploy(self, registry: Registry, id: str, version: str) -> str:
        registry.deploy(id, self.model, version)
        return self.push(registry, f"Deploy {id} {version}")

    @staticmethod
    def push(registry: Registry, message: str) -> str:
        commit = registry.commit(message)
        registry.push()
        return commit

    def declare(self, name: str, text: str) -> None:
        """In one step: the folder may be read at any time."""
        new = self.shared / f"{name}.new"
        new.write_text(text)
        new.rename(self.shared / f"{name}.yaml")

    def status(self) -> dict[str, dict]:
        """The sources by name."""
        items = json.loads(self.berth.control("/v1/sources")[2])["items"]
        return {item["metadata"]["name"]: item["status"] for item in items}

    def states(self) -> dict[str, str]:
        return {name: status["state"] for name, status in self.status().items()}

    def until_states(self, **states: str) -> None:
        until(lambda: f"the states {states}; there is {self.status()}", lambda: self.states() == states)

    def version(self, id: str) -> str | None:
        """The version of a registry's deployment that answers."""
        status, _, body = self.berth.post(f"/v1/{id}", {"x": 1})
        return json.loads(body)["version"] if status == 200 else None

    def until_version(self, id: str, version: str) -> None:
        until(lambda: f"{id} {version}; it is {self.version(id)}, and there is {self.status()}", lambda: self.version(id) == version)

    def answers(self, *names: str) -> bool:
        return all(self.berth.infer(name)[0] == 200 for name in names)


@pytest.fixture
def sources(world, tmp_path):
    made = Sources(world, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.berth.close()


def test_two_registries_and_a_folder_beside_the_api(sources):
    for id in ("first", "second"):
        sources.until_version(id, "1.0.0")
    until("the folder's and the API's to answer", lambda: sources.answers("third", "fourth"))
    sources.until_states(a="Synced", b="Synced", shared="Synced")
    assert {name: status["deployments"] for name, status in sources.status().items()} == {"a": 1, "b": 1, "shared": 1}
    heads, *lines = sources.berth.run("get", "sources").splitlines()
    assert heads.split()[:3] == ["NAME", "KIND", "STATE"], heads
    assert [line.split()[:3] for line in lines] == [["a", "git", "Synced"], ["b", "git", "Synced"], ["shared", "directory", "Synced"]]

    # One is paused: what it declared stays and its commits wait; the others go on.
    sources.berth.run("source", "pause", "b")
    sources.model.release("1.1.0")
    waiting = sources.deploy(sources.b, "second", "1.1.0")
    sources.deploy(sources.a, "first", "1.1.0")
    sources.declare("fifth", json.dumps(manifest("fifth")))
    sources.until_version("first", "1.1.0")
    until("the folder's second to answer", lambda: sources.answers("fifth"))
    paused = sources.status()["b"]
    assert (paused["state"], paused["paused"]) == ("Paused", True) and paused["applied"] != waiting, paused
    assert sources.version("second") == "1.0.0"
    sources.berth.run("source", "resume", "b")
    sources.until_version("second", "1.1.0")
    sources.until_states(a="Synced", b="Synced", shared="Synced")


def test_a_source_that_goes_bad_leaves_the_others_alone(sources):
    for id in ("first", "second"):
        sources.until_version(id, "1.0.0")
    until("the folder's and the API's to answer", lambda: sources.answers("third", "fourth"))
    misspelled = {"targets": [{"deployment": "frist", "weight": 1}]}
    alias = {"apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": {"name": "numbers"}, "spec": misspelled}
    sources.a.write("aliases/numbers.yaml", alias)
    refused = sources.push(sources.a, "Misspell first")
    sources.declare("third", "spec: [")
    until(lambda: f"the folder's problem; there is {sources.status()}", lambda: "third.yaml" in sources.status()["shared"].get("problem", ""))
    until(lambda: f"the refusal; there is {sources.status()}", lambda: sources.states()["a"] == "Refused")
    assert sources.status()["a"]["refused"]["commit"] == refused

    # The other registry is followed as before, the API takes what it is given, and what was declared well stays.
    sources.model.release("1.1.0")
    sources.deploy(sources.b, "second", "1.1.0")
    sources.until_version("second", "1.1.0")
    sources.berth.apply(manifest("fifth"))
    until("the API's second to answer", lambda: sources.answers("fifth"))
    assert sources.version("first") == "1.0.0" and sources.answers("third", "fourth")
    good = sources.status()["b"]
    assert good["state"] == "Synced" and not good.get("problem"), good

    # Each comes back with its next good revision.
    (sources.a.work / "aliases/numbers.yaml").unlink()
    sources.deploy(sources.a, "first", "1.1.0")
    sources.declare("third", json.dumps(manifest("third")))
    sources.until_version("first", "1.1.0")
    until(lambda: f"no problem; there is {sources.status()}", lambda: not any(status.get("problem") for status in sources.status().values()))
    assert sources.answers("third", "fourth", "fifth")
