"""etcd and `berth node`s on loopback, following a registry; and `berth up`, which is the same on its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

BERTH = os.environ["BERTH"]

# How long anything may take before the test fails; nothing waits longer than it must.
PATIENCE = 90.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what: str, check, patience: float = PATIENCE):
    """The first true answer of `check`, asked again and again; fails the test by saying what never came."""
    end = time.monotonic() + patience
    while True:
        answer = check()
        if answer:
            return answer
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.05)


class Process:
    """A program; its output goes to a file."""

    def __init__(self, name: str, folder: Path):
        self.name, self.folder = name, folder
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def spawn(self, *command: str, env: dict | None = None) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | (env or {})
            )

    def logged(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def events(self, name: str) -> list[dict]:
        """The log's entries of one event."""
        lines = (line for line in self.logged().splitlines() if f'"{name}"' in line)
        return [entry for entry in map(json.loads, lines) if entry.get("event") == name]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def pause(self) -> None:
        """It lives, and says nothing more."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.kill()


class Server(Process):
    """A running `berth up` or `berth node`: its gateway and its control API."""

    def __init__(self, name: str, folder: Path):
        super().__init__(name, folder)
        self.http, self.api = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"

    def alive(self) -> bool:
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.logged()[-4000:]}"
        return self.get("/v2/health/live")[0] == 200

    def get(self, path: str) -> tuple[int, str]:
        return self.call("GET", path, None)

    def ask(self, path: str, request: dict) -> tuple[int, dict]:
        """One request in a model's own JSON."""
        status, body = self.call("POST", path, json.dumps(request))
        try:
            return status, json.loads(body)
        except ValueError:
            return status, {"body": body}

    def call(self, method: str, path: str, body: str | None, at: str | None = None) -> tuple[int, str]:
        """`at`: another of its addresses than the gateway's."""
        host, port = (at or self.http).split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
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
        health = ["etcdctl", "--endpoints", client, "endpoint", "health"]
        environment = os.environ | {"ETCDCTL_API": "3"}
        until("etcd", lambda: subprocess.run(health, capture_output=True, env=environment).returncode == 0)


class Fleet:
    """Several nodes over etcd that follow one registry."""

    def __init__(self, folder: Path, names: list[str], arguments: list[str], env: dict | None = None):
        self.folder, self.arguments, self.env = folder, arguments, env or {}
        self.etcd = Etcd(folder)
        self.pki = folder / "pki"
        self.nodes = [Server(name, folder) for name in names]
        self.gossip = {node.name: free_port() for node in self.nodes}
        self.peers = {node.name: free_port() for node in self.nodes}
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

    def run(self, *arguments: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess:
        return subprocess.run(
            [BERTH, *arguments], capture_output=True, text=True, timeout=timeout, env=os.environ | self.environment
        )

    def berth(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, f"berth {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def is_whole(self) -> bool:
        """Somebody leads, and every node has come to it."""
        answered = self.answered("get", "nodes", "-o", "json")
        nodes = json.loads(answered)["items"] if answered else []
        return sum(node["status"]["state"] == "Ready" for node in nodes) == len(self.nodes)

    def answered(self, *arguments: str) -> str:
        """What a command says; nothing while no controller decides, or the one that does has only just begun, or just died."""
        done = self.run(*arguments)
        nobody = any(words in done.stderr for words in ("Try again in a second", "which decides, was asked and did not answer"))
        assert done.returncode == 0 or nobody, f"berth {' '.join(arguments)}: {done.stderr}"
        return done.stdout if done.returncode == 0 else ""

    def listed(self, *arguments: str) -> list[dict]:
        # Nobody decides until one of the nodes has been elected.
        answered = until("an answer of who leads", lambda: self.answered("get", *arguments, "-o", "json"))
        items = json.loads(answered)
        return items["items"] if isinstance(items, dict) and "items" in items else items

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


class Load:
    """Requests without a pause, through several gateways in turn. Nothing is sent twice: what fails is counted."""

    def __init__(self, servers: list[Server], path: str, request: dict, threads: int = 4):
        self.sent, self.failed, self.answers = 0, [], {}
        self.ending = threading.Event()
        self.lock = threading.Lock()
        work = (servers, path, json.dumps(request))
        self.threads = [threading.Thread(target=self.send, args=(number, *work), daemon=True) for number in range(threads)]
        for thread in self.threads:
            thread.start()

    def send(self, number: int, servers: list[Server], path: str, body: str) -> None:
        host, port = servers[number % len(servers)].http.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        while not self.ending.is_set():
            try:
                connection.request("POST", path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                status, text = answer.status, answer.read().decode()
            except OSError as error:
                status, text = 0, repr(error)
                connection.close()
            with self.lock:
                self.sent += 1
                if status == 200:
                    version = json.loads(text).get("version")
                    self.answers[version] = self.answers.get(version, 0) + 1
                else:
                    self.failed.append((status, text[:200]))
        connection.close()

    def until(self, version: str) -> None:
        """Waits until this version has answered."""
        until(f"an answer of {version}; so far {self.answers}", lambda: self.answers.get(version))

    def end(self) -> dict:
        self.ending.set()
        for thread in self.threads:
            thread.join()
        return self.answers
