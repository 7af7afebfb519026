"""A cluster of real nodes that ask for tokens, over an etcd of one member, on loopback."""

from __future__ import annotations

import http.client
import json
import subprocess
from pathlib import Path

from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import PATIENCE, until


class Node(Process):
    """One node, with all roles."""

    def __init__(self, name: str, folder: Path):
        super().__init__(name, folder)
        self.data = folder / name
        self.peer, self.gossip, self.api, self.http = (f"127.0.0.1:{free_port()}" for _ in range(4))

    def ask(self, address: str, method: str, path: str, body=None, headers=None) -> tuple[int, dict, bytes]:
        """The status, the headers, and the beginning of the body: some answers never end."""
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            told = {k.lower(): v for k, v in response.getheaders()}
            endless = told.get("content-type", "").startswith("text/event-stream")
            return response.status, told, b"" if endless else response.read()
        finally:
            connection.close()

    def control(self, path: str, method: str = "GET", body=None, headers=None) -> tuple[int, dict, bytes]:
        return self.ask(self.api, method, path, body, headers)


class Cluster:
    """Three nodes. `leader` and `follower` are two of them."""

    def __init__(self, folder: Path):
        self.folder, self.pki = folder, folder / "pki"
        self.etcd = Process("etcd", folder)
        self.nodes = [Node(name, folder) for name in "abc"]

    def start(self) -> Cluster:
        store, other = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        self.etcd.spawn(
            "etcd", "--name", "e", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", f"http://{store}",
            "--advertise-client-urls", f"http://{store}", "--listen-peer-urls", other, "--initial-advertise-peer-urls", other,
            "--initial-cluster", f"e={other}", "--unsafe-no-fsync", "--log-level", "warn",
        )  # fmt: skip
        self.berth("pki", "init", str(self.pki))
        for node in self.nodes:
            self.berth("pki", "issue", str(self.pki), node.name)
            node.spawn(
                BERTH, "node", "--name", node.name, "--store", f"etcd://{store}", "--pki", str(self.pki / node.name), "--data", str(node.data),
                "--http", node.http, "--api", node.api, "--peer", node.peer, "--gossip", node.gossip, "--join", self.nodes[0].gossip,
                "--auth", "tokens", "--log-format", "json",
            )  # fmt: skip
        tokens = [node.data / "admin.token" for node in self.nodes]
        file = until("the admin's token", lambda: next((file for file in tokens if file.exists()), None))
        self.admin = file.read_text().strip()
        for node in self.nodes:
            until(f"{node.name} to know the token", lambda node=node: len(self.members(node)) == 3)
        self.leader = next(node for node in self.nodes if node.data == file.parent)
        self.follower = next(node for node in self.nodes if node is not self.leader)
        return self

    def members(self, node: Node) -> list:
        """The nodes that are ready, as a node tells them."""
        try:
            status, _, body = node.control("/v1/nodes", headers=self.bearer())
        except OSError:
            return []
        return [item for item in json.loads(body)["items"] if item["status"]["state"] == "Ready"] if status == 200 else []

    def bearer(self, secret: str | None = None) -> dict:
        return {"authorization": f"Bearer {secret or self.admin}"}

    def token(self, role: str, **spec) -> str:
        status, _, body = self.leader.control("/v1/tokens", "POST", json.dumps({"spec": {"role": role} | spec}), self.bearer())
        assert status == 201, body
        return json.loads(body)["secret"]

    def berth(self, *arguments: str) -> None:
        done = subprocess.run([BERTH, *arguments], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, (done.stdout, done.stderr)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.etcd.close()
