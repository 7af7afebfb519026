"""Connections that say nothing, or nearly nothing."""

from __future__ import annotations

import json
import resource
import socket
import urllib.request

import pytest

from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def connected(address: str, count: int, said: bytes = b"", source: str = "127.0.0.2") -> list[socket.socket]:
    """Sockets of strangers from another address than the tests', who said `said`, as far as they were let in."""
    host, port = address.split(":")
    sockets = []
    for _ in range(count):
        try:
            stranger = socket.create_connection((host, int(port)), timeout=5, source_address=(source, 0))
            stranger.sendall(said)
        except OSError:
            break
        sockets.append(stranger)
    return sockets


def closed(stranger: socket.socket) -> bool:
    stranger.settimeout(0.01)
    try:
        while True:
            if not stranger.recv(65_536):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.fixture
def files():
    """Enough descriptors for this side."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_asks_nothing_is_closed(berth):
    berth.start()
    silent = [
        (address, said, stranger)
        for address in (berth.http, berth.api)
        for said in (b"", b"P", PREFACE, PREFACE + SETTINGS, b"GET / HTTP/1.1\r\nhost:")
        for stranger in connected(address, 4, said)
    ]
    assert len(silent) == 40

    def left() -> list[tuple[str, bytes]]:
        return [(address, said) for address, said, stranger in silent if not closed(stranger)]

    until(lambda: f"the end of {left()}", lambda: not left())


def test_who_asks_nothing_of_the_port_for_modelmesh_metrics_is_closed(berth):
    port = free_port()
    berth.start(f"--modelmesh-metrics=prometheus:port={port};scheme=http")
    silent = [stranger for said in (b"", b"P", PREFACE, PREFACE + SETTINGS) for stranger in connected(f"127.0.0.1:{port}", 2, said)]
    assert len(silent) == 8
    until("the silent connections to be closed", lambda: all(closed(stranger) for stranger in silent))


def test_silent_strangers_do_not_take_the_api(berth, files):
    berth.start()
    strangers = connected(berth.api, 1_100)
    assert berth.control("/healthz")[0] == 200, "there is room for others"
    until("the silent connections to be closed", lambda: all(closed(stranger) for stranger in strangers))
    refused = [line for line in berth.logged_lines() if "connection_refused" in line]
    assert len(refused) <= 2, refused


def test_strangers_on_the_inference_port_leave_files_for_the_api(berth, files, monkeypatch):
    spawn = berth.command
    monkeypatch.setattr(berth, "command", lambda *command: ["prlimit", "--nofile=1024:1024", *spawn(*command)])
    berth.start()
    strangers = connected(berth.http, 1_200)
    assert berth.control("/healthz")[0] == 200
    assert berth.get("/v2/health/live")[0] == 200
    assert not [line for line in berth.logged_lines() if "accept_failed" in line]
    del strangers


def test_strangers_on_an_executor_leave_files_for_its_admin_port(tmp_path, files):
    port, admin, model = free_port(), free_port(), free_port()
    file = tmp_path / "executor.json"
    ports = [{"name": "http", "listen": f"127.0.0.1:{port}", "upstream": model}]
    file.write_text(json.dumps({"ports": ports, "admin": {"listen": f"127.0.0.1:{admin}"}}))
    executor = Process("executor", tmp_path)

    def alive() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/live", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    try:
        executor.spawn("prlimit", "--nofile=1024:1024", BERTH, "executor", "--config", str(file))
        until(lambda: f"the executor does not start: {executor.logged()}", alive)
        strangers = [connected(f"127.0.0.1:{port}", 400, source=f"127.0.0.{last}") for last in range(2, 6)]
        assert alive(), executor.logged()
        # Of one address no more than a half is held; the connections of others wait in the kernel.
        until("what an address has too many to be closed", lambda: closed(strangers[0][-1]))
        assert not [line for line in executor.logged_lines() if "accept_failed" in line]
    finally:
        executor.close()
