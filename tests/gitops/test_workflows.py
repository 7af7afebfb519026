"""The workflows: deploy a version, go back to an earlier one, scale, disable. Nobody talks to Berth: people push."""

from __future__ import annotations

import subprocess
import time

from fleet import Load
from forge import git
from harness.waiting import PATIENCE, until


def deployed(world, copies: int = 2, version: str = "1.0.0", options: tuple[str, ...] = ()):
    """A fleet that serves `doubler` at `version`."""
    model = world.model("doubler")
    model.release(version)
    world.registry.deploy("doubler", model, version, replicas=copies)
    world.push(f"Deploy doubler {version}")
    world.start(*options)
    world.until_ready("doubler", version, copies)
    return model


def test_a_commit_becomes_replicas_that_answer(world):
    deployed(world)
    for node in world.fleet.nodes:
        assert node.ask("/v1/doubler", {"x": 21}) == (200, {"y": 42, "version": "1.0.0"})
        status, answer = node.ask("/v1/doubler", {"x": "many"})
        assert status == 422 and "x" in str(answer), answer
        status, answer = node.ask("/v1/doubler", {"x": -2000})
        assert status == 422, answer
        tensor = {"name": "x", "datatype": "FP64", "shape": [3], "data": [1.0, 2.0, 3.0]}
        status, answer = node.ask("/v2/models/doubler/infer", {"inputs": [tensor]})
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        assert (status, outputs["y"], outputs["version"]) == (200, [2.0, 4.0, 6.0], ["1.0.0"] * 3)

    written = until(lambda: f"the actual state says that all is well: {world.actual()}", lambda: settled(world))
    for worker in written["workers"]:
        assert worker["capacity"]["loaded_models"] == 1
        (model,) = worker["models"]
        assert model["deployment_id"] == "doubler" and model["status"] == "ready" and model["model_version"] == "1.0.0"

    # First what was received: of what is sent between the two looks the other list would know nothing.
    received = {entry["context"]["correlation_id"] for entry in world.fleet.logged("command_received")}
    commands = [entry["context"] for entry in world.fleet.logged("command_dispatched")]
    assert {(c["command_type"], c["deployment_id"], c["worker_id"]) for c in commands} >= {
        ("LOAD", "doubler", worker) for worker in world.workers
    }
    sent = {command["correlation_id"] for command in commands}
    assert received <= sent and received, "a worker names the commands as the controller does"


def settled(world):
    """The written state, once it says that every worker is healthy and every model is ready."""
    state = world.actual() or {"workers": []}
    healthy = {worker["worker_id"] for worker in state["workers"] if worker["status"] == "healthy"}
    models = [worker.get("models") or [] for worker in state["workers"]]
    ready = all(held and all(model["status"] == "ready" for model in held) for held in models)
    return state if healthy == set(world.workers) and ready else None


def test_versions_go_forward_and_back_and_no_request_is_lost(world):
    model = deployed(world)
    load = Load(world.fleet.nodes, "/v1/doubler", {"x": 1})
    load.until("1.0.0")

    model.release("1.1.0")
    world.registry.deploy("doubler", model, "1.1.0", replicas=2)
    pushed = time.monotonic()
    world.push("Deploy doubler 1.1.0")
    world.until_ready("doubler", "1.1.0", 2)
    took = time.monotonic() - pushed
    load.until("1.1.0")

    # Back is a commit like any other: the history only grows.
    world.registry.deploy("doubler", model, "1.0.0", replicas=2)
    world.push("Back to doubler 1.0.0: the new one answers wrongly")
    world.until_ready("doubler", "1.0.0", 2)
    answers = load.end()
    print(f"{load.sent} requests, {len(load.failed)} failed, {answers}; from the push to ready everywhere {took:.2f} s")
    assert load.failed == []
    assert set(answers) == {"1.0.0", "1.1.0"}

    kinds = [e["context"]["drift_type"] for e in world.fleet.logged("state_drift_detected")]
    assert "VERSION_UPDATE" in kinds
    types = {e["context"]["command_type"] for e in world.fleet.logged("command_dispatched")}
    assert "RELOAD" in types


def test_two_become_four_become_two(world):
    world.add_worker("worker-eu-west-1c")
    world.add_worker("worker-eu-west-1d")
    model = deployed(world)
    first = set(world.replicas("doubler"))
    world.until_written("doubler", "1.0.0", first)
    load = Load(world.fleet.nodes, "/v1/doubler", {"x": 1})
    load.until("1.0.0")

    scale(world, model, 4)
    world.until_written("doubler", "1.0.0", set(world.workers))
    assert commands(world, "LOAD") == set(world.workers), "two more, and nothing else is loaded"
    assert not commands(world, "UNLOAD")

    scale(world, model, 2)
    left = set(world.replicas("doubler"))
    world.until_written("doubler", "1.0.0", left)
    gone = set(world.workers) - left
    assert commands(world, "UNLOAD") == gone and len(gone) == 2
    unloaded = {entry["component"] for entry in world.fleet.logged("model_unload_success")}
    assert unloaded == gone, "they say so when it is done"
    assert not world.fleet.logged("drain_timed_out")
    load.end()
    assert load.failed == [] and load.sent > 0
    kinds = {e["context"]["drift_type"] for e in world.fleet.logged("state_drift_detected")}
    assert {"NEW_DEPLOYMENT", "SCALE_UP", "SCALE_DOWN"} <= kinds


def scale(world, model, copies: int) -> None:
    world.registry.deploy("doubler", model, "1.0.0", replicas=copies)
    world.push(f"Scale doubler to {copies}")
    world.until_ready("doubler", "1.0.0", copies)


def commands(world, kind: str) -> set[str]:
    """The workers that were sent commands of this kind."""
    sent = (entry["context"] for entry in world.fleet.logged("command_dispatched"))
    return {command["worker_id"] for command in sent if command["command_type"] == kind}


def test_a_disabled_model_is_gone_everywhere_and_comes_back(world):
    model = deployed(world)
    world.registry.deploy("doubler", model, "1.0.0", replicas=2, enabled=False)
    world.push("EMERGENCY: disable doubler")
    until("no replica", lambda: world.replicas("doubler") == {})
    for node in world.fleet.nodes:
        until(lambda: f"{node.name} says 503: {node.ask('/v1/doubler', {'x': 1})}", lambda: node.ask("/v1/doubler", {"x": 1})[0] == 503)
    assert "DISABLE" in {e["context"]["drift_type"] for e in world.fleet.logged("state_drift_detected")}

    world.registry.deploy("doubler", model, "1.0.0", replicas=2)
    world.push("Enable doubler")
    world.until_ready("doubler", "1.0.0", 2)
    assert world.fleet.nodes[0].ask("/v1/doubler", {"x": 2})[1]["y"] == 4


def test_what_leaves_the_registry_leaves_the_fleet(world):
    model = deployed(world, copies=1)
    world.registry.deploy("other", model, "1.0.0")
    world.push("Deploy another")
    world.until_ready("other", "1.0.0")
    (world.registry.work / world.registry.path("other")).unlink()
    world.push("Remove it")
    until("it is gone", lambda: [d["name"] for d in names(world)] == ["doubler"])
    until("its gateway knows it no more", lambda: world.fleet.nodes[0].ask("/v1/other", {"x": 1})[0] == 404)


def names(world) -> list[dict]:
    return [{"name": item["metadata"]["name"]} for item in world.fleet.listed("deployments")]


def test_five_deployments_at_once(world):
    models = [world.model(f"m{n}") for n in range(5)]
    for n, model in enumerate(models):
        model.release("1.0.0")
        world.registry.deploy(f"m{n}", model, "1.0.0", replicas=1 + n % 2)
    world.push("Five at once")
    world.start()
    for n in range(5):
        world.until_ready(f"m{n}", "1.0.0", 1 + n % 2)
    assert all(world.fleet.nodes[n % 2].ask(f"/v1/m{n}", {"x": n})[1]["y"] == 2 * n for n in range(5))


def test_the_broker_signs_what_it_writes(world, tmp_path):
    key = tmp_path / "broker-key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "broker", "-f", str(key)], check=True, timeout=PATIENCE)
    deployed(world, copies=1, options=("--write-back-signing-key", str(key)))
    until("the actual state", world.actual)
    signers = tmp_path / "signers"
    signers.write_text("* " + key.with_suffix(".pub").read_text())
    trusted = ["-c", f"gpg.ssh.allowedSignersFile={signers}"]
    verified = git(world.registry.bare, *trusted, "verify-commit", "berth/actual-state", check=False)
    assert verified.returncode == 0 and "Good" in verified.stderr, verified.stderr
