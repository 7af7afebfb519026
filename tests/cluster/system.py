"""etcd and Berth nodes as processes on the machines of a network, and the commands against them."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from pathlib import Path

from harness import processes
from harness.processes import BERTH, NOBODY
from harness.waiting import PATIENCE, until
from network import Host, Network


class Process(processes.Process):
    """A program on a machine."""

    def __init__(self, host: Host, folder: Path):
        super().__init__(host.name, folder)
        self.host = host

    def command(self, *command: str) -> list[str]:
        # `ip netns exec` becomes the program, so the number of the process is the program's.
        return self.host.command(*command)


def request(clients: Host, address: str, port: int, path: str, method: str = "GET", body: str | None = None) -> tuple[int, str]:
    """One request, sent on the machine of the clients; 0 where there is no answer.

    It is sent by this process: a program for each of the many questions would cost more than all else in these tests.
    """
    connection = http.client.HTTPConnection(address, port, timeout=10)
    try:
        with clients.inside():
            connection.connect()
        connection.request(method, path, body or None, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()


class Store(Process):
    """A web server of a folder, on the machine of the clients. It answers 503 while the file `down` is in the folder."""

    PORT = 8000

    def __init__(self, clients: Host, logs: Path, folder: Path):
        super().__init__(clients, logs)
        script = (
            "import http.server as h,functools,os,sys\n"
            "class H(h.SimpleHTTPRequestHandler):\n"
            " def do_GET(s):\n"
            "  if os.path.exists(os.path.join(s.directory,'down')): s.send_error(503)\n"
            "  else: super().do_GET()\n"
            " do_HEAD=do_GET\n"
            "h.ThreadingHTTPServer((sys.argv[1],int(sys.argv[2])),functools.partial(H,directory=sys.argv[3])).serve_forever()\n"
        )
        self.spawn(sys.executable, "-c", script, clients.address, str(self.PORT), str(folder))
        until("the store to answer", self.answers)

    def answers(self) -> bool:
        assert self.runs(), f"the store ended:\n{self.logged()}"
        return request(self.host, self.host.address, self.PORT, "/")[0] != 0

    @property
    def url(self) -> str:
        return f"http://{self.host.address}:{self.PORT}"


class Etcd:
    """Three members of etcd, each on a machine of its own."""

    def __init__(self, network: Network, folder: Path):
        self.members = [Process(network.host(f"e{n}"), folder / f"etcd{n}") for n in range(3)]
        for number in range(3):
            self.start(number)
        until("etcd to be healthy", self.healthy)

    def start(self, number: int) -> None:
        member = self.members[number]
        url = lambda member, port: f"http://{member.host.address}:{port}"
        peers = ",".join(f"{m.host.name}={url(m, 2380)}" for m in self.members)
        member.spawn(
            "etcd", "--name", member.host.name, "--data-dir", str(member.folder / "data"),
            "--listen-client-urls", url(member, 2379), "--advertise-client-urls", url(member, 2379),
            "--listen-peer-urls", url(member, 2380), "--initial-advertise-peer-urls", url(member, 2380),
            "--initial-cluster", peers, "--heartbeat-interval", "100", "--election-timeout", "1000", "--unsafe-no-fsync",
            "--logger", "zap", "--log-level", "warn",
        )  # fmt: skip

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(f"{member.host.address}:2379" for member in self.members)

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess:
        endpoints = ",".join(f"{member.host.address}:2379" for member in self.members)
        command = self.members[0].host.command("etcdctl", "--endpoints", endpoints, *arguments)
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"ETCDCTL_API": "3"}, timeout=PATIENCE)

    def healthy(self) -> bool:
        return self.ctl("endpoint", "health").returncode == 0

    def close(self) -> None:
        for member in self.members:
            member.close()


class Node(Process):
    """A `berth node`."""

    def __init__(self, cluster: "Cluster", host: Host, arguments: list[str]):
        super().__init__(host, cluster.folder / host.name)
        self.cluster = cluster
        self.arguments = arguments
        self.http = f"{host.address}:8080"
        self.api = f"{host.address}:8081"

    def start(self) -> "Node":
        joins = [f"{node.host.address}:7946" for node in self.cluster.nodes if node is not self]
        self.spawn(
            BERTH, "node", "--name", self.name, "--store", self.cluster.etcd.url, "--pki", str(self.cluster.pki / self.name),
            "--data", str(self.folder / "data"), "--advertise", self.host.address, "--insecure",
            "--http", f"{self.host.address}:8080", "--api", f"{self.host.address}:8081",
            "--gossip", f"{self.host.address}:7946", "--peer", f"{self.host.address}:7947",
            *(["--join", ",".join(joins)] if joins else []), "--log-format", "json", *(self.arguments if "--log" in self.arguments else ["--log", "warn,berth=info", *self.arguments]),
        )  # fmt: skip
        return self

    def alive(self) -> bool:
        assert self.runs(), f"{self.name} ended with {self.process.returncode}:\n{self.logged()[-4000:]}"
        # Ready, as a load balancer asks: a gateway that no controller has told anything knows no model.
        status, _ = self.call("/v2/health/ready", 8080)
        return status == 200

    def call(self, path: str, port: int = 8081, method: str = "GET", body: str | None = None) -> tuple[int, str]:
        return request(self.cluster.clients, self.host.address, port, path, method, body)

    def metric(self, name: str, **labels) -> float:
        """The sum of the samples of `name` whose labels include `labels`."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = self.call("/metrics")[1].splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line.split("{")[0].split(" ")[0] == name)
        return sum(float(value) for key, value in samples if all(w in key for w in wanted))


class Cluster:
    """Nodes on machines of their own, an etcd, and a machine for clients."""

    def __init__(self, folder: Path, nodes: list[list[str]], name: str = "n"):
        """`name`: what their names begin with."""
        self.folder = folder
        self.network = Network()
        self.nodes: list[Node] = []
        self.loads: list[Load] = []
        self.stores: list[Store] = []
        try:
            self.clients = self.network.host("c")
            self.etcd = Etcd(self.network, folder)
            self.pki = folder / "pki"
            self._berth("pki", "init", str(self.pki))
            for number, arguments in enumerate(nodes):
                self.add(f"{name}{number}", arguments)
            for node in self.nodes:
                node.start()
            self.ready()
        except BaseException:
            self.close()
            raise

    def add(self, name: str, arguments: list[str]) -> Node:
        node = Node(self, self.network.host(name), arguments)
        self._berth("pki", "issue", str(self.pki), name)
        self.nodes.append(node)
        return node

    def ready(self) -> None:
        for node in self.nodes:
            until(f"{node.name} to answer", node.alive)
        until("every node to be ready", lambda: len(self.states("Ready")) == len(self.nodes))

    # === commands ===

    def _berth(self, *arguments: str) -> str:
        done = subprocess.run([BERTH, *arguments], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, f"berth {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def run(self, *arguments: str, through: Node | None = None, code: int | None = 0, stdin: str | None = None) -> str:
        """A client command on the machine of the clients, through the control API of a node that lives. Where it has to
        succeed it is given again while nobody decides: on a busy machine another leader is found at any time."""

        def answered() -> subprocess.CompletedProcess | None:
            alive = [node for node in self.nodes if node.runs()]
            addresses = [f"http://{node.api}" for node in ([through] if through else alive)]
            env = os.environ | {"BERTH_API": ",".join(addresses), "NO_COLOR": "1", "COLUMNS": "160"}
            command = self.clients.command(BERTH, *arguments)
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=env, timeout=PATIENCE * 3)
            nobody = done.returncode != 0 and any(words in done.stderr for words in NOBODY)
            return None if nobody and code == 0 else done

        done = until(f"somebody who decides on berth {' '.join(arguments)}", answered)
        if code is not None:
            said = f"berth {' '.join(arguments)}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
            assert done.returncode == code, f"exit code {done.returncode}, not {code}: {said}"
        self.stderr = done.stderr
        return done.stdout

    def nodes_view(self) -> dict:
        return json.loads(self.run("get", "nodes", "-o", "json", code=None) or '{"items": []}')

    def states(self, state: str) -> list[str]:
        items = self.nodes_view().get("items", [])
        return [item["metadata"]["name"] for item in items if item["status"]["state"] == state]

    def leader(self) -> Node | None:
        items = self.nodes_view().get("items", [])
        names = [item["metadata"]["name"] for item in items if item["status"].get("leader")]
        return next((node for node in self.nodes if node.name in names), None)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def apply(self, *manifests: dict, **options) -> str:
        return self.run("apply", "-f", "-", stdin="\n---\n".join(json.dumps(m) for m in manifests), **options)

    def available(self, *names: str) -> None:
        for name in names:
            self.run("wait", f"deployment/{name}", "--for=Available", f"--timeout={PATIENCE:.0f}s")

    def places(self, name: str) -> list[str]:
        """The nodes where a deployment is ready."""
        # While another leader is found there is no answer: whoever waits for something asks again.
        items = json.loads(self.run("get", "replicas", "-o", "json", code=None) or '{"items": []}')["items"]
        here = [item["status"] for item in items if item["status"]["deployment"] == name]
        return sorted(status["worker"] for status in here if status["state"] == "Ready")

    # === load ===

    def store(self, folder: Path) -> Store:
        self.stores.append(Store(self.clients, self.folder / "store-log", folder))
        return self.stores[-1]

    def load(self, *models: str, through: list[Node] | None = None, callers: int = 6, rate: float = 200.0, seconds: float = 600.0) -> "Load":
        load = Load(self, list(models), through or self.nodes, callers, rate, seconds)
        self.loads.append(load)
        return load

    def close(self) -> None:
        for load in self.loads:
            load.close()
        for node in self.nodes:
            node.close()
        for store in self.stores:
            store.close()
        if hasattr(self, "etcd"):
            self.etcd.close()
        self.network.close()


class Load:
    """Clients under constant load; `end` gives the record of every request."""

    def __init__(self, cluster: Cluster, models: list[str], through: list[Node], callers: int, rate: float, seconds: float):
        self.record = cluster.folder / f"load{len(cluster.loads)}.jsonl"
        script = Path(__file__).with_name("load.py")
        gateways = ",".join(node.http for node in through)
        arguments = [sys.executable, str(script), gateways, ",".join(models), str(seconds), str(self.record), str(callers), str(rate)]
        self.process = subprocess.Popen(cluster.clients.command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def more(self, requests: int) -> None:
        """Returns when so many more requests are over."""
        self.process.stdin.write(f"{requests}\n".encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline(), "the load is over"

    def end(self) -> "Record":
        self.process.communicate(b"\n", timeout=PATIENCE * 2)
        return Record([json.loads(line) for line in self.record.read_text().splitlines()])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)


class Record:
    """Every request of a run: sent, answered, retried, failed."""

    def __init__(self, requests: list[dict]):
        self.requests = requests
        self.failed = [request for request in requests if not request["answered"]]
        self.retried = [request for request in requests if len(request["attempts"]) > 1]

    def __str__(self) -> str:
        answered = len(self.requests) - len(self.failed)
        return f"sent {len(self.requests)}, answered {answered}, retried {len(self.retried)}, failed {len(self.failed)}"

    def refused(self) -> list[dict]:
        """Requests that a gateway did not take or broke off; one that only was slow was left by the caller."""
        errors = lambda request: [attempt["error"] for attempt in request["attempts"] if "error" in attempt]
        return [request for request in self.requests if any("TimeoutError" not in error for error in errors(request))]

    def slowest(self) -> float:
        """Seconds."""
        return max(request["ended"] - request["sent"] for request in self.requests)

    def lost_nothing(self, at_least: int = 50) -> "Record":
        print(self)
        assert len(self.requests) >= at_least, f"too little load to say anything: {self}"
        assert not self.failed, f"{self}; for example {json.dumps(self.failed[:3], indent=1)}"
        return self
