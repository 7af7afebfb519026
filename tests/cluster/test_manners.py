"""How nodes behave towards people and towards each other: together at the end, alone in a folder, one to a name."""

from __future__ import annotations

import json
import shutil
import signal

from harness.examples import manifest
from harness.waiting import PATIENCE, until
from system import Node


def shown(made, name: str) -> dict:
    """A node as `berth get nodes` shows it."""
    items = made.nodes_view().get("items", [])
    return next((item for item in items if item["metadata"]["name"] == name), {"status": {}})["status"]


def test_all_nodes_are_stopped_at_once(cluster):
    # They would wait this long for each other to take their models.
    made = cluster(*[["--memory", "1GiB", "--drain-timeout", "10m", "--lame-duck", "1s"]] * 3)
    made.apply(manifest("iris", replicas=2))
    made.available("iris")
    for node in made.nodes:
        node.signal(signal.SIGTERM)
    for node in made.nodes:
        assert node.process.wait(PATIENCE) == 0, node.logged()[-4000:]


def test_a_node_that_is_no_gateway_listens_for_no_clients(cluster):
    made = cluster(count=2)
    worker = made.add("w", ["--memory", "1GiB", "--roles", "worker"]).start()
    until("the worker to be ready", lambda: "w" in made.states("Ready"))
    assert worker.call("/v2/health/ready", 8080)[0] == 0, "nobody listens"
    made.run("cordon", "node/n0", "node/n1")
    made.apply(manifest("iris"))
    made.available("iris")
    until("it to be on the worker", lambda: made.places("iris") == ["w"])
    load = made.load("iris", through=made.nodes[:2])
    until("requests by way of the worker", lambda: sum(node.metric("berth_gateway_forwards_total") for node in made.nodes[:2]) > 50)
    load.end().lost_nothing()
    assert worker.stop() == 0


def test_what_a_killed_worker_held_is_unknown_and_top_is_of_all_gateways(cluster):
    made = cluster(count=3)
    made.apply(manifest("iris", replicas=3))
    made.available("iris")

    def top(through: Node) -> dict:
        return json.loads(made.run("top", "--once", "-o", "json", through=through))

    # One that does not answer in time is missing for once.
    until("all gateways", lambda: ((said := top(made.nodes[1]))["gateways"], said.get("missing")) == (3, None))
    leader = until("a leader", made.leader)
    victim = next(node for node in made.nodes if node is not leader)
    victim.pause()
    said = top(leader)
    assert said["gateways"] + len(said.get("missing", [])) == 3 or victim.name not in made.states("Ready"), said
    victim.resume()
    victim.kill()
    until("it to be lost", lambda: victim.name in made.states("Lost"))

    def states() -> dict[str, str]:
        items = json.loads(made.run("get", "replicas", "-o", "json"))["items"]
        return {item["status"]["worker"]: item["status"]["state"] for item in items}

    until(lambda: f"two copies on those that live: {states()}", lambda: list(states().values()).count("Ready") == 2)
    assert states().get(victim.name) in ("Unknown", None), states()


def test_a_folder_is_for_one_process(cluster):
    made = cluster(count=1)
    node = made.nodes[0]
    second = Node(made, made.network.host("second"), [])
    second.name, second.folder = node.name, node.folder
    second.log = node.folder / "second.log"
    second.start()
    assert second.process.wait(PATIENCE) == 1
    assert str(node.process.pid) in second.logged() and str(node.folder / "data") in second.logged(), second.logged()[-2000:]
    until("the first one to answer", node.alive)


def test_a_second_process_does_not_get_the_name_of_one_that_lives(cluster):
    made = cluster(count=3)
    leader = until("a leader", made.leader)
    second = Node(made, made.network.host("n9"), ["--memory", "1GiB"])
    second.name = leader.name

    def refused() -> bool:
        second.start()
        until("it to be refused, or to serve", lambda: not second.runs() or second.call("/healthz")[0] == 200)
        if not second.runs():
            return True
        # Nobody had the time to answer it within a second.
        second.kill()
        return False

    until("it to be refused", refused)
    assert second.process.wait(PATIENCE) == 1
    assert leader.host.address in second.logged() and "--name" in second.logged(), second.logged()[-2000:]
    until("the first one to be where it was", lambda: leader.host.address in shown(made, leader.name).get("address", ""))
    until("all to be ready", lambda: len(made.states("Ready")) == 3)


def test_two_processes_have_the_name_of_the_leader(cluster):
    made = cluster(count=3)
    leader = until("a leader", made.leader)
    others = [node for node in made.nodes if node is not leader]
    second = Node(made, made.network.host("n9"), ["--memory", "1GiB"])
    second.name = leader.name
    # They cannot tell each other that there are two.
    second.host.cut(leader.host)
    second.start()
    try:
        until("the others to take it for the leader", lambda: any("leader_elsewhere" in node.logged() for node in others))
        # The store says where the leader is: the second one, which they have the address of, decides nothing.
        until("it to take what is declared", lambda: made.apply(manifest("iris", replicas=2), through=others[0], code=None) and "iris" in made.run("get", "deployments", through=others[1], code=None))
        for node in others:
            made.run("wait", "deployment/iris", "--for=Available", f"--timeout={PATIENCE:.0f}s", through=node)
        assert second.runs(), second.logged()[-4000:]
    finally:
        second.kill()
    # Its address does not outlive it.
    until("the first one to be found again", lambda: leader.host.address in shown(made, leader.name).get("address", ""))
    until("all to be ready", lambda: len(made.states("Ready")) == 3)


def test_a_node_of_another_authority_is_told_apart(cluster, tmp_path):
    made = cluster(count=2)
    made._berth("pki", "init", str(tmp_path / "other"))
    foreign = made.add("f", ["--memory", "1GiB"])
    made._berth("pki", "issue", str(tmp_path / "other"), "f")
    # Everything is of the other authority: they cannot even read each other.
    shutil.rmtree(made.pki / "f")
    shutil.copytree(tmp_path / "other" / "f", made.pki / "f")
    foreign.start()
    until("it to say that nobody answers", lambda: "join_unanswered" in foreign.logged())
    until("the others to say whose packets they are", lambda: any("gossip_foreign" in node.logged() for node in made.nodes[:2]))
    foreign.kill()
    # The same key of gossip, and certificates of another authority.
    shutil.copy(made.pki / "n0" / "gossip.key", made.pki / "f" / "gossip.key")
    foreign.start()

    def told() -> bool:
        status = shown(made, "f")
        return "berth pki issue" in status.get("message", "") and status["state"] == "Joining"

    until("the list to say why it does not come", told)
    until("it to say so as well", lambda: "controller_missing" in foreign.logged() or "store" in foreign.logged())
