"""Requests that are held back, and connections that only say that they live: each ends, and together they take little."""

from __future__ import annotations

import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_memory import frame, literal, resident

from harness.examples import manifest
from harness.waiting import PATIENCE, until

MIB = 1 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
SOURCE = ["--source", "git=git+https://127.0.0.1:1/x.git", "--source-interval", "1h"]


def connected(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def held_back(address: str, path: str, sent: bytes) -> socket.socket:
    """A request of which one chunk has been sent, and the rest never comes."""
    one = connected(address)
    head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    try:
        one.sendall(head.encode() + f"{len(sent):x}\r\n".encode() + sent + b"\r\n")
    except OSError:
        pass  # it was refused before it had been sent
    return one


def status(one: socket.socket) -> int:
    """The status of the answer; 0 where the connection was cut before it could be read."""
    try:
        words = one.recv(4_096).split()
    except TimeoutError:
        raise AssertionError("it was not ended") from None
    except OSError:
        return 0
    return int(words[1]) if words else 0


def exactly(one: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer where the connection ends."""
    read = b""
    while len(read) < count and (piece := one.recv(count - len(read))):
        read += piece
    return read


def frames(one: socket.socket):
    """The frames of a connection until its end: kind, flags, stream. Pings are answered, and nothing else is said."""
    while len(head := exactly(one, 9)) == 9:
        payload = exactly(one, int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
        if kind in (PING, SETTINGS) and not flags & 1:
            one.sendall(frame(kind, 1, 0, payload if kind == PING else b""))
        yield kind, flags, stream


def test_webhooks_that_are_held_back_end_and_take_little(berth):
    """Anybody may send them, and nobody has to prove anything before the body is there."""
    berth.start(*SOURCE)
    before = resident(berth)
    path = "/v1/sources/git/webhook"
    unknown = held_back(berth.api, "/v1/sources/other/webhook", b"{" * 1_024)
    waiting = [held_back(berth.api, path, b"{" * (64 << 10)) for _ in range(200)]
    # They take all places of this address, and nothing else.
    until("the places to be taken", lambda: berth.control(path, "POST", b"{}")[0] == 503)
    assert berth.control("/v1/deployments")[0] == 200
    assert berth.control("/v1/tokens", "POST", b"[")[0] == 400
    assert status(unknown) == 404, "nothing is read for a source that there is not"
    answers = [status(one) for one in waiting]
    assert set(answers) == {400, 503} and answers.count(400) <= 16, answers
    until("the places to be free", lambda: berth.control(path, "POST", b"{}")[0] == 202)
    with ThreadPoolExecutor(16) as pool:
        large = list(pool.map(lambda _: status(held_back(berth.api, path, b"{" * (8 * MIB))), range(32)))
    assert set(large) <= {413, 503, 0}, large
    assert resident(berth) - before < 128 * MIB


@pytest.mark.parametrize("path", ["/v1/tokens", "/v1/join-tokens", "/v1/revocations"])
def test_bodies_of_a_few_lines_are_no_longer(berth, path):
    berth.start()
    assert berth.control(path, "POST", b" " * (65 << 10))[0] == 413
    assert berth.control(path, "POST", b" " * (63 << 10))[0] == 400


def test_management_calls_that_are_held_back_end(berth):
    """ModelMesh's API, on both ports: a call that waits for its message waits for no ever."""
    berth.start()
    waiting = []
    for address in (berth.http, berth.api):
        one = connected(address)
        named = [(":method", "POST"), (":scheme", "http"), (":path", "/mmesh.ModelMesh/registerModel"), (":authority", address)]
        named += [("content-type", "application/grpc"), ("te", "trailers")]
        head = b"".join(literal(name.encode(), value.encode()) for name, value in named)
        # A message of 512 KiB is announced, and one of its bytes comes.
        begun = b"\0" + struct.pack(">I", 512 << 10) + b"\x0a"
        streams = range(1, 129, 2)
        one.sendall(PREFACE + b"".join(frame(HEADERS, 4, stream, head) + frame(DATA, 0, stream, begun) for stream in streams))
        waiting.append((one, set(streams)))
    for one, streams in waiting:
        for kind, flags, stream in frames(one):
            if kind == RESET or (kind in (HEADERS, DATA) and flags & 1):
                streams.discard(stream)
            if not streams:
                break
        assert not streams, f"{len(streams)} calls did not end"
    assert berth.control("/v1/deployments")[0] == 200
    assert berth.metric("berth_gateway_requests_inside") == 0


def test_who_only_answers_pings_is_closed(berth):
    """Without a request, an answer to a ping says only that somebody holds the connection."""
    berth.start()
    strangers = [connected(address) for address in (berth.http, berth.api) for _ in range(4)]
    for one in strangers:
        one.sendall(PREFACE)
    for one in strangers:
        try:
            assert not [kind for kind, _, _ in frames(one) if kind in (HEADERS, DATA)]
        except TimeoutError:
            raise AssertionError("it was not closed") from None
        except OSError:
            pass  # it was reset


def unread(berth, rows: int, streams: range) -> socket.socket:
    """Inferences over HTTP/2 by a client that has room for one byte of each answer."""
    values = struct.pack("<4f", 5.1, 3.5, 1.4, 0.2) * rows
    tensor = {"name": "X", "datatype": "FP32", "shape": [rows, 4], "parameters": {"binary_data_size": len(values)}}
    document = json.dumps({"inputs": [tensor]}).encode()
    named = [(":method", "POST"), (":scheme", "http"), (":path", "/v2/models/iris/infer"), (":authority", berth.http)]
    named += [("content-type", "application/json"), ("inference-header-content-length", str(len(document)))]
    head = b"".join(literal(name.encode(), value.encode()) for name, value in named)
    body = document + values
    parts = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    one = connected(berth.http)
    one.sendall(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1)))
    # More may be sent on the connection once the server has said so.
    assert WINDOW_UPDATE in (kind for kind, _, _ in frames(one))
    for stream in streams:
        data = [frame(DATA, part is parts[-1], stream, part) for part in parts]
        one.sendall(frame(HEADERS, 4, stream, head) + b"".join(data))
    return one


def test_answers_that_nobody_reads_over_http2_end(berth):
    """The window of an answer stays shut, and the connection says that it lives: memory of requests would be a stranger's for good."""
    berth.start("--request-memory", "256MiB")
    berth.apply(manifest("iris"))
    berth.available("iris")
    large, small = unread(berth, 3_600, range(1, 33, 2)), unread(berth, 1_000, range(1, 3, 2))
    until("the answers to be held", lambda: berth.metric("berth_gateway_request_memory_bytes") > MIB // 2)
    streams = set(range(1, 33, 2))
    for kind, _, stream in frames(large):
        if kind == RESET:
            streams.discard(stream)
        if not streams:
            break
    assert not streams, f"{len(streams)} answers did not end"
    large.sendall(frame(PING, 0, 0, b"12345678"))
    assert any(kind == PING and flags & 1 for kind, flags, _ in frames(large)), "the connection serves on"
    # Of the other answer HTTP/2 has all: its stream cannot be reset any more. Its connection takes no more streams, and ends after a
    # while, though it says that it lives.
    assert GOAWAY in [kind for kind, _, _ in frames(small)]
    until("all to be told", lambda: berth.metric("berth_gateway_answers_unread_total") == 17)
    until("the memory to be free", lambda: berth.metric("berth_gateway_request_memory_bytes") == 0)
    large.close()
    small.close()


def test_large_documents_are_parsed_beside_the_connections(berth):
    """What takes a while to parse keeps no other request from its answer."""
    berth.start("--request-memory", "4GiB")
    berth.apply(manifest("iris"))
    berth.available("iris")
    numbers = 12_000_000
    data = b"0.25," * (numbers - 1) + b"0.25"
    # The model has no such input, which is known when all of it was read.
    body = b'{"inputs":[{"name":"none","datatype":"FP32","shape":[%d,4],"data":[%s]}]}' % (numbers // 4, data)
    head = f"POST /v2/models/iris/infer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    def overtaken() -> bool:
        """True if others were answered while the documents, which had been sent before, were not."""
        large = [connected(berth.http) for _ in range(2)]
        for one in large:
            one.sendall(head + body)
        for _ in range(8):
            assert berth.get("/v2/health/live")[0] == 200
        unanswered = []
        for one in large:
            one.setblocking(False)
            try:
                one.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                unanswered.append(one)
            one.settimeout(PATIENCE)
        assert {status(one) for one in large} == {400}
        return bool(unanswered)

    # A machine that did something else meanwhile may have parsed them first.
    assert any(overtaken() for _ in range(5)), "the documents were answered first"
