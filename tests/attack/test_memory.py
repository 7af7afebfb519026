"""Requests that are small on the wire and large in memory."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import struct
import threading

import grpc

from harness.examples import manifest
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import PATIENCE, until

MIB = 1 << 20


def resident(berth) -> int:
    """Bytes of memory of the server at its highest."""
    for line in open(f"/proc/{berth.process.pid}/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise AssertionError("no peak in /proc")


def test_compressed_bodies_have_a_sum_and_a_ratio(berth):
    berth.start("--request-memory", "256MiB")
    berth.apply(manifest("iris"))
    berth.available("iris")
    before = resident(berth)
    # 64 KiB on the wire, 60 MiB of zeros once decompressed.
    body = gzip.compress(b'{"inputs":[' + b" " * (60 * MIB) + b"]}")
    statuses = []
    send = lambda: statuses.append(berth.post("/v2/models/iris/infer", body, {"content-encoding": "gzip"})[0])  # noqa: E731
    threads = [threading.Thread(target=send) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {413, 503}, statuses
    assert resident(berth) - before < 600 * MIB
    assert berth.infer("iris")[0] == 200
    assert berth.metric("berth_gateway_request_memory_bytes") == 0


def test_a_body_that_comes_byte_by_byte_keeps_no_more_than_it_has(tmp_path):
    """Of a request that may be sent again the body is kept: 30 KB of it kept 90 MB, since each byte kept the buffer that it was read into."""
    server, port = socket.create_server(("127.0.0.1", 0)), free_port()
    server.settimeout(PATIENCE)
    file = tmp_path / "executor.json"
    upstream = f"127.0.0.1:{server.getsockname()[1]}"
    ports = [{"name": "http", "listen": f"127.0.0.1:{port}", "upstream": upstream, "retry": {"attempts": 2}}]
    file.write_text(json.dumps({"ports": ports, "admin": {"listen": f"127.0.0.1:{free_port()}"}}))
    executor = Process("executor", tmp_path)
    taken: list[socket.socket] = []

    def taking() -> bool:
        """True once the model server has the head of the request; what looks whether it is well is let go."""
        connection, _ = server.accept()
        if connection.recv(4).startswith(b"PUT "):
            taken.append(connection)
        return bool(taken)

    def connect() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            return None

    try:
        executor.spawn(BERTH, "executor", "--config", str(file), "--threads", "1")
        client = until("the executor to start", connect)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"PUT /x HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n")
        until("the request to be sent on", taking)
        head = b"PUT "
        while b"\r\n\r\n" not in head:
            head += taken[0].recv(4096)
        before = resident(executor)
        for _ in range(30_000):
            # It has passed before the next comes, so that each is read by itself.
            client.sendall(b"y")
            assert taken[0].recv(16) == b"y"
        assert resident(executor) - before < 20 * MIB
    finally:
        executor.close()
        server.close()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header without compression."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


def test_watches_have_a_sum(berth):
    """Each holds a page of what there is, or asks the controller twice a second; a connection has room for 128 of them."""
    berth.start()
    host, port = berth.api.split(":")
    watchers = []
    for at in range(20):
        path = (b"/v1/events?watch=true", b"/v1/deployments?watch=true")[at % 2]
        named = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", path), (b":authority", berth.api.encode())]
        head = b"".join(literal(name, value) for name, value in named)
        watcher = socket.create_connection((host, int(port)))
        watcher.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + b"".join(frame(1, 5, stream, head) for stream in range(1, 257, 2)))
        watchers.append(watcher)
    # Each keeps the place that it has got: another one could take it.
    until("their number to be too large", lambda: watched(berth, watchers) == 503)
    assert berth.control("/v1/deployments")[0] == 200 and berth.control("/v1/events")[0] == 200
    for watcher in watchers:
        watcher.close()
    until("their places to be free", lambda: watched(berth, []) == 200)


def watched(berth, watchers: list) -> int:
    """The status of one watch more, which has no end."""
    watchers.append(http.client.HTTPConnection(berth.api, timeout=PATIENCE))
    watchers[-1].request("GET", "/v1/events?watch=true")
    return watchers[-1].getresponse().status


def test_calls_that_are_no_inferences_are_small(berth):
    """Health needs no token: of each such call 64 MiB were kept, and counted nowhere."""
    berth.start("--auth", "tokens", "--request-memory", "256MiB")
    before = resident(berth)
    # A field that nobody knows.
    unknown = lambda size: b"\x7a" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21]) + bytes(size)  # noqa: E731
    with grpc.insecure_channel(berth.http) as channel:
        for path, size in (("/inference.GRPCInferenceService/ServerLive", 30 * MIB), ("/grpc.health.v1.Health/Check", 3 * MIB)):
            assert channel.unary_unary(path)(b"", timeout=PATIENCE) is not None
            calls = [channel.unary_unary(path).future(unknown(size), timeout=PATIENCE) for _ in range(20)]
            for call in calls:
                assert call.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE), (path, call.code())
    assert resident(berth) - before < 150 * MIB
    assert berth.get("/v2/health/live")[0] == 200


def test_unfinished_grpc_requests_are_counted_and_bounded(berth):
    berth.start("--request-memory", "256MiB")
    berth.apply(manifest("iris"))
    berth.available("iris")
    before = resident(berth)
    host, port = berth.http.split(":")
    stranger = socket.create_connection((host, int(port)))
    stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
    head = b"".join(
        literal(name, value)
        for name, value in [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
            (b":authority", berth.http.encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
    )
    # Forty megabytes are announced on each stream; the name of the model is their first field.
    message = b"\0" + struct.pack(">I", 40 * MIB) + b"\x0a\x04iris" + b"\x3a" + b"\x80\x80\x80\x13"
    for stream in range(1, 65, 2):
        stranger.sendall(frame(1, 4, stream, head) + frame(0, 0, stream, message))
    until("the requests to be counted", lambda: berth.metric("berth_gateway_requests_inside") == 32)
    assert berth.infer("iris")[0] == 200
    assert resident(berth) - before < 600 * MIB
    stranger.close()
    until("the requests to be forgotten", lambda: berth.metric("berth_gateway_requests_inside") == 0)
    assert berth.metric("berth_gateway_request_memory_bytes") == 0
