"""Nodes that have a certificate of the cluster, and want more than it is for."""

from __future__ import annotations

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
    """A `berth node` with all roles over an etcd of one member, on loopback."""

    def __init__(self, folder: Path):
        super().__init__("node", folder)
        self.etcd = Process("etcd", folder)
        self.pki = folder / "pki"
        self.store, self.peer, self.api, self.http = (f"127.0.0.1:{free_port()}" for _ in range(4))

    def start(self) -> Node:
        other = f"http://127.0.0.1:{free_port()}"
        self.etcd.spawn(
            "etcd", "--name", "e", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", f"http://{self.store}",
            "--advertise-client-urls", f"http://{self.store}", "--listen-peer-urls", other, "--initial-advertise-peer-urls", other,
            "--initial-cluster", f"e={other}", "--unsafe-no-fsync", "--log-level", "warn",
        )  # fmt: skip
        self.berth("pki", "init", str(self.pki))
        self.berth("pki", "issue", str(self.pki), "a")
        self.spawn(
            BERTH, "node", "--name", "a", "--store", f"etcd://{self.store}", "--pki", str(self.pki / "a"), "--data", str(self.folder / "data"),
            "--http", self.http, "--api", self.api, "--peer", self.peer, "--gossip", f"127.0.0.1:{free_port()}",
        )  # fmt: skip
        until("the control API", lambda: self.ask("a", "/relay/v1/deployments")[0] == 200)
        return self

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


def test_keys_of_nodes_are_for_their_owner(node):
    for file in ("node.key", "gossip.key"):
        assert os.stat(node.pki / "a" / file).st_mode & 0o77 == 0
