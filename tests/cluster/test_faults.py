"""What may break, under constant load through every gateway: each run ends with a record of all requests, and where a copy
lived, none may be lost (DESIGN: failure model)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from harness.examples import EXAMPLES, manifest
from harness.waiting import PATIENCE, until

MODELS = ("iris", "flowers")


def five(cluster, **spec):
    """Five nodes, two deployments with two copies each."""
    made = cluster(count=5)
    made.apply(*(manifest(name, **{"replicas": 2} | spec) for name in MODELS))
    made.available(*MODELS)
    for name in MODELS:
        until(f"two copies of {name}", lambda: len(made.places(name)) == 2)
    return made


def leads(cluster):
    return until("a leader", cluster.leader)


def holder(cluster, name: str):
    """A node that holds a copy and does not lead."""

    def found():
        leader = cluster.leader()
        others = [node for node in map(cluster.node, cluster.places(name)) if node is not leader]
        return others[0] if leader and others else None

    return until(f"a copy of {name} on a node that does not lead", found)


def taken(cluster, declared: dict) -> bool:
    """Whether a declaration is acknowledged. One whose first answer was lost is there already."""
    said = cluster.apply(declared, code=None)
    return "created" in said or "unchanged" in said


def test_every_gateway_takes_every_request(cluster):
    made = five(cluster)
    load = made.load(*MODELS, callers=10)
    load.more(100)
    until("requests by way of another node", lambda: sum(node.metric("berth_gateway_forwards_total") for node in made.nodes) > 200)
    record = load.end().lost_nothing()
    assert not record.refused(), record.refused()[:3]


def test_a_miss_anywhere_loads_once(cluster):
    made = cluster(count=5)
    made.apply(manifest("cold", replicas={"min": 0, "max": 1}))
    load = made.load("cold", callers=20, rate=100)
    until("the model to be ready", lambda: made.places("cold"))
    load.end().lost_nothing(20)
    # By those who loaded: a leader that has only just begun may tell of it once more.
    loaded = [line for node in made.nodes for line in node.logged_lines() if '"model_load_success"' in line and '"cold"' in line]
    assert len(loaded) == 1, loaded


def test_a_worker_is_killed(cluster):
    made = five(cluster)
    victim = holder(made, "iris")
    load = made.load(*MODELS)
    load.more(100)
    victim.kill()
    began = time.monotonic()
    until("two copies on those that live", lambda: len([p for p in made.places("iris") if p != victim.name]) == 2)
    print(f"copies restored after {time.monotonic() - began:.1f} s")
    load.end().lost_nothing()


def test_the_last_copy_is_killed_and_comes_back_elsewhere(cluster):
    made = cluster(count=4)
    # Not on the node that leads: this is about the copy alone.
    made.run("cordon", f"node/{leads(made).name}")
    made.apply(manifest("iris", replicas=1))
    made.available("iris")
    victim = holder(made, "iris")
    load = made.load("iris", through=[node for node in made.nodes if node is not victim])
    load.more(100)
    victim.kill()
    began = time.monotonic()
    until("the model elsewhere", lambda: [p for p in made.places("iris") if p != victim.name])
    print(f"back after {time.monotonic() - began:.1f} s")
    # Nobody had a copy for a moment: those requests waited for the next place.
    record = load.end().lost_nothing()
    print(f"the slowest request took {record.slowest():.1f} s")


def test_the_leader_is_killed_and_nothing_moves(cluster):
    made = five(cluster)
    leader = leads(made)
    before = {name: made.places(name) for name in MODELS}
    load = made.load(*MODELS)
    load.more(100)
    leader.kill()
    began = time.monotonic()
    until("another leader", lambda: made.leader() not in (None, leader))
    took = time.monotonic() - began
    print(f"another leader after {took:.1f} s")
    for name in MODELS:
        left = set(before[name]) - {leader.name}
        until(f"{name} where it was", lambda: left <= set(made.places(name)))
    made.apply(manifest("later"))
    made.available("later")
    load.end().lost_nothing()


def test_a_leader_that_was_asleep_has_no_say(cluster):
    made = five(cluster)
    leader = leads(made)
    load = made.load(*MODELS, through=[node for node in made.nodes if node is not leader])
    load.more(100)
    leader.pause()
    until("another leader", lambda: made.leader() not in (None, leader))
    made.apply(manifest("meanwhile"))
    made.available("meanwhile")
    leader.resume()
    until("the sleeper to be a follower", lambda: leader.name in made.states("Ready") and made.leader() is not leader)
    made.available("meanwhile", *MODELS)
    load.end().lost_nothing()


def test_a_node_is_cut_off_from_the_others(cluster):
    made = five(cluster)
    victim = holder(made, "iris")
    others = [node for node in made.nodes if node is not victim]
    outside = made.load(*MODELS, through=others)
    inside = made.load("iris", through=[victim], callers=2, rate=50)
    for load in (outside, inside):
        load.more(50)
    victim.host.cut(*(node.host for node in others), *(member.host for member in made.etcd.members))
    until("two copies among the others", lambda: len([p for p in made.places("iris") if p != victim.name]) == 2)
    for load in (outside, inside):
        load.more(50)
    victim.host.heal()
    until("the node to be back", lambda: len(made.states("Ready")) == 5)
    outside.end().lost_nothing()
    # It holds a copy and was alone with it: who asks it goes on being answered.
    inside.end().lost_nothing()


def test_the_leader_is_cut_off_in_one_direction(cluster):
    made = five(cluster)
    leader = leads(made)
    others = [node for node in made.nodes if node is not leader]
    load = made.load(*MODELS, through=others)
    load.more(100)
    leader.host.deafen(*(node.host for node in others), *(member.host for member in made.etcd.members))
    until("another leader", lambda: made.leader() not in (None, leader))
    leader.host.heal()
    until("all nodes", lambda: len(made.states("Ready")) == 5)
    load.end().lost_nothing()


def test_a_cable_is_pulled(cluster):
    made = five(cluster)
    victim = holder(made, "iris")
    load = made.load(*MODELS)
    load.more(100)
    victim.host.unplug()
    until("two copies among the others", lambda: len([p for p in made.places("iris") if p != victim.name]) == 2)
    load.more(100)
    victim.host.heal()
    until("the node to be back", lambda: len(made.states("Ready")) == 5)
    load.end().lost_nothing()


def started(cluster) -> dict[str, int]:
    """Node → its number, which grows with each start of the process."""
    items = json.loads(cluster.run("get", "nodes", "-o", "json"))["items"]
    return {item["metadata"]["name"]: item["status"]["incarnation"] for item in items}


def test_packets_are_lost(cluster):
    made = five(cluster)
    incarnations = started(made)
    for node in made.nodes[:3]:
        node.host.lose(5)
    load = made.load(*MODELS)
    load.more(1500)
    for node in made.nodes[:3]:
        node.host.heal()
    load.end().lost_nothing()
    until("all nodes", lambda: len(made.states("Ready")) == 5)
    assert started(made) == incarnations, "a process was started again"


def test_a_node_is_far_away_and_its_line_is_narrow(cluster, tmp_path):
    made = five(cluster)
    far = holder(made, "iris")
    proxy = Path(__file__).with_name("delay.py")
    listen, target = f"{far.host.address}:17947", f"{far.host.address}:7947"
    line = subprocess.Popen(far.host.command(sys.executable, str(proxy), listen, target, "80"), stdout=subprocess.PIPE)
    try:
        assert line.stdout.readline() == b"listening\n"
        far.host._iptables("-t", "nat", "-A", "PREROUTING", "-i", "eth0", "-p", "tcp", "--dport", "7947", "-j", "REDIRECT", "--to-ports", "17947")
        far.host.narrow("20mbit")
        load = made.load(*MODELS)
        load.more(1000)
        record = load.end().lost_nothing()
        print(f"the slowest request took {record.slowest():.2f} s")
    finally:
        line.kill()
        line.wait(PATIENCE)


def test_members_of_the_store_are_restarted_one_by_one(cluster):
    made = five(cluster)
    load = made.load(*MODELS)
    load.more(100)
    acknowledged = []
    for number in range(3):
        made.etcd.members[number].kill()
        for nth in range(3):
            name = f"during-{number}-{nth}"
            until(f"{name} to be taken", lambda: taken(made, manifest(name, replicas={"min": 0, "max": 1})))
            acknowledged.append(name)
        made.etcd.start(number)
        until("the store to be whole", made.etcd.healthy)

    def known() -> set[str]:
        return {item["metadata"]["name"] for item in json.loads(made.run("get", "deployments", "-o", "json"))["items"]}

    # What is listed follows what is stored: the leader may be one that has just begun to watch.
    until("all that was acknowledged", lambda: set(acknowledged) <= known())
    load.end().lost_nothing()


def test_the_store_has_no_majority(cluster):
    made = five(cluster)
    before = {name: made.places(name) for name in MODELS}
    load = made.load(*MODELS)
    load.more(100)
    for member in made.etcd.members[:2]:
        member.pause()
    until("nobody to decide", lambda: not made.leader())
    refused = made.apply(manifest("refused"), code=None)
    assert "created" not in refused, refused
    for member in made.etcd.members[:2]:
        member.resume()
    until("copies where they were", lambda: {name: made.places(name) for name in MODELS} == before)
    until("writes to be taken", lambda: taken(made, manifest("taken")))
    made.available("taken")
    load.end().lost_nothing()


def test_warm_models_are_served_without_controller_and_store(cluster):
    made = five(cluster)
    leader = leads(made)
    others = [node for node in made.nodes if node is not leader]
    made.etcd.close()
    leader.kill()
    load = made.load(*MODELS, through=others)
    load.more(600)
    # Nobody tells them: they notice a dead worker by themselves, and go to the other copy.
    for name in MODELS:
        until(f"a gateway that knows {name}", lambda: any(node.call(f"/v2/models/{name}/ready", 8080)[0] == 200 for node in others))
    load.end().lost_nothing()


def test_a_node_is_drained(cluster):
    made = five(cluster)
    victim = holder(made, "iris")
    load = made.load(*MODELS)
    load.more(100)
    made.run("drain", f"node/{victim.name}", "--timeout", f"{PATIENCE:.0f}s")
    until("the node to be drained", lambda: victim.name in made.states("Drained"))
    assert all(victim.name not in made.places(name) for name in MODELS)
    made.run("uncordon", f"node/{victim.name}")
    until("the node to be open again", lambda: victim.name in made.states("Ready"))
    load.end().lost_nothing()


def test_all_nodes_are_restarted_one_after_the_other(cluster):
    made = five(cluster)
    load = made.load(*MODELS)
    load.more(100)
    for node in made.nodes:
        assert node.stop() == 0, node.logged()[-4000:]
        node.start()
        until(f"{node.name} to answer", node.alive)
        until("every node to be ready", lambda: len(made.states("Ready")) == 5)
        made.available(*MODELS)
    load.end().lost_nothing()


def test_a_region_fails_over_and_back(cluster):
    regions = ["eu", "eu", "us", "us"]
    made = cluster(*(["--memory", "1GiB", "--labels", f"region={region}"] for region in regions))
    made.apply(manifest("iris", replicas={"regions": {"eu": 1, "us": 1}}))
    made.available("iris")
    region = lambda name: regions[int(name[1:])]
    until("a copy in each region", lambda: sorted(map(region, made.places("iris"))) == ["eu", "us"])
    eu = [node for node in made.nodes if region(node.name) == "eu"]
    us = [node for node in made.nodes if region(node.name) == "us"]
    load = made.load("iris", through=us)
    load.more(100)
    for node in eu:
        node.kill()
    until("both copies in the other region", lambda: len([p for p in made.places("iris") if region(p) == "us"]) == 2)
    for node in eu:
        node.start()
    until("every node to be ready", lambda: len(made.states("Ready")) == 4)
    until("a copy at home again", lambda: sorted(map(region, made.places("iris"))) == ["eu", "us"])
    load.end().lost_nothing()


def test_a_full_disk_sends_models_elsewhere(cluster, tmp_path):
    made = cluster(["--memory", "1GiB", "--labels", "disk=full"], ["--memory", "1GiB"])
    full = made.nodes[0]
    cache = full.folder / "data" / "cache"
    # The node has a view of its own of what is mounted: `ip netns exec` gives it one.
    inside = ["nsenter", "-t", str(full.process.pid), "-m"]
    subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(cache)], check=True, timeout=PATIENCE)
    try:
        uri = f"{made.store(EXAMPLES).url}/artifacts/digits-forest.onnx"
        preferred = {"selector": {"preferred": {"disk": "full"}}}
        made.apply(manifest("forest", model={"uri": uri}, **preferred))
        made.available("forest")
        until("it to be where there is room", lambda: made.places("forest") == [made.nodes[1].name])
        until("people to read why", lambda: "disk" in made.run("get", "events"))
    finally:
        subprocess.run([*inside, "umount", "-l", str(cache)], check=True, timeout=PATIENCE)
