"""Seven chaos experiments, one test each: what operators of a Git registry expect a cluster to survive, under their names.
"Registry validation failures" are manifests refused by the control API here; commits are refused in the registry's own tests."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

from harness.examples import ARTIFACTS, manifest
from harness.waiting import until

IRIS = hashlib.sha256((ARTIFACTS / "iris.onnx").read_bytes()).hexdigest()


def test_kill_random_workers_during_deployment(cluster):
    made = cluster(count=7)
    made.apply(*(manifest(f"m{n}", replicas=2) for n in range(8)))
    made.available(*(f"m{n}" for n in range(8)))
    load = made.load(*(f"m{n}" for n in range(8)), callers=8)
    load.more(100)
    made.apply(*(manifest(f"m{n}", artifact="iris-v2", replicas=2) for n in range(8)))
    # 30 % of seven, one after the other faster than anybody can react; a third copy keeps every model alive.
    leader = until("a leader", made.leader)
    victims = random.Random(7).sample([node for node in made.nodes if node is not leader], 2)
    for victim in victims:
        victim.kill()
    gone = {victim.name for victim in victims}
    for n in range(8):
        until(f"m{n} on two that live", lambda: len(set(made.places(f"m{n}")) - gone) == 2)
    made.available(*(f"m{n}" for n in range(8)))
    record = load.end()
    print(record)
    # Both copies of a model may have been on the two: its requests waited for the next place, and were answered.
    record.lost_nothing()


def test_corrupt_model_artifacts(cluster, tmp_path):
    made = cluster(count=3)
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    shutil.copy(ARTIFACTS / "iris.onnx", good)
    content = bytearray(good.read_bytes())
    content[len(content) // 2] ^= 0xFF
    bad.write_bytes(content)
    made.apply(manifest("iris", model={"uri": f"file:{good}", "sha256": IRIS}, replicas=2))
    made.available("iris")
    load = made.load("iris")
    made.apply(manifest("broken", model={"uri": f"file:{bad}", "sha256": IRIS}, replicas=1), code=None)
    said = lambda: made.run("describe", "deployment", "broken", code=None) + made.stderr
    until("the checksum to be named", lambda: "checksum" in said().lower() or "sha256" in said().lower() or "sha-256" in said().lower())
    assert not made.places("broken")
    load.more(100)
    load.end().lost_nothing()


def test_network_partition_between_broker_and_workers(cluster):
    made = cluster(count=5)
    made.apply(*(manifest(f"m{n}", replicas=2) for n in range(4)))
    made.available(*(f"m{n}" for n in range(4)))
    leader = until("a leader", made.leader)
    apart = [node for node in made.nodes if node is not leader][:2]
    rest = [node for node in made.nodes if node not in apart]
    load = made.load(*(f"m{n}" for n in range(4)), through=rest)
    load.more(100)
    for node in apart:
        node.host.cut(*(other.host for other in rest), *(member.host for member in made.etcd.members))
    names = {node.name for node in apart}
    until("the nodes to be lost", lambda: names <= set(made.states("Lost")))
    for n in range(4):
        until(f"m{n} twice among the rest", lambda: len(set(made.places(f"m{n}")) - names) == 2)
    for node in apart:
        node.host.heal()
    until("all nodes again", lambda: len(made.states("Ready")) == 5)
    for n in range(4):
        until(f"m{n} in two places", lambda: len(made.places(f"m{n}")) == 2)
    load.end().lost_nothing()


def test_registry_validation_failures(cluster):
    made = cluster(count=3)
    made.apply(manifest("iris", replicas=2))
    made.available("iris")
    load = made.load("iris")
    before = json.loads(made.run("get", "deployments", "-o", "json"))["items"]
    good, bad = manifest("other"), manifest("wrong")
    bad["spec"]["replcas"] = bad["spec"].pop("replicas")
    said = made.apply(good, bad, code=4) + made.stderr
    assert "replcas" in said and "replicas" in said, said
    after = json.loads(made.run("get", "deployments", "-o", "json"))["items"]
    assert [item["metadata"]["name"] for item in after] == [item["metadata"]["name"] for item in before]
    load.more(100)
    load.end().lost_nothing()


def test_simultaneous_multiple_deployments(cluster):
    made = cluster(count=5)
    made.apply(*(manifest(f"m{n}", replicas=2) for n in range(5)))
    made.available(*(f"m{n}" for n in range(5)))
    load = made.load(*(f"m{n}" for n in range(5)), callers=8)
    load.more(100)
    change = lambda n: made.apply(manifest(f"m{n}", artifact="iris-v2", replicas=2), through=made.nodes[n])
    with ThreadPoolExecutor(5) as people:
        list(people.map(change, range(5)))
    for n in range(5):
        made.available(f"m{n}")
        until(f"two copies of m{n}", lambda: len(made.places(f"m{n}")) == 2)
    load.end().lost_nothing()


def test_resource_exhaustion(cluster):
    made = cluster(["--memory", "64MiB"], ["--memory", "64MiB"], ["--memory", "64MiB"])
    low = [manifest(f"low{n}", replicas=1, priority=10, resources={"memory": "30MiB"}) for n in range(6)]
    made.apply(*low)
    made.available(*(f"low{n}" for n in range(6)))
    made.apply(manifest("high", replicas=1, priority=90, resources={"memory": "50MiB"}))
    made.available("high")

    def available() -> list[str]:
        items = json.loads(made.run("get", "deployments", "-o", "json"))["items"]
        return [item["metadata"]["name"] for item in items if item["status"]["phase"] == "Available"]

    until(lambda: f"two had to go, and no more: {available()}", lambda: "high" in (left := available()) and len(left) == 1 + 4)
    for node in json.loads(made.run("get", "nodes", "-o", "json"))["items"]:
        memory = node["status"]["capacity"]["memory"]
        assert memory["used"] <= memory["total"], node


def test_storage_service_outage(cluster, tmp_path):
    made = cluster(count=3)
    folder = tmp_path / "store"
    folder.mkdir()
    shutil.copy(ARTIFACTS / "iris.onnx", folder / "iris.onnx")
    uri = f"{made.store(folder).url}/iris.onnx"
    made.apply(manifest("before", model={"uri": uri}, replicas=1))
    made.available("before")
    load = made.load("before")
    (folder / "down").touch()
    made.apply(manifest("during", model={"uri": f"{uri}?second"}, replicas=1))
    until("a failed attempt", lambda: "LoadFailed" in made.run("get", "events"))
    load.more(100)
    (folder / "down").unlink()
    made.available("during")
    load.end().lost_nothing()
