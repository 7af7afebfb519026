"""Packages of a model that its lock decides: each with the hash of its file, and no others."""

from __future__ import annotations

import hashlib

import pytest
from harness.waiting import until
from packages import NAME, VERSION, Index, wheel

HASH = hashlib.sha256(wheel()).hexdigest()


@pytest.fixture
def index():
    index = Index("", "")
    index.wanted = None  # open to all
    yield index
    index.close()


def test_a_lock_decides_what_is_installed(world, index):
    model = world.model("doubler")
    model.write("src/model.py", (model.work / "src/model.py").read_text().replace("import json", f"import json\n\nimport {NAME}"))
    locked = {"runtime.dependencies": [f"{NAME}=={VERSION}"], "runtime.dependencies_lock": "requirements.lock"}
    model.write("requirements.lock", f"# made by uv\n{NAME.replace('_', '-')}=={VERSION} \\\n    --hash=sha256:{HASH}\n")
    model.release("1.0.0", **locked)
    world.registry.deploy("doubler", model, "1.0.0", replicas=2)
    world.push("Deploy doubler with a lock")
    world.start("--package-index", f"{index.url}/simple")
    world.until_ready("doubler", "1.0.0", 2)

    # Older than the card's own list.
    model.release("1.1.0", **locked | {"runtime.dependencies": [f"{NAME}==1.0.1"]})
    refused(world, model, "1.1.0", "requirements.lock is out of date")
    # The index has another file than the one that was locked.
    model.write("requirements.lock", f"{NAME}=={VERSION} --hash=sha256:{'0' * 64}\n")
    model.release("1.2.0", **locked)
    refused(world, model, "1.2.0", "ash mismatch")
    # Not committed.
    model.release("1.3.0", **locked | {"runtime.dependencies_lock": "other.lock"})
    refused(world, model, "1.3.0", "other.lock is no file of the code's repository")


def refused(world, model, version: str, words: str) -> None:
    world.registry.deploy("doubler", model, version, replicas=2)
    world.push(f"Deploy doubler {version}")
    until(f"{version} fails with {words!r}", lambda: words in world.fleet.berth("describe", "deployment", "doubler"))
    world.until_ready("doubler", "1.0.0", 2)
