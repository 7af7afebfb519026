"""Code of a function that means harm: what it sees, what it reaches, what it takes."""

from __future__ import annotations

import json
import os

import pytest

from harness.functions import ask
from harness.http_server import Answer, HttpServer

CANARY = "canary-51c0ffee77"

CODE = """\
def predict(body):
    names = {}
    try:
        exec(body["run"], names)
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"answer": names.get("answer")}
"""

FETCH = "import urllib.request; answer = urllib.request.urlopen({url!r}, timeout=10).read().decode()"

FORKS = """
import os, time
made = []
try:
    while len(made) < 3000:
        process = os.fork()
        if process == 0:
            time.sleep(60)
            os._exit(0)
        made.append(process)
except OSError:
    pass
answer = len(made)
for process in made:
    os.kill(process, 9)
    os.waitpid(process, 0)
"""

FILLS = """
for number in range(100):
    with open(%r + f"/{number}", "wb") as file:
        file.write(bytes(16 << 20))
answer = "there was room"
"""


class Site(HttpServer):
    def answer(self, request):
        return Answer(200, body=b"here")


@pytest.fixture
def site():
    server = Site()
    yield server
    server.close()


def declare(berth, folder, *hosts: str, **limits: int) -> None:
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "handler.py").write_text(CODE)
    spec = {"type": "python", "sourceUri": f"file:{code}", "entrypoint": "handler.predict", "target": {"platform": "local"}}
    network = {"network": {"hosts": list(hosts)}} if hosts else {}
    spec |= network | {"limits": {"timeoutSeconds": 120} | limits}
    berth.apply({"apiVersion": "berth.dev/v1", "kind": "Function", "metadata": {"name": "spy"}, "spec": spec})
    berth.run("rollout", "status", "function/spy")


def run(berth, code: str) -> dict:
    status, answer = ask(berth, "spy", {"run": code})
    assert status == 200, answer
    return answer


def test_a_function_sees_nothing_of_its_server(berth, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(CANARY)
    berth.start(env={"AWS_SECRET_ACCESS_KEY": CANARY})
    declare(berth, tmp_path)
    assert run(berth, "answer = open(__import__('os').environ['HOME'] + '/x', 'w').write('1')") == {"answer": 1}, "its own folder is its own"
    for path in (secret, berth.data / "state.redb", berth.data, "/etc/shadow", "/root", f"/proc/{berth.process.pid}/environ"):
        found = run(berth, f"p = {str(path)!r}; import os; answer = os.listdir(p) if os.path.isdir(p) else open(p, 'rb').read(9).hex()")
        assert "error" in found or "state.redb" not in str(found["answer"]), (path, found)
        assert CANARY not in json.dumps(found)
    everyone = "import glob; answer = [open(p, 'rb').read().decode() for p in glob.glob('/proc/[0-9]*/cmdline')]"
    assert not [line for line in run(berth, everyone)["answer"] if "berth\0up" in line]
    # The code can be read, and not be changed.
    assert "error" in run(berth, "answer = open('handler.py', 'a').write('x')")


def fields_of(berth) -> dict[str, str]:
    status = run(berth, "answer = open('/proc/self/status').read()")["answer"]
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)


def test_a_function_has_no_rights(berth, tmp_path):
    berth.start()
    declare(berth, tmp_path)
    fields = fields_of(berth)
    assert (fields["NoNewPrivs"], fields["Seccomp"], int(fields["CapEff"], 16)) == ("1", "2", 0)
    if os.geteuid() == 0:
        assert int(fields["Uid"].split()[0]) != 0
    made = run(berth, FORKS)["answer"]
    assert 0 < made < 1_100, "a fork bomb ends"
    assert run(berth, "answer = 1") == {"answer": 1}


def test_a_function_has_its_own_user_though_root_keeps_files_to_itself(berth, tmp_path):
    mask = os.umask(0o077)
    try:
        berth.start()
    finally:
        os.umask(mask)
    declare(berth, tmp_path)
    assert os.geteuid() != 0 or int(fields_of(berth)["Uid"].split()[0]) != 0
    assert "function_user_shared" not in berth.logged()


def test_a_function_does_not_fill_the_disk(berth, tmp_path):
    berth.start()
    declare(berth, tmp_path, memoryMiB=256)
    home = run(berth, "import os; answer = os.environ['HOME']")["answer"]
    assert not os.path.exists(home), "it is in memory"
    for folder in (home, "/tmp"):
        status, answer = ask(berth, "spy", {"run": FILLS % folder})
        # The folder is full, or the memory of the process is.
        assert status == 502 or "No space left" in answer["error"], answer
    assert run(berth, "answer = 1") == {"answer": 1}


def test_a_function_reaches_the_hosts_of_its_spec(berth, tmp_path, site):
    berth.start()
    declare(berth, tmp_path)
    for address in (berth.api, berth.http, f"127.0.0.1:{site.port}"):
        host, port = address.split(":")
        found = run(berth, f"import socket; socket.create_connection(({host!r}, {port}), 2); answer = 'reached'")
        assert "answer" not in found, found
    # The gateway, too, where functions ask models.
    declare(berth, tmp_path, f"127.0.0.1:{site.port}", berth.http, berth.api)
    assert run(berth, FETCH.format(url=site.url)) == {"answer": "here"}
    assert "answer" in run(berth, FETCH.format(url=f"http://{berth.http}/v2/health/live"))
    for refused in (f"http://{berth.api}/v1/deployments", "http://127.0.0.1:1/"):
        assert "403" in run(berth, FETCH.format(url=refused)).get("error", ""), refused
    assert "add it to spec.network.hosts" in berth.run("logs", "function/spy")
    counted = [berth.metric("berth_function_connections_total", function="spy", outcome=outcome) for outcome in ("connected", "undeclared", "own_port")]
    assert counted == [2, 1, 1], berth.metrics()


def test_the_operator_closes_or_opens_the_network(berth, tmp_path, site):
    berth.start("--function-network", "machine")
    declare(berth, tmp_path)
    assert run(berth, FETCH.format(url=site.url)) == {"answer": "here"}
    berth.stop()
    berth.start("--function-network", "none")
    assert "error" in run(berth, FETCH.format(url=site.url))


def test_a_function_does_not_choose_the_socket_that_the_gateway_asks(berth, tmp_path):
    berth.start()
    declare(berth, tmp_path)
    home = run(berth, "import os; answer = os.environ['HOME']")["answer"]
    assert run(berth, f"import os; os.remove({home!r} + '/s'); os.symlink('/nowhere', {home!r} + '/s'); answer = 1") == {"answer": 1}
    assert run(berth, "answer = 2") == {"answer": 2}
