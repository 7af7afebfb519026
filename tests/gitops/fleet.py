"""etcd and `berth node`s on loopback, following a registry; and `berth up`, which is the same on its own."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from pathlib import Path

from harness import load
from harness.ports import free_port
from harness.processes import BERTH, NOBODY, Process
from harness.waiting import PATIENCE, until


class Server(Process):
    """A running `berth up` or `berth node`: its gateway and its control API."""

    def __init__(self, name: str, folder: Path):
        super().__init__(name, folder)
        self.http, self.api = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"

    def alive(self) -> bool:
        assert self.runs(), f"{self.name} ended with {self.process.returncode}:\n{self.logged()[-4000:]}"
        return self.get("/v2/health/live")[0] == 200

    def events(self, name: str) -> list[dict]:
        """The log's entries of one event."""
        lines = (line for line in self.logged_lines() if f'"{name}"' in line)
        return [entry for entry in map(json.loads, lines) if entry.get("event") == name]

    def get(self, path: str) -> tuple[int, str]:
        return self.call("GET", path, None)

    def ask(self, path: str, request: dict) -> tuple[int, dict]:
        """One request in a model's own JSON."""
        status, body = self.call("POST", path, json.dumps(request))
        try:
            return status, json.loads(body)
        except ValueError:
            return status, {"body": body}

    def call(self, method: str, path: str, body: str | None, at: str | None = None, patience: float = PATIENCE) -> tuple[int, str]:
        """`at`: another of its addresses than the gateway's."""
        connection = http.client.HTTPConnection(at or self.http, timeout=patience)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()


class Etcd(Process):
    """One member is enough here: what happens when members die is tested in tests/cluster."""

    def __init__(self, folder: Path):
        super().__init__("etcd", folder)
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.url = client.replace("http://", "etcd://")
        self.spawn(
            "etcd", "--name", "e", "--data-dir", str(folder / "etcd"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"e={peer}", "--unsafe-no-fsync", "--logger", "zap", "--log-level", "warn",
        )  # fmt: skip
        self.health = ["etcdctl", "--endpoints", client, "endpoint", "health"]

    def alive(self) -> bool:
        assert self.runs(), f"etcd ended with {self.process.returncode}:\n{self.logged()[-4000:]}"
        environment = os.environ | {"ETCDCTL_API": "3"}
        return subprocess.run(self.health, capture_output=True, env=environment, timeout=PATIENCE).returncode == 0


class Fleet:
    """Several nodes over etcd that follow one registry."""

    def __init__(self, folder: Path, names: list[str], arguments: list[str], env: dict | None = None):
        self.folder, self.arguments, self.env = folder, arguments, env or {}
        self.etcd = Etcd(folder)
        self.pki = folder / "pki"
        self.nodes = [Server(name, folder) for name in names]
        self.gossip = {node.name: free_port() for node in self.nodes}
        self.peers = {node.name: free_port() for node in self.nodes}
        try:
            self.begin()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        until("etcd", self.etcd.alive)
        self.berth("pki", "init", str(self.pki))
        for node in self.nodes:
            self.berth("pki", "issue", str(self.pki), node.name)
            self.start(node)
        for node in self.nodes:
            until(f"{node.name}", node.alive)
        until("all nodes to be ready", self.is_whole)

    def start(self, node: Server) -> None:
        joins = ",".join(f"127.0.0.1:{port}" for name, port in self.gossip.items() if name != node.name)
        node.spawn(
            BERTH, "node", "--name", node.name, "--store", self.etcd.url, "--pki", str(self.pki / node.name),
            "--data", str(self.folder / node.name), "--http", node.http, "--api", node.api,
            "--gossip", f"127.0.0.1:{self.gossip[node.name]}", "--peer", f"127.0.0.1:{self.peers[node.name]}",
            *(["--join", joins] if joins else []), "--log-format", "json", "--log", "warn,berth=debug", *self.arguments,
            env=self.env,
        )  # fmt: skip

    @property
    def environment(self) -> dict:
        return {"BERTH_API": ",".join(f"http://{node.api}" for node in self.nodes)}

    def answered(self, *arguments: str) -> subprocess.CompletedProcess | None:
        """A command that is done; nothing while nobody decides."""
        done = subprocess.run(
            [BERTH, *arguments], capture_output=True, text=True, timeout=PATIENCE, env=os.environ | self.environment
        )
        nobody = any(words in done.stderr for words in NOBODY)
        assert done.returncode == 0 or nobody, f"berth {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done if done.returncode == 0 else None

    def berth(self, *arguments: str) -> str:
        """Output of a command, once somebody decides."""
        return until(f"an answer to berth {' '.join(arguments)}", lambda: self.answered(*arguments)).stdout

    def listed(self, kind: str) -> list[dict]:
        """All objects of a kind, once somebody decides. They are looked at many times: a command costs much more than the question."""
        return json.loads(until(f"an answer to GET /v1/{kind}", lambda: self.asked(f"/v1/{kind}")))["items"]

    def asked(self, path: str) -> str | None:
        """The answer of a node's control API; nothing while nobody decides."""
        for node in (node for node in self.nodes if node.runs()):
            status, body = node.call("GET", path, None, at=node.api, patience=10)
            assert status in (0, 200) or status >= 500, f"{path}: {status} {body}"
            if status == 200:
                return body
        return None

    def is_whole(self) -> bool:
        """Somebody leads, and every node has come to it."""
        return sum(node["status"]["state"] == "Ready" for node in self.listed("nodes")) == len(self.nodes)

    def leader(self) -> str | None:
        """The node whose controller decides, if there is one."""
        return next((node["metadata"]["name"] for node in self.listed("nodes") if node["status"].get("leader")), None)

    def node(self, name: str) -> Server:
        return next(node for node in self.nodes if node.name == name)

    def logged(self, event: str) -> list[dict]:
        return [entry for node in self.nodes for entry in node.events(event)]

    def close(self) -> None:
        for process in [*self.nodes, self.etcd]:
            process.close()


class Load(load.Load):
    """Callers of a model that says with each answer which version it is of."""

    def __init__(self, servers: list[Server], path: str, request: dict, callers: int = 4):
        self.answers: dict[str, int] = {}
        self.counted = 0
        super().__init__([server.http for server in servers], path, request, callers)

    def versions(self) -> dict[str, int]:
        """The number of answers of each version so far."""
        new = self.records[self.counted :]
        self.counted += len(new)
        for version in (json.loads(record.text).get("version") for record in new if record.status == 200):
            self.answers[version] = self.answers.get(version, 0) + 1
        return self.answers

    def until(self, version: str) -> None:
        """Waits until this version has answered."""
        until(lambda: f"an answer of {version}; there were {self.versions()}", lambda: self.versions().get(version))

    def end(self) -> dict[str, int]:
        super().end()
        return self.versions()
