"""Credentials: encrypted in the registry, in memory on the workers, changed without an interruption, written nowhere."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from clouds import Azure, Gcs
from fleet import Load
from forge import Model
from harness.processes import BERTH
from harness.waiting import PATIENCE, until
from packages import NAME, VERSION, Index, of_processes
from vault import CANARY, SECRET_ID, Vault

OLD, NEW = ("AKIAOLD", f"{CANARY}-old"), ("AKIANEW", f"{CANARY}-new")


class Keys:
    """A pair of keys, and what is encrypted with them."""

    def __init__(self, world, folder: Path):
        self.world, self.folder = world, folder
        subprocess.run([BERTH, "secrets", "keygen", "--out", str(folder)], check=True, capture_output=True, timeout=PATIENCE)

    @property
    def private(self) -> tuple[str, str]:
        return "--registry-key", f"file:{self.folder / 'registry.key'}"

    def seal(self, **secrets: dict) -> None:
        """All secrets of each worker; JSON is YAML."""
        for worker in self.world.workers:
            place = self.world.registry.work / f"workers/secrets/{worker}-secrets.yaml"
            place.unlink(missing_ok=True)
            done = subprocess.run(
                [BERTH, "secrets", "encrypt", "--key", str(self.folder / "registry.pub"), "--worker", worker, "--out", str(place)],
                input=json.dumps({"secrets": secrets}), capture_output=True, text=True, timeout=PATIENCE,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            assert CANARY not in place.read_text()


@pytest.fixture
def keys(world, tmp_path):
    return Keys(world, tmp_path / "keys")


def s3_access(key: tuple[str, str], endpoint: str) -> dict:
    return {
        "type": "s3_credentials", "access_key_id": key[0], "secret_access_key": key[1], "region": "us-east-1",
        "endpoint": endpoint,
    }  # fmt: skip


def content(place: Path) -> bytes:
    """Named pipes and links to nowhere hold nothing, and what was there a moment ago may be gone."""
    try:
        return place.read_bytes() if place.is_file() else b""
    except FileNotFoundError:
        return b""


def nowhere(world, *canaries: str) -> None:
    """None of these is in what people are told, in arguments or environments, in a log or file of a node, or in the store."""
    told = [world.fleet.berth("get", "secrets"), world.fleet.berth("get", "events"), world.fleet.berth("get", "sources")]
    assert not any(canary in text for canary in canaries for text in told)
    for what in ["cmdline", "environ"]:
        shown = of_processes(what)
        assert not any(canary.encode() in text for canary in canaries for text in shown.values()), what
    for folder, _, files in os.walk(world.folder / "fleet"):
        for name in files:
            place = Path(folder) / name
            assert not any(canary.encode() in content(place) for canary in canaries), place


def test_keys_change_and_nobody_notices(world, s3, keys):
    model = Model(world.folder, "doubler", s3.root / "models", "s3://models", storage="s3")
    model.release("1.0.0")
    s3.allow(OLD)
    keys.seal(s3_access=s3_access(OLD, s3.url))
    world.registry.deploy("doubler", model, "1.0.0", replicas=2)
    world.push("Deploy doubler, with its keys")
    world.start(*keys.private)
    world.until_ready("doubler", "1.0.0", 2)
    load = Load(world.fleet.nodes, "/v1/doubler", {"x": 1}, callers=2)

    # Both hold for a while; when every worker has the new one the old one is revoked.
    s3.allow(OLD, NEW)
    keys.seal(s3_access=s3_access(NEW, s3.url))
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

    assert "s3_access" in world.fleet.berth("get", "secrets")
    nowhere(world, OLD[1], NEW[1])


def test_what_was_refused_is_loaded_as_soon_as_the_keys_are_right(world, s3, keys):
    model = Model(world.folder, "doubler", s3.root / "models", "s3://models", storage="s3")
    model.release("1.0.0")
    s3.allow(NEW)
    keys.seal(s3_access=s3_access(OLD, s3.url))
    world.registry.deploy("doubler", model, "1.0.0")
    commit = world.push("Deploy doubler, with keys of somebody else")
    world.start(*keys.private)
    until("it is declared", lambda: world.source()["applied"] == commit)
    until("it is given up for now", lambda: "(auth)" in world.fleet.berth("describe", "deployment", "doubler"))
    keys.seal(s3_access=s3_access(NEW, s3.url))
    world.push("The right keys")
    # By itself it would be tried again after ten minutes.
    world.until_ready("doubler", "1.0.0")


@pytest.mark.parametrize("kind", ["gcs", "azure"])
def test_other_clouds_let_workers_in_by_their_keys(world, keys, tmp_path, kind):
    cloud = {"gcs": Gcs, "azure": Azure}[kind](tmp_path / kind)
    try:
        base, storage = {"gcs": ("gs://models", "gcs"), "azure": ("az://models", "azure_blob")}[kind]
        model = Model(world.folder, "doubler", cloud.root / "models", base, storage=storage)
        model.release("1.0.0")
        if kind == "gcs":
            secret = {"type": "gcs_service_account", "credentials_json": cloud.account}
            canary = json.loads(cloud.account)["private_key"].splitlines()[5]
        else:
            secret = {"type": "azure_blob_credentials", "connection_string": cloud.connection}
            canary = cloud.key
        keys.seal(cloud=secret)
        world.registry.deploy("doubler", model, "1.0.0", replicas=2)
        world.push("Deploy doubler, with its keys")
        world.start(*keys.private)
        world.until_ready("doubler", "1.0.0", 2)
        assert all(answer.endswith((" 200", " 206")) for answer in cloud.answered), cloud.answered
        nowhere(world, canary)

        # A key of somebody else: refused, and told by the secret's name.
        stranger = type(cloud)(tmp_path / "other")
        secret |= {
            "gcs": lambda: {"credentials_json": json.dumps(json.loads(cloud.account) | {"private_key": stranger.private_key})},
            "azure": lambda: {"connection_string": cloud.connection.replace(cloud.key, stranger.key)},
        }[kind]()
        stranger.close()
        keys.seal(cloud=secret)
        model.release("1.1.0")
        world.registry.deploy("doubler", model, "1.1.0", replicas=2)
        world.push("Deploy doubler 1.1.0, with a wrong key")
        until("the worker says which secret is wrong", lambda: f"cloud ({secret['type']})" in world.fleet.berth("get", "events"))
    finally:
        cloud.close()


def test_packages_come_with_a_password_that_nobody_sees(world, keys):
    password = f"{CANARY}-packages"
    index = Index("acme", password)
    try:
        model = world.model("doubler")
        model.write("src/model.py", (model.work / "src/model.py").read_text().replace("import json", f"import json\n\nimport {NAME}"))
        model.release("1.0.0", **{"runtime.dependencies": [f"{NAME}=={VERSION}"]})
        keys.seal(packages={
            "type": "registry_credentials", "registry_url": index.url, "username": "acme", "password": password,
        })  # fmt: skip
        world.registry.deploy("doubler", model, "1.0.0", replicas=2)
        world.push("Deploy doubler, with a package of our own")
        world.start(*keys.private, "--package-index", f"{index.url}/simple")
        world.until_ready("doubler", "1.0.0", 2)
        assert 200 in index.answered, index.answered
        assert index.shown == [], "it was an argument of a process"
        nowhere(world, password)
    finally:
        index.close()


def test_a_vault_lends_keys_that_are_renewed_replaced_and_revoked(world, s3):
    vault = Vault(s3)
    try:
        for worker in world.workers:
            vault.kv[f"workers/{worker}/git"] = {"token": f"{CANARY}-token-of-{worker}"}
            world.registry.write(f"workers/secrets/{worker}-secrets.yaml", {
                "worker_id": worker,
                "secrets": {"backend": "vault", "vault_addr": vault.url, "paths": {
                    "git_token": f"secret/workers/{worker}/git",
                    "models": {
                        "type": "s3_credentials", "path": "aws/creds/reader", "engine": "dynamic", "region": "us-east-1",
                        "endpoint": s3.url,
                    },
                }},
            })  # fmt: skip
        secret_id = world.folder / "secret-id"
        secret_id.write_text(f"{SECRET_ID}\n")
        model = Model(world.folder, "doubler", s3.root / "models", "s3://models", storage="s3")
        model.release("1.0.0")
        world.registry.deploy("doubler", model, "1.0.0", replicas=2)
        world.push("Deploy doubler, with keys from Vault")
        world.start("--vault-addr", vault.url, "--vault-role-id", "berth", "--vault-secret-id-file", str(secret_id))
        world.until_ready("doubler", "1.0.0", 2)
        assert {worker for path, worker, _ in vault.asked if path == "aws/creds/reader"} == set(world.workers)

        # Longer than any lease lives: what was lent at first is renewed, then replaced, then revoked.
        until("renewals", lambda: vault.count("sys/leases/renew") > 1)
        until("new keys", lambda: vault.count("aws/creds/reader") >= 2 * len(world.workers))
        model.release("1.1.0")
        world.registry.deploy("doubler", model, "1.1.0", replicas=2)
        world.push("Deploy doubler 1.1.0")
        world.until_ready("doubler", "1.1.0", 2)

        # Who needs nothing any more has its lease revoked, not left to its end.
        for worker in world.workers:
            (world.registry.work / f"workers/secrets/{worker}-secrets.yaml").unlink()
        before = vault.count("sys/leases/revoke")
        world.push("No keys any more")
        until("all leases are revoked", lambda: vault.count("sys/leases/revoke") > before and vault.living() == 0)
        nowhere(world, CANARY)
    finally:
        vault.close()


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
