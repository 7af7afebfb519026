"""What is written back: counted where it is used, bounded, mended, and told when it cannot be written."""

from __future__ import annotations

import json
import re

from forge import git
from harness.http_server import Answer, HttpServer, Request
from harness.waiting import until

OWN = "berth/actual-state"


def requests(world, id: str) -> list[int]:
    """What each replica has counted."""
    [deployment] = [item for item in world.fleet.listed("deployments") if item["metadata"]["name"] == id]
    return [replica.get("requests", 0) for replica in deployment["status"]["replicaDetails"]]


def run_again(world) -> int:
    """How many requests gateways sent to a second replica, as the first one took long: both of them count it."""
    metrics = "".join(node.call("GET", "/metrics", None, at=node.api)[1] for node in world.fleet.nodes)
    return sum(int(float(count)) for count in re.findall(r"^berth_gateway_retries_total\b.* (\S+)$", metrics, re.MULTILINE))


def test_requests_of_each_replica_and_a_branch_that_is_touched(world):
    model = world.model("doubler")
    model.release("1.0.0")
    world.registry.deploy("doubler", model, "1.0.0", replicas=2)
    world.push("Deploy doubler")
    world.start()
    world.until_ready("doubler", "1.0.0", 2)
    for n in range(40):
        assert world.fleet.nodes[n % 2].ask("/v1/doubler", {"x": n})[0] == 200
    until(lambda: f"all requests, counted where they ran: {requests(world, 'doubler')}", lambda: sum(requests(world, "doubler")) >= 40)
    counts = requests(world, "doubler")
    assert len(counts) == 2 and sum(counts) <= 40 + run_again(world), (counts, run_again(world))
    told = world.fleet.berth("describe", "deployment", "doubler")
    assert "REQUESTS" in told and "LAST USED" in told

    # Counts alone are no reason to write; they are taken along with what is.
    until("the actual state with the model ready", lambda: "'ready'" in str(world.actual()))
    before = git(world.registry.bare, "rev-parse", OWN).stdout
    world.registry.deploy("doubler", model, "1.0.0", replicas=1)
    world.push("One replica")
    until("one replica", lambda: world.ready("doubler", "1.0.0", 1))

    def one() -> dict | None:
        models = [entry for worker in world.actual()["workers"] for entry in worker["models"]]
        return models[0] if len(models) == 1 else None

    left = until("the actual state of one replica", one)
    more = run_again(world)
    assert any(count <= left["request_count"] <= count + more for count in counts), (counts, more, left)
    assert left["last_inference"] >= left["loaded_at"], left
    assert git(world.registry.bare, "rev-parse", OWN).stdout != before

    # Somebody removes the branch, and the host refuses to have it back: it is told, then written whole.
    hook = world.registry.bare / "hooks/pre-receive"
    refusal = f"[ $ref != refs/heads/{OWN} ] || {{ echo no robots here >&2; exit 1; }}"
    hook.write_text(f"#!/bin/sh\nwhile read old new ref; do {refusal}; done\n")
    hook.chmod(0o755)
    terms = len(world.fleet.logged("term_began"))
    git(world.registry.bare, "update-ref", "-d", f"refs/heads/{OWN}")
    world.registry.deploy("doubler", model, "1.0.0", replicas=2)
    world.push("Two replicas")
    world.until_ready("doubler", "1.0.0", 2)
    problem = until("the refusal is told", lambda: told if "no robots here" in (told := world.fleet.berth("source", "describe")) else None)
    assert "right to write" in problem, problem

    def led_anew() -> bool:
        # A leader of a later term has never seen the branch.
        return len(world.fleet.logged("term_began")) > terms

    def events() -> str:
        return world.fleet.berth("get", "events")

    until(lambda: f"what was done is told: {events()}", lambda: "ActualStateOverwritten" in events() or led_anew())
    until("the outage is told", lambda: "WriteBackFailed" in world.fleet.berth("get", "events"))
    # Once, by each who leads meanwhile.
    said, leaders = world.fleet.berth("get", "events"), len(world.fleet.logged("term_began"))
    assert said.count("WriteBackFailed") <= leaders, said
    hook.unlink()
    names = until("the branch is there again", lambda: world.registry.listed(OWN, "transactions"))
    assert "transactions/actual-state.yaml" in names


class Hook(HttpServer):
    """Takes every message."""

    def __init__(self):
        self.messages = []
        super().__init__()

    def answer(self, request: Request) -> Answer:
        self.messages.append(json.loads(request.body))
        return Answer(200)


def test_a_worker_that_dies_together_with_the_leader_is_told_by_the_next_one(world):
    hook = Hook()
    world.add_worker("worker-eu-west-1c")
    notifications = [{"type": "webhook", "url": f"{hook.url}/hook"}]
    world.registry.write("registry.yaml", {"writeBack": {"interval": "1s"}, "notifications": notifications})
    model = world.model("doubler")
    model.release("1.0.0")
    world.registry.deploy("doubler", model, "1.0.0", replicas=2)
    world.push("Deploy doubler")
    world.start()
    world.until_ready("doubler", "1.0.0", 2)
    victim = world.fleet.node(until("a leader", world.fleet.leader))
    victim.kill()
    gone = f"{victim.name} is gone"
    until(lambda: f"an error file that says {gone}; there is {world.errors()}", lambda: any(error["error"]["message"] == gone for error in world.errors()))
    until(lambda: f"a message that says {gone}; there is {hook.messages}", lambda: any(gone in message["title"] for message in hook.messages))
    hook.close()
