"""Code of a model that does harm with what it has: memory, files, processes, its line to the worker. It costs its replica alone."""

from __future__ import annotations

import os
import threading

import pytest

from harness.examples import manifest
from harness.waiting import PATIENCE, until
from spy import Spy

# The model's end of the line to the worker, found as somebody else's code would find it.
LINE = """
import os, socket, stat
line = None
for name in os.listdir('/proc/self/fd'):
    try:
        if stat.S_ISSOCK(os.fstat(int(name)).st_mode): line = socket.socket(fileno=os.dup(int(name)))
    except OSError: pass
"""


@pytest.fixture
def spy(tmp_path):
    server = Spy(tmp_path)
    server.serve()
    server.apply(manifest("iris"))
    server.available("iris")
    yield server
    server.close()


def attack(spy: Spy, code: str) -> int:
    """Has the model do it; the status of the request."""
    return spy.post("/v1/spy", {"run": code}, {"berth-timeout-ms": "20000"})[0]


def others_are_well(spy: Spy) -> None:
    assert spy.infer("iris")[0] == 200
    assert spy.control("/healthz")[0] == 200 and spy.get("/v2/health/live")[0] == 200


def is_back(spy: Spy) -> None:
    until("the model to answer again", lambda: spy.post("/v1/spy", {"run": "answer = 1"})[0] == 200)
    others_are_well(spy)


def deaths(spy: Spy) -> float:
    return spy.metric("worker_model_process_deaths_total", model="spy")


@pytest.mark.parametrize(
    "code",
    [
        "kept = [bytearray(b'x' * (16 << 20)) for _ in range(1000)]",
        "import os\nfor n in range(100):\n  with open(f'/tmp/{n}', 'wb') as file: file.write(b'x' * (16 << 20))",
        "import os\ntry: os.kill(-1, 9)\nexcept OSError: pass\nos.kill(os.getpid(), 9)",
        "import os; os._exit(0)",
        "import os; os.abort()",
        "import ctypes; ctypes.string_at(0)",
        LINE + "line.sendall(b'\\xff' * 64)",
        LINE + "line.sendall((19).to_bytes(4, 'little') + (2).to_bytes(4, 'little') + (1 << 60).to_bytes(8, 'little') + b'{}')",
        LINE + "line.sendall((19).to_bytes(4, 'little') + (4).to_bytes(4, 'little') + (0).to_bytes(8, 'little') + b'nope')",
        LINE + "line.shutdown(socket.SHUT_RDWR)",
    ],
    ids=["memory", "files in memory", "kills everybody", "ends", "aborts", "crashes", "noise", "a huge frame", "nonsense", "closes its line"],
)
def test_what_ends_a_process_costs_it_alone(spy, code):
    status = attack(spy, code)
    others_are_well(spy)
    if "/tmp" in code and status == 200:
        # Files in memory were refused before they took too much.
        return
    # What it sends beside its answer may come after it.
    assert status in (500, 503, 504) or "line" in code, status
    until("the process to be ended", lambda: deaths(spy) >= 1)
    is_back(spy)
    assert deaths(spy) == 1


def test_workers_of_one_machine_leave_each_other_alone(spy, tmp_path):
    """Each has users of its own, and none takes the other's models for left behind, also where it cannot see the other's process."""
    other = Spy(tmp_path / "other")
    try:
        other.through = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        other.serve()
        spy.stop()
        spy.serve()
        users = {server.answer("import os; answer = os.getuid()") for server in (spy, other)}
        assert len(users) == 2 and not users & {0, os.geteuid()}
        assert deaths(other) == 0
    finally:
        other.close()


def test_dying_at_each_request_is_damped(spy):
    for _ in range(3):
        until("a request to reach it", lambda: attack(spy, "import os; os._exit(3)") == 500)
        others_are_well(spy)
    assert deaths(spy) >= 3
    # The pause grows: requests are told when to come again, and are not waited for.
    status, headers, _ = spy.post("/v1/spy", {"run": "answer = 1"})
    assert status == 200 or int(headers["retry-after"]) >= 1
    is_back(spy)


def test_its_files_and_processes_are_its_own(spy, tmp_path):
    opened = spy.answer("import os\nkept = []\ntry:\n  while True: kept.append(os.open('/dev/null', os.O_RDONLY))\nexcept OSError as error: answer = [len(kept), error.errno]\nfor file in kept: os.close(file)")
    assert opened[0] < 4_097 and opened[1] == 24
    others_are_well(spy)
    assert spy.ask(f"import os; os.kill({spy.process.pid}, 0); answer = 1").get("answer") is None
    assert spy.answer("import ctypes; c = ctypes.CDLL(None, use_errno=True); answer = c.ptrace(16, 1, 0, 0)") == -1
    too_large = "import os\nwith open(os.environ['HOME'] + '/x', 'wb') as file: os.truncate(file.fileno(), 65 << 30)\nanswer = 1"
    assert attack(spy, too_large) != 200 or "error" in spy.ask(too_large)
    is_back(spy)


def test_what_other_models_import_cannot_be_written(spy):
    tried = """
import os, sys
answer = []
for folder in {os.path.realpath(path) for path in sys.path + [sys.prefix, sys.base_prefix, os.path.dirname(os.__file__)] if path}:
    if folder.startswith(os.environ['HOME']) or not os.path.isdir(folder): continue
    try:
        open(folder + '/sitecustomize.py', 'w').write('harm')
        answer.append(folder)
    except OSError: pass
"""
    assert spy.answer(tried) == []


def test_it_does_not_fill_the_disk(spy):
    home = spy.answer("import os; answer = os.environ['HOME']")
    fill = "for n in range(100):\n  with open({folder!r} + f'/{{n}}', 'wb') as file: file.write(bytes(16 << 20))"
    assert "No space left" in spy.ask(fill.format(folder=home))["error"]
    assert os.listdir(home) == [], "its files are in memory"
    # All folders that it writes have one bound, half of its memory.
    for folder in ("/tmp", "/dev/shm"):
        assert "No space left" in spy.ask(f"open({folder!r} + '/x', 'wb').write(bytes(16 << 20))")["error"]
    empty = "for n in range(200000): open(f'empty-{n}', 'w').close()"
    assert "No space left" in spy.ask(empty)["error"], "files without content take memory, too"
    others_are_well(spy)
    # What it removes it may write again, and a program that is written is run.
    clear = "import os, shutil\nfor name in os.listdir(os.environ['HOME']): os.remove(os.environ['HOME'] + '/' + name)\n"
    runs = "import subprocess\nopen('x', 'w').write('#!/bin/sh\\necho ran'); os.chmod('x', 0o700); answer = subprocess.check_output(['./x']).decode()"
    assert spy.answer(clear + runs) == "ran\n"
    assert deaths(spy) == 0


def test_its_caches_and_shared_memory_work(spy):
    pages = "from multiprocessing import shared_memory\nm = shared_memory.SharedMemory(create=True, size=1 << 20)\nm.buf[:1] = b'x'\nanswer = len(m.buf)\nm.close(); m.unlink()"
    assert spy.answer(pages) == 1 << 20
    cache = "import os, mmap\npath = os.path.expanduser('~/.cache/library')\nos.makedirs(path)\nwith open(path + '/x', 'wb+') as file:\n  os.truncate(file.fileno(), 4096); m = mmap.mmap(file.fileno(), 4096); m[:1] = b'x'; m.flush()\nanswer = os.path.getsize(path + '/x')"
    assert spy.answer(cache) == 4096


def test_links_in_its_folder_lead_nowhere_when_it_is_removed(spy, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("of somebody else")
    spy.answer(f"import os; os.symlink({str(kept)!r}, os.environ['HOME'] + '/link'); os.symlink('/', os.environ['HOME'] + '/root'); answer = 1")
    attack(spy, "import os; os._exit(1)")
    is_back(spy)
    spy.stop()
    assert (kept / "file").read_text() == "of somebody else"


def test_one_that_reads_nothing_more_holds_up_nobody(spy):
    statuses = []
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); answer = 1"
    large = {"run": "answer = 1 #" + "x" * (2 << 20)}
    bodies = [{"run": stop}] + [large] * 6
    ask = lambda body: statuses.append(spy.post("/v1/spy", body, {"berth-timeout-ms": "3000"})[0])  # noqa: E731
    threads = [threading.Thread(target=ask, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        others_are_well(spy)
    for thread in threads:
        thread.join(PATIENCE)
    assert 200 not in statuses[:1]
    is_back(spy)


def test_a_flood_of_output_does_not_fill_the_log(spy):
    spy.answer("import sys\nfor n in range(200000): print('flood', n)\nsys.stdout.flush()\nanswer = 1")
    others_are_well(spy)
    assert spy.logged().count("flood") < 5_000
