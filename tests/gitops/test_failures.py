"""What goes wrong while models are loaded and served, and what people read about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess

from fleet import Load, Server
from harness.ports import free_port
from harness.processes import BERTH
from harness.waiting import PATIENCE, until
from storage import Web


def first(world, **changes):
    """`doubler` 1.0.0 on both workers."""
    model = world.model("doubler")
    model.release("1.0.0")
    world.registry.deploy("doubler", model, "1.0.0", replicas=2, **changes)
    world.push("Deploy doubler 1.0.0")
    world.start()
    world.until_ready("doubler", "1.0.0", 2)
    return model


def error_about(world, text: str) -> dict:
    def found():
        return next((error for error in world.errors() if text in json.dumps(error)), None)

    return until(lambda: f"an error file that says {text!r}; there is {world.errors()}", found)


def until_told(world, *words: str, of: str = "doubler") -> None:
    """People who ask for a deployment read all of these. Between two attempts nothing is being tried, and less is said."""

    def told() -> str:
        return world.fleet.berth("describe", "deployment", of)

    until(lambda: f"{words} in what is said of {of}: {told()}", lambda: all(word in text for text in [told()] for word in words))


def stays(world, model, version: str, text: str) -> dict:
    """A bad version is committed under load: what is said of it, while the old one goes on serving."""
    load = Load(world.fleet.nodes, "/v1/doubler", {"x": 1}, callers=2)
    world.registry.deploy("doubler", model, version, replicas=2)
    world.push(f"Deploy doubler {version}")
    error = error_about(world, text)
    answers = load.end()
    assert load.failed == [] and set(answers) == {"1.0.0"}
    assert error["error_type"] == "model_load_failure" and error["deployment"]["id"] == "doubler"
    assert error["actions_taken"] and error["recommended_actions"]
    return error


def test_a_damaged_artifact_is_not_loaded(world):
    model = first(world)
    model.release("1.1.0")
    model.weights("1.1.0").write_text('{"version": "1.1.0", "factor": 3}')
    stays(world, model, "1.1.0", "SHA-256")


def test_code_that_raises_is_told_with_its_traceback(world):
    model = first(world)
    model.write("src/model.py", 'def load(path):\n    raise RuntimeError("the weights are of another model")\n')
    model.release("1.1.0")
    error = stays(world, model, "1.1.0", "the weights are of another model")
    assert "Traceback" in error["error"]["stack_trace"] and "src/model.py" in error["error"]["stack_trace"]
    until_told(world, "the weights are of another model")


def test_answers_that_break_the_contract_are_not_served(world):
    model = first(world)
    model.write("src/postprocessing.py", 'def write(output, config):\n    return {"y": "many"}\n')
    model.release("1.1.0")
    stays(world, model, "1.1.0", "output_schema")


def test_packages_that_do_not_exist_are_told(world):
    model = first(world)
    model.release("1.1.0", **{"runtime.dependencies": ["there-is-no-such-package-at-all==1.0.0"]})
    stays(world, model, "1.1.0", "there-is-no-such-package-at-all")


def test_a_store_that_is_down_is_waited_for(world):
    model = first(world)
    load = Load(world.fleet.nodes, "/v1/doubler", {"x": 1}, callers=2)
    model.release("1.1.0")
    # One more beside it, whose store does not even answer.
    away = world.model("tripler")
    store = Web(world.artifacts, free_port())
    away.base = store.url
    # Weights of its own: what is in the cache already would not be fetched.
    away.release("1.0.0", weights='{"version": "1.0.0", "factor": 3}')
    before = len(world.web.asked)
    world.web.down = True
    store.close()
    world.registry.deploy("doubler", model, "1.1.0", replicas=2)
    world.registry.deploy("tripler", away, "1.0.0")
    world.push("Deploy doubler 1.1.0 and tripler 1.0.0")

    def failed(id: str) -> list[dict]:
        entries = (entry["context"] for entry in world.fleet.logged("model_load_failed"))
        return [context for context in entries if context["deployment_id"] == id]

    for id in ("doubler", "tripler"):
        (context, *_) = until(f"a failed download of {id}", lambda: failed(id))
        assert context["error_type"] == "network" and context["retry_at"], context
    assert "503" in failed("doubler")[0]["error_message"]
    # People see that it is tried again, and when.
    until("a replica that failed", lambda: [
        replica for replica in (item["status"] for item in world.fleet.listed("replicas")) if replica["state"] == "Failed" or replica.get("failure")
    ])  # fmt: skip
    until_told(world, "503", "attempt")
    asked = world.web.asked[before:]
    attempts = len(failed("doubler")) + len(world.fleet.nodes)
    world.web.down = False
    store = Web(world.artifacts, store.port)
    world.until_ready("doubler", "1.1.0", 2)
    world.until_ready("tripler", "1.0.0")
    load.until("1.1.0")
    load.end()
    store.close()
    assert load.failed == []
    # Back-off, not a hail: each attempt with its quick repeats, and attempts are far apart.
    assert len(asked) <= 3 * attempts, (asked, attempts)
    assert all(context["retry_at"] for id in ("doubler", "tripler") for context in failed(id)), "nothing was given up"


def test_a_process_that_dies_comes_back(world):
    first(world)
    load = Load(world.fleet.nodes, "/v1/doubler", {"x": 1}, callers=2)
    load.until("1.0.0")
    parents = ",".join(str(node.process.pid) for node in world.fleet.nodes)
    search = ["pgrep", "-P", parents, "-f", "berth.host"]
    victims = subprocess.run(search, capture_output=True, text=True, timeout=PATIENCE).stdout.split()
    assert len(victims) == 2, "every model has a process of its own"
    os.kill(int(victims[0]), signal.SIGKILL)
    answered = load.sent
    until("more answers", lambda: load.sent > answered + 200)
    load.end()
    assert load.failed == [], "the other copy takes over what is safe to run again"
    until("both are back", lambda: all(node.ask("/v1/doubler", {"x": 1})[0] == 200 for node in world.fleet.nodes))


DIES = '''"""A model that ends its process when it is asked for 13, and loads only while a file is not there."""

import json
import os
import time


def load(path):
    with open(path, encoding="utf-8") as file:
        weights = json.load(file)
    while os.path.exists(weights["gate"]):
        time.sleep(0.05)

    def run(x):
        if x == 13:
            open(weights["gate"], "w").close()
            os._exit(3)
        return {"y": 2 * x, "version": weights["version"]}

    return run
'''


def test_a_model_whose_only_process_died_is_restarting_until_it_is_up(world, tmp_path):
    gate = tmp_path / "gate"
    model = world.model("doubler")
    model.write("src/model.py", DIES)
    model.release("1.0.0", weights=json.dumps({"version": "1.0.0", "gate": str(gate)}))
    world.registry.deploy("doubler", model, "1.0.0")
    world.push("Deploy doubler")
    world.start("--isolation", "process")
    world.until_ready("doubler", "1.0.0")
    place = world.place("doubler")
    assert world.fleet.nodes[0].ask("/v1/doubler", {"x": 13})[0] != 200
    until(lambda: f"it is restarting: {world.replicas('doubler')}", lambda: world.replicas("doubler") == {place: "1.0.0 Restarting"})
    until_told(world, "Degraded", "ProcessDied", "it ended with code 3", "started")
    for node in world.fleet.nodes:
        until(f"{node.name} not to route to it", lambda: node.get("/v2/models/doubler/ready")[0] == 503)
        status, said = node.ask("/v1/doubler", {"x": 1})
        assert (status, said.get("reason")) == (503, "unavailable") and "it ended with code 3" in said["error"], said
        assert node.get("/v2/health/ready")[0] == 200, "the gateway itself is well"
    gate.unlink()
    world.until_ready("doubler", "1.0.0")
    assert world.place("doubler") == place, "it came back by itself, where it was"
    for node in world.fleet.nodes:
        until(f"an answer of {node.name}", lambda: node.ask("/v1/doubler", {"x": 1}) == (200, {"y": 2, "version": "1.0.0"}))


def test_a_process_that_dies_again_and_again_has_an_error_file(world, tmp_path):
    model = world.model("doubler")
    model.write("src/model.py", DIES.replace('open(weights["gate"], "w").close()', "pass"))
    model.release("1.0.0", weights=json.dumps({"version": "1.0.0", "gate": str(tmp_path / "gate")}))
    world.registry.deploy("doubler", model, "1.0.0")
    world.push("Deploy doubler")
    world.start()
    world.until_ready("doubler", "1.0.0")
    place = world.place("doubler")

    def asked_again() -> dict | None:
        world.fleet.nodes[0].ask("/v1/doubler", {"x": 13})
        return next((error for error in world.errors() if error["error_type"] == "model_runtime_failure"), None)

    error = until(lambda: f"it dies often enough to be told; there is {world.errors()}", asked_again)
    assert error["severity"] == "critical"
    assert (error["deployment"]["id"], error["worker"]["id"]) == ("doubler", place)
    assert "it ended with code 3" in error["error"]["details"] and error["actions_taken"] and error["recommended_actions"]
    until("it is failed there", lambda: world.written("doubler") == {place: "1.0.0 failed"})


def test_a_worker_that_dies_in_the_middle_of_a_deployment(world):
    world.add_worker("worker-eu-west-1c")
    model = first(world)
    front = world.fleet.node(until("a leader", world.fleet.leader))
    load = Load([front], "/v1/doubler", {"x": 1}, callers=2)
    load.until("1.0.0")
    model.write("src/model.py", "import time\n\n\ndef load(path):\n    time.sleep(1)\n    return lambda x: {'y': x, 'version': '1.1.0'}\n")
    model.release("1.1.0")
    world.registry.deploy("doubler", model, "1.1.0", replicas=2)
    world.push("Deploy doubler 1.1.0")
    until("it begins", lambda: any("1.1.0" in state for state in world.replicas("doubler").values()))
    # Not the one that the load goes through, what stands in its gateway would be lost with it; nor the one that leads,
    # whose successor may never have heard that worker.

    def candidate() -> Server | None:
        held = world.replicas("doubler")
        return next((node for node in world.fleet.nodes if node is not front and node.name in held), None)

    victim = until("one that holds a copy", candidate)
    victim.kill()
    live = [node for node in world.fleet.nodes if node is not victim]

    def two_copies():
        here = {worker: state for worker, state in world.replicas("doubler").items() if worker != victim.name}
        return len(here) == 2 and set(here.values()) == {"1.1.0 Ready"}

    until("two copies of 1.1.0 on the other two", two_copies)
    load.until("1.1.0")
    load.end()
    assert load.failed == []
    for node in live:
        until(f"1.1.0 by way of {node.name}", lambda: node.ask("/v1/doubler", {"x": 1})[1].get("version") == "1.1.0")
    error_about(world, victim.name)


def test_what_matters_more_takes_the_place_of_what_matters_less(world):
    model = world.model("doubler")
    model.release("1.0.0")
    for id in ("low-a", "low-b"):
        world.registry.deploy(id, model, "1.0.0", priority=10)
    world.push("Two of little importance")
    # Room for one each: a card asks for 64 MiB.
    world.start("--memory", "100MiB")
    for id in ("low-a", "low-b"):
        world.until_ready(id, "1.0.0")
    world.registry.deploy("high", model, "1.0.0", priority=90)
    world.push("One that matters")
    world.until_ready("high", "1.0.0")
    left = until("one of the two", lambda: [id for id in ("low-a", "low-b") if world.ready(id, "1.0.0")])
    assert len(left) == 1
    gone = ({"low-a", "low-b"} - set(left)).pop()
    until("why it is gone", lambda: any(word in text for text in [world.fleet.berth("explain", gone)] for word in ("high", "priority")))

    # First out, then in: the worker never holds more than it may. Only the file may come earlier.
    place = world.place("high")
    log = world.fleet.node(place).logged_lines()

    def at(event: str, id: str) -> int:
        said = (number for number, line in enumerate(log) if f'"{event}"' in line and f'"{id}"' in line)
        return next(said, -1)

    order = [at("model_unload_success", gone), at("model_initialization_started", "high"), at("model_load_success", "high")]
    assert -1 not in order and order == sorted(order), order
    evicted = [entry["context"] for entry in world.fleet.logged("eviction_triggered")]
    assert {(entry["deployment_id"], entry["worker_id"]) for entry in evicted} == {(gone, place)}, evicted

    # What is of no more importance than what is there takes nobody's place, and people read why.
    world.registry.deploy("late", model, "1.0.0", priority=10)
    world.push("One too many")

    def says_why() -> bool:
        found = next((item for item in world.fleet.listed("deployments") if item["metadata"]["name"] == "late"), None)
        return bool(found) and found["status"]["phase"] == "ScheduleFailed"

    until("late has no place", says_why)
    for id in ("high", left[0]):
        until(f"{id} where it was", lambda: world.ready(id, "1.0.0"))
    error_about(world, '"late"')


def test_terms_of_the_registry_hold(world):
    first(world)
    nodes = {node["metadata"]["name"]: node for node in world.fleet.listed("nodes")}
    for name in world.workers:
        assert nodes[name]["metadata"]["labels"]["region"] == "eu-west-1" and nodes[name]["metadata"]["labels"]["pool"] == "production"


def test_a_plan_says_what_a_branch_would_do(world):
    model = first(world)
    told = world.fleet.berth("plan", "--local-repositories", "--registry", str(world.registry.work))
    assert "1 deployment unchanged" in told and "would be" not in told, told
    model.release("1.1.0")
    world.registry.deploy("doubler", model, "1.1.0", replicas=2)
    world.registry.deploy("another", model, "1.0.0")
    world.registry.commit("Not pushed yet")
    told = world.fleet.berth("plan", "--local-repositories", "--registry", str(world.registry.work))
    assert "doubler" in told and "another" in told
    # Workers are planned as the commit makes them.
    for name in world.workers:
        world.registry.worker(name, capacity={"max_models": 1})
    world.registry.commit("Less room, not pushed yet")
    told = world.fleet.berth("plan", "--local-repositories", "--registry", str(world.registry.work))
    assert f"worker/{world.workers[0]}: models 20 -> 1" in told and "The plan above accounts for these changes." in told, told
    assert "cannot be placed" in told, told
    until("nothing to be touched", lambda: world.ready("doubler", "1.0.0", 2))


def test_one_machine_follows_a_registry_too(world, tmp_path):
    model = world.model("doubler")
    model.release("1.0.0")
    world.registry.deploy("doubler", model, "1.0.0")
    world.push("Deploy doubler")
    server = Server("worker-eu-west-1a", tmp_path / "up")
    server.spawn(
        BERTH, "up", "--name", server.name, "--data", str(tmp_path / "up/data"), "--http", server.http, "--api", server.api,
        "--source", f"git={world.registry.url}#main", "--source-interval", "1s",
    )  # fmt: skip
    try:
        until("an answer", lambda: server.ask("/v1/doubler", {"x": 4}) == (200, {"y": 8, "version": "1.0.0"}))
        assert server.stop() == 0
    finally:
        server.close()
