"""Git repositories as people keep them: a model repository with tags, a registry, and where they are pushed to."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import yaml

from harness.documents import document
from harness.processes import BERTH
from harness.waiting import PATIENCE

# People have names; nothing of the machine's own configuration is used.
PEOPLE = {
    "GIT_AUTHOR_NAME": "Ops", "GIT_AUTHOR_EMAIL": "ops@example.com",
    "GIT_COMMITTER_NAME": "Ops", "GIT_COMMITTER_EMAIL": "ops@example.com",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
}  # fmt: skip


def git(folder: Path, *arguments: str, check: bool = True, **more) -> subprocess.CompletedProcess:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | PEOPLE, capture_output=True, text=True, timeout=PATIENCE, **more
    )
    assert not check or done.returncode == 0, f"git {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done


class Repository:
    """A clone to work in, and the bare repository that it is pushed to."""

    def __init__(self, folder: Path, name: str):
        self.bare = folder / f"{name}.git"
        self.work = folder / name
        self.work.mkdir(parents=True)
        git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(self.bare))
        git(self.work, "init", "--quiet", "--initial-branch=main")
        git(self.work, "remote", "add", "origin", self.url)

    @property
    def url(self) -> str:
        return f"file://{self.bare}"

    def write(self, path: str, content: str | dict) -> None:
        place = self.work / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))

    def read(self, path: str) -> dict:
        return document((self.work / path).read_text())

    def commit(self, message: str, tag: str | None = None) -> str:
        git(self.work, "add", "--all")
        git(self.work, "commit", "--quiet", "--allow-empty", "--message", message)
        if tag:
            git(self.work, "tag", "--force", tag)
        return git(self.work, "rev-parse", "HEAD").stdout.strip()

    def push(self, *, check: bool = True, tags: bool = False, force: bool = False) -> subprocess.CompletedProcess:
        more = [*(["--tags"] if tags else []), *(["--force"] if force else [])]
        return git(self.work, "push", "--quiet", *more, "origin", "main", check=check)

    def shown(self, branch: str, path: str) -> dict | None:
        """A document on a branch of the bare repository; `None`: it is not there."""
        done = git(self.bare, "show", f"{branch}:{path}", check=False)
        return document(done.stdout) if done.returncode == 0 else None

    def listed(self, branch: str, folder: str) -> list[str]:
        done = git(self.bare, "ls-tree", "-r", "--name-only", branch, folder, check=False)
        return done.stdout.split() if done.returncode == 0 else []

    def objects(self) -> int:
        """The number of objects, loose and packed."""
        counted = dict(line.split(": ") for line in git(self.bare, "count-objects", "-v").stdout.splitlines())
        return int(counted["count"]) + int(counted["in-pack"])


MODEL = '''"""A model whose weights are a JSON file: it says which version it is, and doubles numbers."""

import json


def load(path):
    with open(path, encoding="utf-8") as file:
        weights = json.load(file)
    return lambda x: {"y": x * weights["factor"], "version": weights["version"]}
'''

PRE = '''def read(request, config):
    return request["x"] + config.get("add", 0)
'''

POST = '''def write(output, config):
    return output
'''


class Model(Repository):
    """A model repository with the smallest card: no packages, weights in JSON."""

    def __init__(self, folder: Path, name: str, artifacts: Path, base: str, storage: str = "http"):
        super().__init__(folder, f"{name}-model")
        self.name, self.artifacts, self.base, self.storage = name, artifacts, base, storage
        self.write("src/__init__.py", "")
        self.write("src/model.py", MODEL)
        self.write("src/preprocessing.py", PRE)
        self.write("src/postprocessing.py", POST)

    def weights(self, version: str) -> Path:
        return self.artifacts / self.name / f"v{version}" / "weights.json"

    def release(self, version: str, *, weights: str | None = None, tag: bool = True, **changes) -> str:
        """Uploads weights, writes the card, commits, tags, pushes. `changes`: of the card, by dotted path."""
        place = self.weights(version)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(weights or json.dumps({"version": version, "factor": 2}))
        card = {
            "schemaVersion": "3.0.0",
            "metadata": {
                "name": self.name, "version": version, "description": "A model for tests", "owner": "ml@example.com",
            },
            "runtime": {
                "framework": "custom", "framework_version": "1.0.0", "python_version": python_version(), "dependencies": [],
            },
            "artifacts": {
                "storage_type": self.storage,
                "model_path": f"{self.base}/{self.name}/v{version}/weights.json",
                "checksum": hashlib.sha256(place.read_bytes()).hexdigest(),
                "size_bytes": place.stat().st_size,
            },
            "code": {"repository": self.url, "path": "src/", "ref": f"v{version}", "entrypoint": "src.model"},
            "preprocessing": {"module": "src.preprocessing", "function": "read", "config": {"add": 0}},
            "postprocessing": {"module": "src.postprocessing", "function": "write"},
            "interface": {
                "input_schema": {"type": "object", "required": ["x"], "properties": {"x": {"type": "number", "minimum": -1000}}},
                "output_schema": {
                    "type": "object", "required": ["y", "version"],
                    "properties": {"y": {"type": "number"}, "version": {"type": "string"}},
                },
            },
            "resources": {"cpu": 0.1, "memory": "64Mi"},
        }  # fmt: skip
        for path, value in changes.items():
            *parents, last = path.split(".")
            at = card
            for parent in parents:
                at = at[parent]
            if value is None:
                del at[last]
            else:
                at[last] = value
        self.write("model-card.yaml", card)
        commit = self.commit(f"Release v{version}", f"v{version}" if tag else None)
        self.push(tags=tag)
        return commit


def python_version() -> str:
    """The version that the worker surely has: the one that runs the tests."""
    import sys

    return f"{sys.version_info.major}.{sys.version_info.minor}"


class Registry(Repository):
    """A registry as `berth registry init` makes it."""

    def __init__(self, folder: Path, workers: list[str], name: str = "model-registry"):
        super().__init__(folder, name)
        shutil.rmtree(self.work / ".git")
        subprocess.run([BERTH, "registry", "init", str(self.work)], check=True, capture_output=True, text=True, timeout=PATIENCE)
        git(self.work, "init", "--quiet", "--initial-branch=main")
        git(self.work, "remote", "add", "origin", self.url)
        for worker in workers:
            self.worker(worker)

    def worker(self, name: str, **changes) -> None:
        zone = name.removeprefix("worker-")
        config = {
            "worker_id": name,
            "supported_schema_versions": ["3.0.0", "3.1.0"],
            "capacity": {"max_models": 20, "max_memory": "2Gi", "max_cpu": 2.0},
            "labels": {"pool": "production", "region": "eu-west-1", "zone": zone},
        }
        config["capacity"] |= changes.pop("capacity", {})
        self.write(f"workers/{name}.yaml", config | changes)

    def deploy(self, id: str, model: Model, version: str, *, where: str = "production", **changes) -> None:
        manifest = {
            "id": id,
            "model_card_ref": {"repository": model.url, "path": "model-card.yaml", "ref": f"v{version}"},
            "enabled": changes.pop("enabled", True),
            "deployment_config": {
                "region": "eu-west-1", "replicas": 1, "priority": 50, "worker_selector": {"pool": "production"},
                "endpoint": f"https://api.example.com/v1/{id}",
            } | changes,
            "metadata": {"owner": "ml@example.com", "deployed_at": "2026-11-22T10:30:00Z", "deployed_by": "ops@example.com"},
        }  # fmt: skip
        self.write(f"models/{where}/{id}.yaml", manifest)

    def path(self, id: str, where: str = "production") -> str:
        return f"models/{where}/{id}.yaml"
