"""`berth registry serve`: every request of Git by every role, and by whoever has none."""

from __future__ import annotations

import base64
import http.client
import socket
import subprocess

import pytest

from harness.processes import BERTH, Process
from harness.ports import free_port
from harness.waiting import PATIENCE, until

REGISTRY, MODEL = "model-registry", "iris-model"

# As docs/registry.md has it.
MAY = {
    "ops": {("read", REGISTRY), ("write", REGISTRY), ("read", MODEL)},
    "ml": {("read", REGISTRY), ("read", MODEL), ("write", MODEL)},
    "controller": {("read", REGISTRY), ("write", REGISTRY), ("read", MODEL)},
    "worker": {("read", REGISTRY), ("read", MODEL)},
}

# How Git asks, for the first time and for the second.
ASKS = {
    "read": [("GET", "/info/refs?service=git-upload-pack"), ("POST", "/git-upload-pack")],
    "write": [("GET", "/info/refs?service=git-receive-pack"), ("POST", "/git-receive-pack")],
}


class Serving(Process):
    def __init__(self, folder):
        super().__init__("registry", folder)
        self.address = f"127.0.0.1:{free_port()}"
        self.tokens = {}
        users = folder / "users.yaml"
        for role in MAY:
            made = subprocess.run([BERTH, "registry", "token", f"of-{role}", "--role", role], capture_output=True, text=True, timeout=PATIENCE)
            assert made.returncode == 0, made.stderr
            users.write_text((users.read_text() if users.exists() else "") + made.stdout)
            self.tokens[role] = made.stderr.split()[-1]
        self.spawn(
            BERTH, "registry", "serve", "--listen", self.address, "--root", str(folder / "served"), "--users", str(users),
            "--create", REGISTRY, "--create", MODEL,
        )  # fmt: skip
        until("it to serve", lambda: self.runs() and f"serving http://{self.address}" in self.logged())

    def ask(self, method: str, path: str, user: str | None = None, token: str = "") -> tuple[int, str | None]:
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        headers = {}
        if user is not None:
            headers["authorization"] = "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()
        if method == "POST":
            headers["content-type"] = f"application/x-{path.rsplit('/', 1)[1]}-request"
        try:
            connection.request(method, path, b"0000" if method == "POST" else None, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.getheader("www-authenticate")
        finally:
            connection.close()


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    server = Serving(tmp_path_factory.mktemp("registry"))
    yield server
    server.close()


@pytest.mark.parametrize("role", MAY)
def test_each_role(serving, role):
    wrong = []
    for repository in (REGISTRY, MODEL):
        for right, asks in ASKS.items():
            for method, path in asks:
                status, _ = serving.ask(method, f"/{repository}.git{path}", f"of-{role}", serving.tokens[role])
                if (status == 200) != ((right, repository) in MAY[role]) or status not in (200, 403):
                    wrong.append((repository, method, path, status))
    assert not wrong, wrong


def test_who_has_no_role(serving):
    good = serving.tokens["ops"]
    strangers = [(None, ""), ("of-ops", ""), ("of-ops", "wrong"), ("nobody", good), ("", good), ("of-ml", good), ("of-ops", good[:-1])]
    paths = [(method, f"/{repository}.git{path}") for repository in (REGISTRY, MODEL, "none") for asks in ASKS.values() for method, path in asks]
    wrong = [path for path in ("/", f"/{REGISTRY}.git/HEAD", f"/{REGISTRY}.git/config", "/users.yaml") if serving.ask("GET", path)[0] != 404]
    for user, token in strangers:
        for method, path in paths:
            status, challenge = serving.ask(method, path, user, token)
            if status != 401 or not (challenge or "").startswith("Basic"):
                wrong.append((user, method, path, status))
    assert not wrong, wrong
    logged = serving.logged()
    assert not any(token in logged for token in serving.tokens.values())


@pytest.mark.parametrize("role", MAY)
def test_nobody_gets_beyond_the_repositories(serving, role):
    """Neither the server's files, nor those of Git that hold settings, nor what lies beside them."""
    for path in ("/../users.yaml", f"/{REGISTRY}.git/../../users.yaml", "/%2e%2e/users.yaml", f"/{REGISTRY}.git/config", f"/{REGISTRY}.git/hooks/pre-receive", "/none.git/info/refs?service=git-upload-pack", f"/{REGISTRY}.git/info/refs"):
        status, _ = serving.ask("GET", path, f"of-{role}", serving.tokens[role])
        assert status in (400, 403, 404), (path, status)
    with socket.create_connection(tuple(serving.address.split(":")), timeout=PATIENCE) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert raw.recv(64).startswith(b"HTTP/1.1 4")


def test_strangers_fill_no_log_and_read_no_paths(tmp_path):
    server = Serving(tmp_path)
    try:
        for _ in range(200):
            assert server.ask("GET", f"/{REGISTRY}.git/info/refs?service=git-upload-pack", "of-ops", "wrong")[0] == 401
            assert server.ask("GET", "/etc/passwd")[0] == 404
            assert server.ask("DELETE", f"/{REGISTRY}.git/info/refs")[0] == 405
        # Whoever is known is told of each time.
        for _ in range(5):
            assert server.ask("POST", f"/{REGISTRY}.git/git-receive-pack", "of-worker", server.tokens["worker"])[0] == 403
        lines = server.logged_lines()
        assert len([line for line in lines if line.endswith(" 403")]) == 5, lines
        for kind in ((" 401",), (" 404", " 405")):
            told = [line for line in lines if any(status in line for status in kind)]
            assert 1 <= len(told) <= 2, (kind, told)
        (tmp_path / "users.yaml").write_text("none: [")
        host, port = server.address.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
        connection.request("GET", f"/{REGISTRY}.git/info/refs?service=git-upload-pack", headers={"authorization": "Basic " + base64.b64encode(b"a:b").decode()})
        answer = connection.getresponse()
        said = answer.read().decode()
        connection.close()
        assert answer.status == 500 and str(tmp_path) not in said and "users.yaml" not in said, said
        until("the log to say why", lambda: "users.yaml" in server.logged())
    finally:
        server.close()
