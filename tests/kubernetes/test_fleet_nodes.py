"""Nodes of a fleet get their certificates by the tokens of their pods. No kubelet is here: pods are objects, and their nodes are processes."""

from __future__ import annotations

import hashlib
import json
import ssl
import subprocess
from pathlib import Path

import pytest
from control_plane import FLEET, ControlPlane
from harness.documents import documents
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import PATIENCE, until

PODS, ACCOUNTS = "api/v1/namespaces/berth/pods", "api/v1/namespaces/berth/serviceaccounts"
ACCOUNT, AUDIENCE, LIFE = "berth-fleet-nodes", "berth-join", "30s"
# Rights of controllers beside those of their source.
RIGHTS = {("tokenreviews", "create"), ("pods", "get")}


class Controller(Process):
    """A controller as the StatefulSet of controllers starts it, with the rights that the manifests give it."""

    def __init__(self, folder: Path, plane: ControlPlane, pki: Path):
        super().__init__("controller", folder)
        self.plane, self.pki = plane, pki
        self.http, self.api, self.peer, self.gossip = (f"127.0.0.1:{free_port()}" for _ in range(4))
        self.nodes: list[Process] = []

    def start(self) -> Controller:
        self.berth("pki", "issue", self.pki, "berth-fleet-controllers-0", "--roles", "controller,gateway")
        self.spawn(
            BERTH, "node", "--roles", "controller,gateway", "--pki", str(self.pki / "berth-fleet-controllers-0"), "--authority", str(self.pki),
            "--join-pods", f"berth/{ACCOUNT}=worker,gateway", "--certificate-life", LIFE, "--data", str(self.folder / "controller-data"),
            "--store", f"etcd://127.0.0.1:{self.plane.etcd}/{self.folder.name}", "--http", self.http, "--api", self.api, "--peer", self.peer,
            "--gossip", self.gossip, "--log-format", "json", env={"KUBECONFIG": str(self.plane.config(FLEET, "fleet-token"))},
        )  # fmt: skip
        until("the control API", lambda: self.run("get", "nodes", "--api", f"http://{self.api}").returncode == 0)
        return self

    @staticmethod
    def run(*words) -> subprocess.CompletedProcess:
        return subprocess.run([BERTH, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE)

    def berth(self, *words, code: int = 0) -> str:
        done = self.run(*words)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def ask(self, *words) -> str:
        return self.berth(*words, "--api", f"http://{self.api}")

    def state(self, name: str) -> str | None:
        nodes = json.loads(self.ask("get", "nodes", "-o", "json"))["items"]
        return next((node["status"]["state"] for node in nodes if node["metadata"]["name"] == name), None)

    def words(self, name: str, token: str) -> list[str]:
        """The command of a node in a pod."""
        file = self.folder / f"{name}.token"
        file.write_text(token)
        fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert((self.pki / "ca.pem").read_text())).hexdigest()
        ports = [word for port in ("http", "api", "peer", "gossip") for word in (f"--{port}", f"127.0.0.1:{free_port()}")]
        return [
            "node", "--name", name, "--roles", "worker,gateway", "--pki", str(self.memory(name)), "--pod-token", str(file), "--join-ca", fingerprint,
            "--join-at", self.peer, "--join", self.gossip, "--data", str(self.folder / f"{name}-data"), *ports, "--memory", "1GiB",
            "--lame-duck", "0s", "--log-format", "json",
        ]  # fmt: skip

    def join(self, name: str, token: str) -> Process:
        node = Process(name, self.folder)
        node.spawn(BERTH, *self.words(name, token))
        self.nodes.append(node)
        until(f"{name} to be ready", lambda: self.state(name) == "Ready")
        return node

    def memory(self, name: str) -> Path:
        """The folder in the memory of a pod."""
        return self.folder / "memory" / name

    def certificate(self, name: str) -> dict:
        return json.loads(self.berth("pki", "show", self.memory(name) / "node.pem", "-o", "json"))[0]

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        super().close()


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ca") / "pki"
    subprocess.run([BERTH, "pki", "init", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def rights(plane, pki):
    """What `berth operator fleet` prints, without what an API server of 1.20 has not."""
    words = ["--image", "x", "--nodes", "3", "--store", "etcds://etcd:2379", "--authority-secret", "fleet-ca", "--ca", str(pki / "ca.pem")]
    printed = subprocess.run([BERTH, "operator", "fleet", *words], check=True, capture_output=True, text=True).stdout
    objects = [one for one in documents(printed) if one["kind"] != "PodDisruptionBudget"]
    plane.kubectl_apply(*objects)
    yield objects
    plane.kubectl("delete", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


@pytest.fixture
def controller(plane, rights, pki, tmp_path):
    controller = Controller(tmp_path, plane, pki)
    try:
        yield controller.start()
    finally:
        controller.close()


@pytest.fixture
def pods(plane):
    """Makes pods. They go with the test."""
    pods = Pods(plane)
    yield pods
    for name in list(pods.made):
        pods.delete(name)


class Pods:
    """Pods of the nodes' service account, and the tokens that a kubelet would put into them."""

    def __init__(self, plane: ControlPlane):
        self.plane, self.made = plane, {}

    def create(self, name: str, account: str = ACCOUNT, made_by: str | None = "berth-fleet") -> None:
        spec = {"serviceAccountName": account, "containers": [{"name": "berth", "image": "x"}]}
        metadata = {"name": name}
        if made_by:
            uid = self.plane.get("statefulset", "berth", made_by)["metadata"]["uid"]
            metadata["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": made_by, "uid": uid, "controller": True}]
        status, said = self.plane.ask("POST", PODS, {"metadata": metadata, "spec": spec})
        assert status == 201, said
        self.made[name] = (account, json.loads(said)["metadata"]["uid"])

    def delete(self, name: str) -> None:
        status, said = self.plane.ask("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        assert status == 200, said
        until("the pod to go", lambda: self.plane.ask("GET", f"{PODS}/{name}")[0] == 404)
        del self.made[name]

    def token(self, name: str, audience: str = AUDIENCE, bound: bool = True) -> str:
        account, uid = self.made[name]
        spec = {"audiences": [audience], "expirationSeconds": 600}
        if bound:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
        status, said = self.plane.ask("POST", f"{ACCOUNTS}/{account}/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
        assert status == 201, said
        return json.loads(said)["status"]["token"]


def test_a_node_joins_by_its_pod_and_renews_its_certificate_by_itself(plane, controller, pods):
    before = len(plane.audited())
    pods.create("berth-fleet-0")
    token = pods.token("berth-fleet-0")
    node = controller.join("berth-fleet-0", token)
    first = controller.certificate("berth-fleet-0")
    assert (first["node"], sorted(first["roles"])) == ("berth-fleet-0", ["gateway", "worker"])
    lines = [line for line in plane.audited()[before:] if line["user"]["username"] == FLEET and "objectRef" in line]
    assert {(line["objectRef"]["resource"], line["verb"]) for line in lines} == RIGHTS
    assert all(line["responseStatus"]["code"] < 300 for line in lines), lines

    until("the next certificate", lambda: controller.certificate("berth-fleet-0")["serial"] != first["serial"])
    assert controller.state("berth-fleet-0") == "Ready" and node.runs()
    assert '"event":"worker_lost"' not in controller.logged()
    # Its container ends, its pod does not: it starts again with what it has.
    assert node.stop() == 0
    controller.join("berth-fleet-0", "no token")
    audit = controller.ask("audit", "-o", "json")
    assert "pod:berth-fleet-0" in audit and token not in audit + controller.logged() + node.logged()


def test_other_tokens_open_nothing(controller, pods, plane):
    pods.create("berth-fleet-1")
    plane.create(ACCOUNTS, {"metadata": {"name": "stranger"}})
    pods.create("stranger", "stranger")
    refused = lambda name, token: controller.berth(*controller.words(name, token), code=1)
    assert "this is the pod berth-fleet-1" in refused("berth-fleet-2", pods.token("berth-fleet-1"))
    assert "for the audience berth-join" in refused("berth-fleet-1", pods.token("berth-fleet-1", audience="https://kubernetes.default.svc"))
    assert "is of no pod" in refused("berth-fleet-1", pods.token("berth-fleet-1", bound=False))
    assert f"is not of system:serviceaccount:berth:{ACCOUNT}" in refused("stranger", pods.token("stranger"))
    assert "no token of a service account" in refused("berth-fleet-1", "berth")
    # Somebody who may start pods with the account makes one that has the name of a controller, or of a node.
    for name, made_by in [("berth-fleet-controllers-1", None), ("berth-fleet-controllers-1", "berth-fleet"), ("berth-fleet-3", None)]:
        pods.create(name, made_by=made_by)
        assert "is not one that the StatefulSet berth-fleet made" in refused(name, pods.token(name))
        pods.delete(name)
    gone = pods.token("berth-fleet-1")
    pods.delete("berth-fleet-1")
    pods.create("berth-fleet-1")
    said = refused("berth-fleet-1", gone)
    assert "its pod is gone" in said or "of this token is gone" in said, said
    assert not controller.memory("berth-fleet-1").joinpath("node.pem").exists()
    # A pod's token is none for the API server.
    own = plane.config("a-pod", pods.token("berth-fleet-1"))
    said = subprocess.run(["kubectl", f"--kubeconfig={own}", "get", "pods"], capture_output=True, text=True, timeout=PATIENCE)
    assert said.returncode != 0 and "Unauthorized" in said.stderr + said.stdout, said


def test_a_revoked_pod_does_not_come_back(controller, pods):
    pods.create("berth-fleet-2")
    node = controller.join("berth-fleet-2", pods.token("berth-fleet-2"))
    controller.ask("pki", "revoke", "berth-fleet-2", "--reason", "stolen")
    assert node.process.wait(PATIENCE) == 1, "it ends"
    # Whoever took the pod over can ask anew with its token, and gets nothing.
    for file in controller.memory("berth-fleet-2").iterdir():
        file.unlink()
    refused = lambda: controller.berth(*controller.words("berth-fleet-2", pods.token("berth-fleet-2")), code=1)
    assert "delete it" in refused()
    # Times of pods and of revocations are of two clocks: one that is made at once counts as earlier.
    pods.delete("berth-fleet-2")
    pods.create("berth-fleet-2")
    assert "within 60 s" in refused()
    revocation = json.loads(controller.ask("pki", "revocations", "-o", "json"))["items"][0]["metadata"]["name"]
    controller.ask("pki", "reinstate", revocation)
    controller.join("berth-fleet-2", pods.token("berth-fleet-2"))
