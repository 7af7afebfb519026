"""Nodes that have a certificate of the cluster, and want more than it is for."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import PATIENCE, until


class Node(Process):
    """A `berth node` with all roles over an etcd of one member, on loopback; with the certificate of another's cluster if it joins that."""

    def __init__(self, folder: Path, name: str = "a", joins: Node | None = None):
        super().__init__(name, folder)
        self.etcd, self.joins = Process("etcd", folder), joins
        self.pki = joins.pki if joins else folder / "pki"
        self.store, self.peer, self.api, self.http, self.gossip = (f"127.0.0.1:{free_port()}" for _ in range(5))

    def start(self, writes: int = 0) -> Node:
        """`writes` are made in its store before: terms are revisions of that."""
        other = f"http://127.0.0.1:{free_port()}"
        self.etcd.spawn(
            "etcd", "--name", "e", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", f"http://{self.store}",
            "--advertise-client-urls", f"http://{self.store}", "--listen-peer-urls", other, "--initial-advertise-peer-urls", other,
            "--initial-cluster", f"e={other}", "--unsafe-no-fsync", "--log-level", "warn",
        )  # fmt: skip
        if not self.joins:
            self.berth("pki", "init", str(self.pki))
        self.berth("pki", "issue", str(self.pki), self.name)
        if writes:
            until("its store", lambda: self.write() == 200)
            assert {self.write() for _ in range(writes)} == {200}
        self.serve()
        until("the control API", lambda: self.ask(self.name, "/relay/v1/deployments")[0] == 200)
        return self

    def serve(self) -> None:
        self.spawn(
            BERTH, "node", "--name", self.name, "--store", f"etcd://{self.store}", "--pki", str(self.pki / self.name),
            "--data", str(self.folder / "data"), "--http", self.http, "--api", self.api, "--peer", self.peer, "--gossip", self.gossip,
            *(["--join", self.joins.gossip] if self.joins else []),
        )  # fmt: skip

    def write(self) -> int:
        connection = http.client.HTTPConnection(self.store, timeout=PATIENCE)
        try:
            connection.request("POST", "/v3/kv/put", json.dumps({"key": "eA==", "value": "eA=="}))
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def berth(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run([BERTH, *arguments], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def ask(self, certificate: str, path: str, *more: str) -> tuple[int, str]:
        """A request at the port for other nodes. 0: it did not come to one."""
        folder = self.pki / certificate
        command = ["curl", "-sk", "--http2", "--max-time", "10", "--cert", str(folder / "node.pem"), "--key", str(folder / "node.key")]
        said = subprocess.run(
            [*command, "-w", "\n%{http_code}", *more, f"https://{self.peer}{path}"], capture_output=True, text=True, timeout=PATIENCE
        )
        body, _, status = said.stdout.rpartition("\n")
        return int(status or 0), body

    def close(self) -> None:
        super().close()
        self.etcd.close()


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made.start()
    made.close()


def test_a_worker_does_not_declare_or_delete(node):
    node.berth("pki", "issue", str(node.pki), "gpu", "--roles", "worker")
    for path, more in [
        ("/relay/v1/deployments", []),
        ("/relay/v1/apply", ["-X", "POST", "-d", "{}"]),
        ("/relay/v1/namespaces/default/deployments/x", ["-X", "DELETE"]),
        ("/own/figures", []),
        ("/v2/models/x/infer", ["-X", "POST", "-d", "{}"]),
    ]:
        status, body = node.ask("gpu", path, *more)
        assert status == 403 and "worker" in body, (path, status, body)
    # Those that may: a gateway has an API of its own, whose calls it passes on.
    node.berth("pki", "issue", str(node.pki), "edge", "--roles", "gateway")
    assert node.ask("edge", "/relay/v1/deployments")[0] == 200


def test_a_node_has_no_role_beyond_its_certificate(node, tmp_path):
    node.berth("pki", "issue", str(node.pki), "gpu", "--roles", "worker")
    started = ["node", "--pki", str(node.pki / "gpu"), "--data", str(tmp_path / "other"), "--join", "127.0.0.1:1"]
    said = node.berth(*started, "--store", f"etcd://{node.store}", code=2)
    assert "--roles says controller,worker,gateway" in said and "is for worker" in said
    shown = json.loads(node.berth("pki", "show", str(node.pki / "gpu"), "-o", "json"))
    assert shown[0]["roles"] == ["worker"]


def test_certificates_of_earlier_versions_are_refused_with_the_remedy(node, tmp_path):
    """They named no roles."""
    old = node.pki / "old"
    shutil.copytree(node.pki / "a", old)
    extensions = tmp_path / "extensions"
    extensions.write_text("subjectAltName=DNS:old.node.berth\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=digitalSignature\n")
    request = tmp_path / "old.csr"
    openssl = lambda *words: subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=PATIENCE)
    openssl("req", "-new", "-key", old / "node.key", "-subj", "/CN=old", "-out", request)
    openssl(
        "x509", "-req", "-in", request, "-CA", node.pki / "ca.pem", "-CAkey", node.pki / "ca.key", "-days", 2,
        "-extfile", extensions, "-out", old / "node.pem",
    )  # fmt: skip
    assert node.ask("old", "/relay/v1/deployments")[0] == 0
    until("the refusal to be told", lambda: "names no roles" in node.logged())
    said = node.berth("node", "--pki", str(old), "--store", f"etcd://{node.store}", "--data", str(tmp_path / "other"), code=2)
    assert "names no roles" in said and "berth pki issue" in said


def test_a_term_that_was_made_up_holds_nobody_for_good(node, tmp_path):
    """A controller's certificate was stolen, and leads by a store of its own, where terms are later than any of the cluster's."""
    node.berth("pki", "issue", str(node.pki), "gpu", "--roles", "worker")
    thief, worker = Node(tmp_path / "thief", "thief", node), Process("gpu", tmp_path)
    ports = [word for port in ("api", "peer", "gossip") for word in (f"--{port}", f"127.0.0.1:{free_port()}")]
    follows = lambda leader: f'"leader":"{leader}"' in next((line for line in reversed(worker.logged_lines()) if "controller_attached" in line), "")
    try:
        worker.spawn(
            BERTH, "node", "--name", "gpu", "--roles", "worker", "--pki", str(node.pki / "gpu"), "--data", str(tmp_path / "gpu-data"),
            "--join", node.gossip, "--memory", "1GiB", "--log-format", "json", *ports,
        )  # fmt: skip
        until("the worker to follow its leader", lambda: follows("a"))
        thief.start(2_000)
        until("the worker to know the thief", lambda: '"member":"thief"' in worker.logged())
        node.kill()
        until("the worker to follow the thief", lambda: follows("thief"))
        thief.close()
        node.serve()
        until("the worker to follow its leader again", lambda: follows("a"))
        assert "term_went_back" in worker.logged()
    finally:
        worker.close()
        thief.close()


def test_keys_of_nodes_are_for_their_owner(node):
    for file in ("node.key", "gossip.key"):
        assert os.stat(node.pki / "a" / file).st_mode & 0o77 == 0
