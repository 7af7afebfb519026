"""The network of a model: the hosts that are declared for it, through the worker's proxy, and nothing else."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.waiting import until
from spy import Spy


@pytest.fixture
def site():
    """A server on loopback that says hello, and counts."""

    class Hello(BaseHTTPRequestHandler):
        def do_GET(self):
            body = b"hello " + self.path.encode()
            self.server.paths.append(self.path)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    server.paths = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def spy(tmp_path):
    server = Spy(tmp_path)
    yield server
    server.close()


def declare(spy: Spy, *hosts: str) -> None:
    card = spy.code / "model-card.yaml"
    card.write_text(card.read_text() + f"network: {{hosts: {json.dumps(hosts)}}}\n")


FORWARD = """
import socket
line = socket.create_connection(("127.0.0.1", 3128), 20)
line.sendall(b"GET http://{host}/plain HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n")
said = b""
while part := line.recv(65536): said += part
answer = said.decode()
"""

TUNNEL = """
import socket
line = socket.create_connection(("127.0.0.1", 3128), 20)
line.sendall(b"CONNECT {target} HTTP/1.1\\r\\n\\r\\n")
first = line.recv(65536).decode()
if first.startswith("HTTP/1.1 200"):
    line.sendall(b"GET /tunnel HTTP/1.0\\r\\n\\r\\n")
    said = b""
    while part := line.recv(65536): said += part
    first = said.decode()
answer = first
"""

SOCKS = """
import socket, struct
line = socket.create_connection(("127.0.0.1", 3128), 20)
line.sendall(b"\\x05\\x01\\x00"); line.recv(2)
line.sendall(b"\\x05\\x01\\x00\\x01" + socket.inet_aton("{host}") + struct.pack(">H", {port}))
answer = line.recv(10)[1]
if answer == 0:
    line.sendall(b"GET /socks HTTP/1.0\\r\\n\\r\\n")
    said = b""
    while part := line.recv(65536): said += part
    answer = said.decode()
"""


def test_a_declared_host_is_reached_in_each_way_and_no_other(spy, site):
    host = f"127.0.0.1:{site.server_port}"
    declare(spy, host, "169.254.169.254:80", spy.api, spy.http, "localhost:1")
    spy.serve()
    assert "hello /plain" in spy.answer(FORWARD.replace("{host}", host))
    assert "hello /tunnel" in spy.answer(TUNNEL.replace("{target}", host))
    assert "hello /socks" in spy.answer(SOCKS.format(host="127.0.0.1", port=site.server_port))
    assert site.paths == ["/plain", "/tunnel", "/socks"]
    refused = {
        f"127.0.0.1:{site.server_port + 1}": "it is not declared",
        "example.com:80": "it is not declared",
        # Declared, and not opened by any declaration.
        spy.api: "ports of Berth",
        spy.http: "ports of Berth",
        "169.254.169.254:80": "do not get to this address",
        # A name is no word for a private address.
        "localhost:1": "declared as an address",
    }
    for target, why in refused.items():
        said = spy.answer(TUNNEL.replace("{target}", target))
        assert said.startswith("HTTP/1.1 403") and why in said, (target, said)
    assert spy.answer(SOCKS.format(host="10.0.0.1", port=80)) == 2
    assert site.paths == ["/plain", "/tunnel", "/socks"]
    metrics = spy.metrics()
    outcomes = {key.split('outcome="')[1].split('"')[0]: value for key, value in metrics.items() if key.startswith("worker_model_connections_total")}
    assert outcomes["connected"] == 3 and outcomes["undeclared"] == 3 and outcomes["own_port"] == 2, outcomes


def test_without_a_declaration_there_is_no_proxy(spy, site):
    spy.serve()
    answer = spy.ask("import socket; socket.create_connection(('127.0.0.1', 3128), 2); answer = 'reached'")
    assert "error" in answer
    assert spy.answer("import os; answer = [name for name in os.environ if 'proxy' in name.lower()]") == []


def test_a_network_has_no_way_around_the_proxy(spy, site):
    declare(spy, f"127.0.0.1:{site.server_port}")
    spy.serve()
    for host, port in (("127.0.0.1", site.server_port), tuple(spy.api.split(":"))):
        found = spy.ask(f"import socket; socket.create_connection(({host!r}, {port}), 2); answer = 'reached'")
        assert "answer" not in found, found
    assert not site.paths


def test_connections_are_bounded_and_the_worker_answers_meanwhile(spy, site):
    host = f"127.0.0.1:{site.server_port}"
    declare(spy, host)
    spy.serve()
    # More connections than there are places, that say nothing.
    opened = spy.answer("import socket\nlines = [socket.create_connection(('127.0.0.1', 3128), 5) for _ in range(100)]\nimport builtins; builtins.kept = lines\nanswer = len(lines)")
    assert opened == 100
    until("the rest to be refused", lambda: spy.metric("worker_model_connections_total", outcome="busy") >= 30)
    assert spy.control("/healthz")[0] == 200 and spy.get("/v2/health/live")[0] == 200
    spy.answer("import builtins\nfor line in builtins.kept: line.close()\nanswer = 1")
    until("there is room again", lambda: "hello /again" in str(spy.ask(TUNNEL.replace("{target}", host).replace("/tunnel", "/again"))))
    # What is no request costs its connection.
    assert "400" in spy.answer("import socket\nline = socket.create_connection(('127.0.0.1', 3128), 20)\nline.sendall(b'x' * 20000 + b'\\r\\n\\r\\n')\nanswer = line.recv(100).decode()")


def test_the_operators_word_is_the_most(spy, site):
    declare(spy, f"127.0.0.1:{site.server_port}")
    command = ("--sandbox-network", "none")
    with pytest.raises(AssertionError):
        spy.serve(*command)
    assert "allows no network" in json.dumps(spy.status("spy"))
