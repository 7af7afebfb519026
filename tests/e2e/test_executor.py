"""`berth executor` before a server, with its queue in Redis and in NATS: everything is killed, and each job ends."""

import json
import threading
import urllib.error
import urllib.request
from collections import Counter

import pytest

from harness.http_server import Answer, HttpServer
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import until

JOBS = 60


class Model(HttpServer):
    """Counts the runs of each key; holds its answers while the gate is closed. A dead one breaks off what it has begun."""

    def __init__(self, port: int = 0):
        self.runs, self.gate, self.is_dead = Counter(), threading.Event(), False
        super().__init__(port)

    def answer(self, request):
        if request.method == "POST":
            self.runs[request.headers["idempotency-key"]] += 1
            self.gate.wait()
        return Answer(200, body=b"answered", breaks_after=0 if self.is_dead else None)

    def restart(self) -> "Model":
        """As after a kill: the answers under way break off, and another process listens. It counts on."""
        self.is_dead = True
        self.close()
        self.gate.set()
        other = Model(self.port)
        other.runs = self.runs
        other.gate.set()
        return other


class Executor(Process):
    def __init__(self, name, folder, model, queue):
        super().__init__(name, folder)
        self.port, self.admin = free_port(), free_port()
        self.file = folder / f"{name}.json"
        jobs = {"paths": ["/predict"], "queue": queue | {"key": "test"}, "pause": "100ms"}
        port = {"name": "http", "listen": self.port, "upstream": model, "connectTimeout": "1s", "async": jobs}
        drain = {"delay": "0s", "timeout": "30s"}
        self.file.write_text(json.dumps({"ports": [port], "admin": {"listen": self.admin}, "drain": drain}))

    def start(self):
        self.spawn(BERTH, "executor", "--config", str(self.file))
        until(lambda: f"{self.name} is not ready: {self.logged()}", lambda: self.status(self.admin, "/ready") == 200)

    def status(self, port, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def submit(self, key):
        headers = {"Prefer": "respond-async", "Idempotency-Key": key}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/predict", b"x", headers, method="POST")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 202
            return json.load(answer)["id"]

    def state(self, job):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/jobs/{job}") as answer:
                return json.load(answer)
        except OSError:
            # The queue is away for a moment.
            return {}


def redis(folder, port):
    files = ("--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "")
    return {"redis": f"redis://127.0.0.1:{port}"}, ("redis-server", "--port", str(port), "--bind", "127.0.0.1", *files)


def nats(folder, port):
    command = ("nats-server", "-js", "-sd", str(folder / "nats"), "-a", "127.0.0.1", "-p", str(port))
    return {"nats": f"nats://127.0.0.1:{port}"}, command


@pytest.mark.parametrize("broker", [redis, nats])
def test_each_accepted_job_ends_whatever_is_killed(tmp_path, broker):
    queue, command = broker(tmp_path, free_port())
    store = Process("store", tmp_path)
    store.spawn(*command)
    model = Model()
    first, second = (Executor(name, tmp_path, model.port, queue) for name in ("first", "second"))
    try:
        first.start()
        second.start()
        until("the queue", lambda: not first.state("0" * 32) and first.status(first.port, f"/jobs/{'0' * 32}") == 404)
        jobs = [(first, second)[number % 2].submit(f"key-{number}") for number in range(JOBS)]
        until("each executor runs its four jobs", lambda: sum(model.runs.values()) == 8)
        assert first.submit("key-0") == jobs[0], "the key is known"
        first.kill()
        store.kill()
        store.spawn(*command)
        model = model.restart()
        # The leases of those that the killed executor had begun run out first.
        until("all jobs are done", lambda: all(second.state(job).get("state") == "done" for job in jobs))
        assert second.submit("key-0") == jobs[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{second.port}/jobs/{jobs[0]}/result") as answer:
            assert answer.read() == b"answered"
        assert len(model.runs) == JOBS
        # What the killed ones had begun is run again, and nothing else.
        assert sum(model.runs.values()) <= JOBS + 8
        assert second.stop() == 0
    finally:
        model.gate.set()
        for process in (first, second, store):
            if process.runs():
                process.kill()
        model.close()
