"""A fleet that follows a registry, cut in two: what people push meanwhile reaches those that were cut off once they are back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.waiting import PATIENCE, until
from system import Cluster

sys.path.append(str(Path(__file__).parents[1] / "gitops"))

from forge import Model, Registry  # noqa: E402

NODES = [f"worker-{number}" for number in range(4)]

# One caller on one kept connection per gateway, in turn; nothing is sent twice. A line on standard input ends it.
CALLER = """
import http.client, json, select, sys
addresses, sent, failed, versions = sys.argv[1].split(","), 0, [], {}
lines = {address: http.client.HTTPConnection(address, timeout=180) for address in addresses}
while not select.select([sys.stdin], [], [], 0.01)[0]:
    address = addresses[sent % len(addresses)]
    sent += 1
    try:
        lines[address].request("POST", "/v1/doubler", '{"x": 1}', {"content-type": "application/json"})
        answer = lines[address].getresponse()
        status, text = answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        lines[address].close()
        status, text = 0, repr(error)
    if status == 200:
        version = json.loads(text)["version"]
        versions[version] = versions.get(version, 0) + 1
    else:
        failed.append((status, text[:200]))
print(json.dumps({"sent": sent, "failed": failed, "versions": versions}))
"""


class Followed:
    """A registry, a model, a store for weights, and four nodes that follow the registry."""

    def __init__(self, folder: Path):
        self.registry = Registry(folder, NODES)
        self.registry.write("registry.yaml", {"writeBack": {"interval": "1s"}})
        source = ["--source", f"git={self.registry.url}#main", "--source-interval", "1s", "--local-repositories"]
        self.cluster = Cluster(folder, [["--memory", "1GiB", *source]] * len(NODES), "worker-")
        self.caller: subprocess.Popen | None = None
        artifacts = folder / "artifacts"
        artifacts.mkdir()
        try:
            self.model = Model(folder, "doubler", artifacts, self.cluster.store(artifacts).url)
        except BaseException:
            self.close()
            raise

    def call(self, addresses: list[str]) -> None:
        """Begins to ask these gateways."""
        command = self.cluster.clients.command(sys.executable, "-c", CALLER, ",".join(addresses))
        self.caller = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def deploy(self, version: str) -> None:
        self.model.release(version)
        self.registry.deploy("doubler", self.model, version, replicas=2)
        self.registry.commit(f"Deploy doubler {version}")
        self.registry.push()

    def replicas(self) -> list[tuple[str, str]]:
        """Worker and `version state`, as the leader knows them."""
        items = json.loads(self.cluster.run("get", "replicas", "-o", "json", code=None) or '{"items": []}')["items"]
        return [(item["status"]["worker"], f"{item['status'].get('version')} {item['status']['state']}") for item in items]

    def holds(self, version: str, among: list[str]) -> bool:
        """Two copies among these, both of this version, and none of another."""
        return [state for worker, state in self.replicas() if worker in among] == [f"{version} Ready"] * 2

    def healthy(self) -> dict[str, str]:
        """Worker → how it is, by what the broker wrote down."""
        state = self.registry.shown("berth/actual-state", "transactions/actual-state.yaml") or {"workers": []}
        return {worker["worker_id"]: worker["status"] for worker in state["workers"]}

    def close(self) -> None:
        if self.caller:
            self.caller.kill()
            self.caller.wait(PATIENCE)
        self.cluster.close()


@pytest.fixture
def followed(tmp_path):
    made = Followed(tmp_path)
    yield made
    made.close()


def test_a_partition_between_controller_and_workers(followed):
    cluster = followed.cluster
    followed.deploy("1.0.0")
    until("two copies", lambda: followed.holds("1.0.0", NODES))
    leader = until("a leader", cluster.leader)
    # One that holds a copy and one that does not; neither leads.
    places = {worker for worker, _ in followed.replicas()}
    led = [name for name in NODES if name != leader.name]
    names = [next(name for name in led if name in places), next(name for name in led if name not in places)]
    apart = [cluster.node(name) for name in names]
    rest = [node for node in cluster.nodes if node not in apart]
    remaining = [node.name for node in rest]
    followed.call([node.http for node in rest])

    for node in apart:
        node.host.cut(*(other.host for other in rest), *(member.host for member in cluster.etcd.members))
    until("the two to be lost", lambda: set(names) <= set(cluster.states("Lost")))
    until("two copies among the rest", lambda: followed.holds("1.0.0", remaining))
    until("it is written down", lambda: [followed.healthy().get(name) for name in names] == ["failed"] * 2)
    # By whoever led then.
    said = [line for node in rest for line in node.logged_lines()]
    for event in ("worker_marked_failed", "model_redeployment_triggered"):
        assert any(f'"{event}"' in line and names[0] in line for line in said), event

    # People do not wait: a new version while some cannot hear of it. What is cut off goes on with what it has.
    followed.deploy("1.1.0")
    until("1.1.0 among the rest", lambda: followed.holds("1.1.0", remaining))
    for node in apart:
        assert node.process.poll() is None

    for node in apart:
        node.host.heal()
    until("all nodes again", lambda: len(cluster.states("Ready")) == len(NODES))
    until("1.1.0 twice and nothing else", lambda: followed.holds("1.1.0", NODES))
    until("all are healthy again", lambda: list(followed.healthy().values()) == ["healthy"] * len(NODES))
    out, _ = followed.caller.communicate("\n", timeout=PATIENCE)
    record = json.loads(out)
    print(record["sent"], record["versions"])
    assert record["failed"] == [] and set(record["versions"]) == {"1.0.0", "1.1.0"}, record
