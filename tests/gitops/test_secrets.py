"""Credentials: encrypted in the registry, in memory on the workers, changed without an interruption, written nowhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fleet import BERTH, Load, until
from forge import Model

OLD, NEW = ("AKIAOLD", "canary-old-4711"), ("AKIANEW", "canary-new-4712")


def encrypted(world, keys: Path, worker: str, key: tuple[str, str], endpoint: str) -> None:
    plain = (
        "secrets:\n  s3_access:\n    type: s3_credentials\n"
        f"    access_key_id: {key[0]}\n    secret_access_key: {key[1]}\n    region: us-east-1\n    endpoint: {endpoint}\n"
    )
    place = world.registry.work / f"workers/secrets/{worker}-secrets.yaml"
    public = next(keys.glob("*.pub*"))
    place.unlink(missing_ok=True)
    done = subprocess.run(
        [BERTH, "secrets", "encrypt", "--key", str(public), "--worker", worker, "--out", str(place)],
        input=plain, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert key[1] not in place.read_text()


def test_keys_change_and_nobody_notices(world, s3, tmp_path):
    keys = tmp_path / "keys"
    subprocess.run([BERTH, "secrets", "keygen", "--out", str(keys)], check=True, capture_output=True, timeout=60)
    private = next(path for path in keys.iterdir() if ".pub" not in path.name)
    model = Model(world.folder, "doubler", s3.root / "models", "s3://models", storage="s3")
    model.release("1.0.0")
    s3.allow(OLD)
    for worker in world.workers:
        encrypted(world, keys, worker, OLD, s3.url)
    world.registry.deploy("doubler", model, "1.0.0", replicas=2)
    world.push("Deploy doubler, with its keys")
    world.start("--registry-key", f"file:{private}")
    world.until_ready("doubler", "1.0.0", 2)
    load = Load(world.fleet.nodes, "/v1/doubler", {"x": 1}, threads=2)

    # Both hold for a while; when every worker has the new one the old one is revoked.
    s3.allow(OLD, NEW)
    for worker in world.workers:
        encrypted(world, keys, worker, NEW, s3.url)
    commit = world.push("New keys")
    until("the commit is applied", lambda: world.source()["applied"] == commit)

    def all_have_it():
        secrets = world.fleet.listed("secrets")
        return secrets and all(secret["status"]["adopted"] for secret in secrets)

    until("all workers have the new keys", all_have_it)
    s3.allow(NEW)
    model.release("1.1.0")
    world.registry.deploy("doubler", model, "1.1.0", replicas=2)
    world.push("Deploy doubler 1.1.0")
    world.until_ready("doubler", "1.1.0", 2)
    load.end()
    assert load.failed == []

    listed = world.fleet.berth("get", "secrets")
    assert "s3_access" in listed
    leaked = [OLD[1], NEW[1]]
    for node in world.fleet.nodes:
        assert not any(canary in node.logged() for canary in leaked)
        for folder, _, files in os.walk(world.folder / "fleet" / node.name):
            for name in files:
                content = (Path(folder) / name).read_bytes()
                assert not any(canary.encode() in content for canary in leaked), f"{folder}/{name}"
    assert not any(canary in listed for canary in leaked)


def test_a_plain_secret_is_refused(world, hook):
    model = world.model("doubler")
    model.release("1.0.0")
    world.registry.deploy("doubler", model, "1.0.0")
    world.registry.commit("Deploy doubler")
    hook(world.registry.bare)
    world.registry.push()
    world.registry.write(
        f"workers/secrets/{world.workers[0]}-secrets.yaml",
        {
            "worker_id": world.workers[0],
            "secrets": {"s3_access": {"type": "s3_credentials", "access_key_id": "AKIA", "secret_access_key": "plain"}},
        },
    )
    world.registry.commit("A key in the open")
    refused = world.registry.push(check=False)
    assert refused.returncode != 0 and "secret_access_key" in refused.stderr, refused.stderr
    assert "plain" not in refused.stderr.split("secret_access_key", 1)[1].splitlines()[0]
