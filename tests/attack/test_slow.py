"""Clients that send slowly, read slowly, say nothing, or are gone: memory is bounded, and others are served."""

from __future__ import annotations

import json
import resource
import socket
import struct
import threading

import pytest

from harness.examples import IRIS, manifest
from harness.waiting import until

MIB = 1 << 20
BODY = json.dumps(IRIS).encode()


@pytest.fixture
def files():
    """As many descriptors for this side as there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def iris(berth):
    def start(*arguments: str):
        berth.start(*arguments)
        berth.apply(manifest("iris"))
        berth.available("iris")
        return berth

    return start


def connected(address: str, source: str = "127.0.0.1") -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0))


def request(length: int = len(BODY), **headers) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST /v2/models/iris/infer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{more}\r\n".encode()


def ended(one: socket.socket) -> bool:
    """Reads to the end that the server makes."""
    try:
        while one.recv(4_096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def resident(berth) -> int:
    for line in open(f"/proc/{berth.process.pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    raise AssertionError("no size in /proc")


def serves(berth) -> None:
    """Others are answered: at both ports, without waiting for anybody."""
    assert berth.control("/healthz")[0] == 200
    assert berth.control("/v1/deployments")[0] == 200
    assert berth.infer("iris")[0] == 200


def test_slow_senders_end_with_their_deadline(iris):
    """A byte now and then is no pause, and no reason to wait for ever."""
    berth = iris()
    senders = [connected(berth.http) for _ in range(50)]
    for sender in senders:
        sender.sendall(request(berth_timeout_ms=3_000) + BODY[:1])
    until("the requests to be inside", lambda: berth.metric("berth_gateway_requests_inside") == 50)
    serves(berth)
    over = threading.Event()

    def trickle() -> None:
        for at in range(1, len(BODY) - 1):
            for sender in senders:
                try:
                    sender.sendall(BODY[at : at + 1])
                except OSError:
                    pass
            if over.wait(0.2):
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        until("their end", lambda: berth.metric("berth_gateway_requests_inside") == 0)
    finally:
        over.set()
        thread.join()
    assert b" 504 " in senders[0].recv(4_096)
    serves(berth)


def test_answers_that_nobody_reads_count_and_stop_what_comes_next(iris):
    berth = iris("--request-memory", "256MiB")
    rows = 100_000
    # Half a megabyte asks for three: a label and three probabilities for each row.
    values = struct.pack("<4f", 5.1, 3.5, 1.4, 0.2) * rows
    head = json.dumps(
        {"inputs": [{"name": "X", "datatype": "FP32", "shape": [rows, 4], "parameters": {"binary_data_size": len(values)}}]}
    ).encode()
    message = request(len(head) + len(values), inference_header_content_length=len(head)) + head + values
    before = resident(berth)
    readers = []
    for _ in range(150):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        host, port = berth.http.split(":")
        reader.connect((host, int(port)))
        reader.settimeout(30)
        try:
            reader.sendall(message)
        except OSError:
            pass  # it was refused before it had been sent
        readers.append(reader)
    until("the memory to be used up", lambda: berth.metric("berth_gateway_shed_total", reason="no_memory") > 0)
    assert berth.metric("berth_gateway_request_memory_bytes") > 100 * MIB
    serves(berth)
    assert resident(berth) - before < 1_200 * MIB
    for reader in readers:
        reader.close()
    until("the memory to be free", lambda: berth.metric("berth_gateway_request_memory_bytes") == 0)


@pytest.mark.parametrize("said", [b"POST /v2/models/iris/infer HT", request(100) + b"{", b"\x16\x03\x01\x02\x00\x01"])
def test_half_open_connections_end(iris, said):
    """The other side says no more, and may be gone."""
    berth = iris()
    gone = [connected(address) for address in (berth.http, berth.api) for _ in range(8)]
    for one in gone:
        one.sendall(said)
        one.shutdown(socket.SHUT_WR)
    until("the connections to be forgotten", lambda: berth.metric("berth_gateway_connections") == 0)
    for one in gone:
        assert ended(one)
    assert berth.metric("berth_gateway_requests_inside") == 0
    serves(berth)


def test_who_has_asked_and_says_no_more_costs_little(iris, files):
    """As many kept connections as this machine allows; beyond the bound they wait in the kernel, and the API does not."""
    room = files // 2 - 200
    berth = iris("--max-connections", "100000")
    before = resident(berth)
    idle = []
    for number in range(room):
        one = connected(berth.http, f"127.0.0.{2 + number % 50}")
        one.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b" 200 " in one.recv(4_096)
        idle.append(one)
    assert berth.metric("berth_gateway_connections") >= room * 0.9
    each = (resident(berth) - before) / room
    assert each < 64 << 10, f"{each:.0f} bytes for each of {room}"
    serves(berth)
    # All that may be are there: more wait in the kernel, and nothing is short for the API.
    waiting = []
    for number in range(files - room - 300):
        try:
            one = connected(berth.http, f"127.0.1.{2 + number % 50}")
        except OSError:
            break
        waiting.append(one)
        if len(waiting) == 600:
            break
    for _ in range(20):
        assert berth.control("/v1/deployments")[0] == 200
    for one in idle + waiting:
        one.close()
    until("the connections to be forgotten", lambda: berth.metric("berth_gateway_connections") == 0)
    serves(berth)
