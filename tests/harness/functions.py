"""Functions: an etcd with plain `etcdctl`, code in archives, questions."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

from .ports import free_port
from .processes import Process
from .waiting import PATIENCE, until

# A build installs from a registry, on a machine that compiles.
BUILD = PATIENCE * 2

# Seconds that a member has for an answer before another one is asked: as long as `etcdctl` waits.
ANSWER = 5.0


class Member(Process):
    """One process of etcd."""

    def __init__(self, folder: Path, name: str):
        super().__init__(name, folder)
        self.client, self.peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.cluster = f"{name}={self.peer}"

    def start(self) -> None:
        self.spawn(
            "etcd", "--name", self.name, "--data-dir", str(self.folder / self.name), "--listen-client-urls", self.client,
            "--advertise-client-urls", self.client, "--listen-peer-urls", self.peer,
            "--initial-advertise-peer-urls", self.peer, "--initial-cluster", self.cluster, "--unsafe-no-fsync",
        )  # fmt: skip


class Etcd:
    """An etcd of one or more members, and `etcdctl` against it."""

    def __init__(self, folder: Path, members: int = 1):
        self.members = [Member(folder, f"etcd{number}") for number in range(members)]
        cluster = ",".join(member.cluster for member in self.members)
        for member in self.members:
            member.cluster = cluster
        self.start()

    @property
    def client(self) -> str:
        """The addresses, as `--source etcd=` takes them."""
        return ";".join(member.client for member in self.members)

    def start(self) -> None:
        for member in self.members:
            if not member.runs():
                member.start()
        until("etcd to be healthy", lambda: self.ctl("endpoint", "health", check=False).returncode == 0)

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def close(self) -> None:
        for member in self.members:
            member.close()

    def ctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
        running = ",".join(member.client for member in self.members if member.runs())
        command = ["etcdctl", "--endpoints", running, *arguments]
        env = os.environ | {"ETCDCTL_API": "3"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE)
        assert not check or done.returncode == 0, done.stderr
        return done

    def put(self, value: str | dict) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        self.ctl("put", f"/models/deployments/{json.loads(text)['metadata']['name']}", text)

    def read(self, key: str) -> str | None:
        """The value of a key, from etcd's gateway: a process of `etcdctl` takes several times the processor time, and waiting asks often.

        Where the gateway gives none (a user is asked for, the member is about to end), `etcdctl` has the last word.
        """
        member = next((member for member in self.members if member.runs()), self.members[0])
        connection = http.client.HTTPConnection(member.client.removeprefix("http://"), timeout=ANSWER)
        try:
            connection.request("POST", "/v3/kv/range", json.dumps({"key": base64.b64encode(key.encode()).decode()}))
            answer = connection.getresponse()
            text = answer.read() if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            text = None
        finally:
            connection.close()
        if text is None:
            return self.ctl("get", key, "--print-value-only").stdout.strip() or None
        found = json.loads(text).get("kvs")
        return base64.b64decode(found[0]["value"]).decode() if found else None

    def object(self, name: str) -> dict:
        text = self.read(f"/models/deployments/{name}")
        return json.loads(text) if text else {}

    def status(self, name: str) -> dict:
        return self.object(name).get("status", {})

    def revision(self) -> int:
        return json.loads(self.ctl("get", "/", "-w", "json").stdout)["header"]["revision"]

    def settled(self, name: str, phase: str, generation: int, patience: float = BUILD) -> dict:
        """The status, once the generation was carried out or has failed."""
        seen = {}

        def there():
            seen.update(self.status(name))
            return seen.get("phase") == phase and seen.get("observedGeneration") == generation and seen

        return dict(until(lambda: f"{phase} of generation {generation}: {seen}", there, patience))


def archive(folder: Path, name: str, files: dict[str, str | bytes]) -> str:
    """A ZIP file with these files; its URI."""
    path = folder / name
    with zipfile.ZipFile(path, "w") as zipped:
        for file, content in files.items():
            zipped.writestr(file, content)
    return f"file:{path}"


def archive_of(folder: Path, name: str, code: Path, **more: bytes) -> str:
    """A ZIP file with the files of a folder; its URI."""
    files = {str(path.relative_to(code)): path.read_bytes() for path in sorted(code.rglob("*")) if path.is_file()}
    return archive(folder, name, files | more)


def function(name: str, uri: str, generation: int = 1, **spec) -> dict:
    """A Python function of one file."""
    spec = {"type": "python", "sourceUri": uri, "entrypoint": "handler.predict", "target": {"platform": "local"}} | spec
    metadata = {"name": name, "generation": generation}
    return {"apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": metadata, "spec": spec}


def ask(berth, name: str, body) -> tuple[int, object]:
    status, _, answer = berth.post(f"/functions/{name}", body)
    return status, json.loads(answer)


def at_endpoint(berth, status: dict, body) -> object:
    """The answer of `status.endpoint` to a POST of JSON."""
    path = re.fullmatch(rf"http://{re.escape(berth.http)}(/.*)", status["endpoint"])[1]
    code, _, answer = berth.post(path, body)
    assert code == 200, answer
    return json.loads(answer)


WORDS = "def predict(body):\n    return {'version': %d, 'words': len(body['text'].split())}\n"
