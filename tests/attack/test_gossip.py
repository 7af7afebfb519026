"""Datagrams of gossip that somebody on the way records, and sends again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time

import pytest

from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import PATIENCE, until

# Other nodes reach the first one here, which is the way that is listened to; it is on 127.0.0.1 itself.
ON_THE_WAY = "127.0.0.2"


class Recorder:
    """Passes every datagram on, and keeps a copy."""

    def __init__(self, port: int):
        self.to, self.kept, self.open = ("127.0.0.1", port), [], True
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((ON_THE_WAY, port))
        threading.Thread(target=self.pass_on, daemon=True).start()

    def pass_on(self) -> None:
        while self.open:
            datagram = self.socket.recv(65536)
            self.kept.append(datagram)
            self.socket.sendto(datagram, self.to)

    def play(self, datagrams: list[bytes]) -> None:
        """Slowly: what does not fit into a socket's buffer is lost."""
        for at, datagram in enumerate(datagrams):
            self.socket.sendto(datagram, self.to)
            if at % 20 == 0:
                time.sleep(0.01)

    def close(self) -> None:
        self.open = False
        self.socket.close()


class Pair:
    """Two nodes over an etcd of one member. What the first one hears of the second passes the recorder."""

    def __init__(self, folder):
        self.folder, self.pki = folder, folder / "pki"
        self.etcd, self.first, self.second = (Process(name, folder) for name in ("etcd", "a", "b"))
        self.store, self.api = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.gossip = free_port()
        self.recorder = Recorder(self.gossip)

    def start(self) -> Pair:
        other = f"http://127.0.0.1:{free_port()}"
        self.etcd.spawn(
            "etcd", "--name", "e", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", f"http://{self.store}",
            "--advertise-client-urls", f"http://{self.store}", "--listen-peer-urls", other, "--initial-advertise-peer-urls", other,
            "--initial-cluster", f"e={other}", "--unsafe-no-fsync", "--log-level", "warn",
        )  # fmt: skip
        for words in (("init", self.pki), ("issue", self.pki, "a"), ("issue", self.pki, "b")):
            subprocess.run([BERTH, "pki", *map(str, words)], check=True, capture_output=True, timeout=PATIENCE)
        self.begin(
            self.first, "--api", self.api, "--store", f"etcd://{self.store}", "--peer", f"0.0.0.0:{free_port()}",
            "--gossip", f"127.0.0.1:{self.gossip}", "--advertise", ON_THE_WAY,
        )  # fmt: skip
        # What comes before it listens is lost, and new when it is played.
        until("the first one", lambda: self.states() == {"a": "Ready"})
        self.begin_second()
        until("both nodes", lambda: self.states() == {"a": "Ready", "b": "Ready"})
        return self

    def begin(self, node: Process, *arguments: str) -> None:
        command = [BERTH, "node", "--name", node.name, "--pki", str(self.pki / node.name), "--data", str(self.folder / f"{node.name}-data")]
        node.spawn(*command, "--http", f"127.0.0.1:{free_port()}", "--memory", "1GiB", "--log-format", "json", *arguments)

    def begin_second(self) -> None:
        self.begin(
            self.second, "--roles", "worker,gateway", "--api", f"127.0.0.1:{free_port()}", "--peer", f"127.0.0.1:{free_port()}",
            "--gossip", f"127.0.0.1:{free_port()}", "--join", f"{ON_THE_WAY}:{self.gossip}",
        )  # fmt: skip

    def berth(self, *words: str) -> str:
        env = os.environ | {"BERTH_API": f"http://{self.api}"}
        return subprocess.run([BERTH, *words], capture_output=True, text=True, timeout=PATIENCE, env=env).stdout

    def states(self) -> dict[str, str]:
        listed = self.berth("get", "nodes", "-o", "json")
        return {node["metadata"]["name"]: node["status"]["state"] for node in json.loads(listed)["items"]} if listed else {}

    def heard_again(self) -> int:
        return self.dropped("again")

    def dropped(self, *reasons: str) -> int:
        url = f"http://{self.api}/metrics"
        text = subprocess.run(["curl", "-s", url], capture_output=True, text=True, timeout=PATIENCE).stdout
        names = tuple(f'berth_gossip_dropped_total{{reason="{reason}"}}' for reason in reasons)
        return sum(int(line.split()[-1]) for line in text.splitlines() if line.startswith(names))

    def changes(self) -> list[str]:
        """What the first one took the second for, one after the other."""
        lines = [json.loads(line)["context"] for line in self.first.logged_lines() if '"member_changed"' in line]
        return [line["to"] for line in lines if line["member"] == "b"]

    def close(self) -> None:
        for process in (self.second, self.first, self.etcd):
            process.close()
        self.recorder.close()


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path)
    try:
        yield made.start()
    finally:
        made.close()


def test_what_was_recorded_is_heard_once(pair):
    """The goodbye of a node is among it: whoever plays that again could have a node that lives taken for gone."""
    assert pair.second.stop() == 0
    until("the first one to know that the second left", lambda: pair.changes()[-1:] == ["Left"])
    recorded = list(pair.recorder.kept)
    assert len(recorded) > 5
    pair.begin_second()
    until("the second one to be back", lambda: pair.changes()[-1] == "Alive" and pair.states().get("b") == "Ready")
    recorded += [datagram for datagram in pair.recorder.kept if datagram not in recorded]
    seen, before = len(pair.changes()), pair.heard_again()
    for _ in range(3):
        pair.recorder.play(recorded)
    until("all of it to be counted", lambda: pair.heard_again() - before >= 3 * len(recorded))
    # One that is suspected is taken for dead after some seconds.
    time.sleep(6)
    assert pair.changes()[seen:] == [], "nothing came of it"
    assert pair.states() == {"a": "Ready", "b": "Ready"}
    assert pair.heard_again() - before == 3 * len(recorded), "what is new is not taken for old"


def test_what_was_changed_on_the_way_is_not_opened(pair):
    recorded = list(pair.recorder.kept)
    changed = [datagram[:at] + bytes([datagram[at] ^ 1]) + datagram[at + 1 :] for datagram in recorded[:10] for at in range(0, len(datagram), 7)]
    sent = changed + [datagram[: len(datagram) // 2] for datagram in recorded] + [b"x", bytes(1400)]
    seen, before, refused = len(pair.changes()), pair.heard_again(), pair.dropped("form", "key", "forged")
    pair.recorder.play(sent)
    until("all of it to be refused", lambda: pair.dropped("form", "key", "forged") - refused >= len(sent))
    assert pair.changes()[seen:] == [] and pair.states() == {"a": "Ready", "b": "Ready"}
    assert pair.heard_again() == before, "their numbers are not looked at before they are opened"
    assert pair.first.logged().count("gossip_foreign") <= 1
