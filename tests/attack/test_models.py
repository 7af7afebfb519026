"""Code of a model that means harm: what it sees, what it reaches, what it takes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.waiting import until
from spy import Spy

CANARY = "canary-7f3b91d2c4"


@pytest.fixture
def spy(tmp_path):
    server = Spy(tmp_path)
    yield server
    server.close()


def test_a_model_sees_nothing_of_its_server(spy, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(CANARY)
    spy.serve(env={"AWS_SECRET_ACCESS_KEY": CANARY, "BERTH_CANARY_PASSWORD": CANARY})
    assert spy.answer("answer = open(__import__('os').environ['HOME'] + '/x', 'w').write('1')") == 1, "its own folder is its own"
    for path in (secret, spy.data / "state.redb", spy.data, "/etc/shadow", "/root", f"/proc/{spy.process.pid}/environ"):
        found = spy.ask(f"p = {str(path)!r}; import os; answer = os.listdir(p) if os.path.isdir(p) else open(p, 'rb').read(9).hex()")
        assert "error" in found or "state.redb" not in str(found["answer"]), (path, found)
        assert CANARY not in json.dumps(found)
    # Whatever is numbered in its /proc is its own.
    everyone = "import glob; answer = [open(p, 'rb').read().decode() for p in glob.glob('/proc/[0-9]*/cmdline')]"
    assert not [line for line in spy.answer(everyone) if "berth\0serve" in line]
    environment = "import glob\nanswer = ''\nfor p in glob.glob('/proc/*/environ'):\n  try: answer += open(p, 'rb').read().decode()\n  except OSError: pass"
    assert CANARY not in spy.answer(environment)
    # The weights and the code can be read, and not be changed.
    for path in (spy.weights, spy.code / "src" / "model.py"):
        assert "error" in spy.ask(f"answer = open({str(path)!r}, 'a').write('x')")
    assert spy.weights.read_bytes() == b"weights"


def test_a_model_does_not_reach_the_control_api(spy):
    spy.serve()
    for address in (spy.api, spy.http):
        host, port = address.split(":")
        found = spy.ask(f"import socket; socket.create_connection(({host!r}, {port}), 2); answer = 'reached'")
        assert "answer" not in found, found
    # Helpers of libraries talk to each other over a loopback that is theirs.
    own = "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname(), 2); answer = 'own'"
    assert spy.answer(own) == "own"


def test_a_model_cannot_reach_into_the_kernel(spy):
    spy.serve()
    status = spy.answer("answer = open('/proc/self/status').read()")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (fields["NoNewPrivs"], fields["Seccomp"], int(fields["CapEff"], 16)) == ("1", "2", 0)
    calls = {"ptrace": 101, "mount": 165, "bpf": 321, "keyctl": 250, "perf_event_open": 298, "userfaultfd": 323, "unshare": 272, "io_uring_setup": 425}
    for name, number in calls.items():
        code = f"import ctypes; c = ctypes.CDLL(None, use_errno=True); answer = [c.syscall({number}, 0, 0, 0, 0, 0), ctypes.get_errno()]"
        assert spy.answer(code) == [-1, 1], name
    vsock = "import socket; socket.socket(40, socket.SOCK_STREAM); answer = 1"
    assert "PermissionError" in spy.ask(vsock)["error"]
    if os.geteuid() == 0:
        assert spy.answer("import os; answer = os.getuid()") != 0


def test_a_model_that_forks_without_end_takes_only_itself(spy):
    spy.serve()
    bomb = "import os, time\nanswer = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(1000)\n    answer += 1\nexcept OSError: pass"
    # Either the number of processes or their memory ends it; the latter costs the replica.
    status, _, body = spy.post("/v1/spy", {"run": bomb})
    assert status == 500 or json.loads(body)["answer"] < 1_100
    assert len(spy.processes()) < 1_100
    assert spy.control("/healthz")[0] == 200
    spy.stop()
    until("all of its processes to end", lambda: not spy.processes())


def test_what_a_model_leaves_behind_ends_with_its_server(spy):
    spy.serve()
    spy.answer("import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True); answer = 1")
    children = spy.processes()
    spy.kill()
    until("all of its processes to end", lambda: not [child for child in children if Path(f"/proc/{child}").exists()])


def test_what_is_missing_is_said(spy, tmp_path):
    """A machine without namespaces: the model runs with what there is, and everybody is told."""
    spy.serve("--isolation", "process")
    replicas = json.loads(spy.run("get", "replicas", "-o", "json"))
    assert "isolation: process" in json.dumps(replicas)
    assert spy.answer("answer = open('/proc/self/status').read().count('Seccomp:\\t2')") == 1
    checks = json.loads(spy.run("doctor", "-o", "json", code=None))
    assert [check for check in checks if check["name"] == "model isolation"]


def test_memory_and_environment_of_the_server_are_shut(spy):
    spy.serve(env={"AWS_SECRET_ACCESS_KEY": CANARY})
    status = Path(f"/proc/{spy.process.pid}/limits").read_text()
    core = next(line for line in status.splitlines() if line.startswith("Max core file size"))
    assert core.split()[4:6] == ["0", "0"]
    assert CANARY not in Path(f"/proc/{spy.process.pid}/environ").read_text()
    # Files of /proc belong to root where nobody else may look into the process.
    assert Path(f"/proc/{spy.process.pid}/environ").stat().st_uid == 0
    assert CANARY not in Path(f"/proc/{spy.process.pid}/cmdline").read_text()


def test_a_data_folder_is_for_its_owner(spy):
    spy.data.mkdir(mode=0o755)
    spy.data.chmod(0o755)
    (spy.data / "left.txt").write_text("of an earlier version")
    (spy.data / "left.txt").chmod(0o644)
    spy.serve()
    assert spy.data.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in spy.data.iterdir() if path.is_file()}
    assert set(modes.values()) == {0o600}, modes


def test_a_model_reaches_the_network_where_the_operator_says(spy):
    spy.serve("--sandbox-network", "machine")
    host, port = spy.api.split(":")
    assert spy.answer(f"import socket; socket.create_connection(({host!r}, {port}), 5); answer = 'reached'") == "reached"
    assert spy.answer("import os, pwd; answer = pwd.getpwuid(os.getuid()).pw_name") in ("model", "nobody")
    assert "error" in spy.ask(f"import os; answer = os.listdir({str(spy.data)!r} + '/cache')")
