"""The same over HTTP with roles, with packages from an index: as a company would have it."""

from __future__ import annotations

import subprocess

from fleet import Load
from forge import git
from harness.ports import free_port, listens
from harness.processes import BERTH, Process
from harness.waiting import PATIENCE, until

USERS = {"ops": "ops", "ml": "ml", "broker": "controller", "worker": "worker"}

MODEL = '''import json

import numpy


def load(path):
    with open(path, encoding="utf-8") as file:
        weights = json.load(file)
    factors = numpy.full(3, weights["factor"])

    def predict(x):
        return {"y": float((factors * x).mean()), "version": weights["version"] + " numpy " + numpy.__version__}

    return predict
'''


class Host:
    """`berth registry serve` with a user of each role."""

    def __init__(self, folder):
        self.port, self.folder, self.tokens, users = free_port(), folder, {}, ""
        (folder / "repositories").mkdir(parents=True)
        for user, role in USERS.items():
            made = subprocess.run([BERTH, "registry", "token", user, "--role", role], capture_output=True, text=True, timeout=PATIENCE)
            assert made.returncode == 0, made.stderr
            self.tokens[user] = made.stderr.split()[-1]
            (folder / user).write_text(self.tokens[user])
            users += made.stdout
        (folder / "users.yaml").write_text(users)
        self.process = Process("host", folder)
        self.process.spawn(
            BERTH, "registry", "serve", "--listen", f"127.0.0.1:{self.port}", "--root", str(folder / "repositories"),
            "--create", "model-registry", "--create", "doubler-model", "--users", str(folder / "users.yaml"),
            "--git-token", f"broker@127.0.0.1={folder / 'broker'}", "--cache", str(folder / "cache"),
        )  # fmt: skip

    def answers(self) -> bool:
        assert self.process.runs(), f"the Git host ended:\n{self.process.logged()}"
        return listens(self.port)

    def url(self, name: str, user: str | None = None) -> str:
        who = f"{user}:{self.tokens[user]}@" if user else ""
        return f"http://{who}127.0.0.1:{self.port}/{name}.git"


def test_roles_packages_and_encrypted_tokens(world, tmp_path):
    host = Host(tmp_path / "host")
    try:
        until("the Git host", host.answers)
        model = world.model("doubler")
        model.write("src/model.py", MODEL)
        git(model.work, "remote", "set-url", "origin", host.url("doubler-model", "ml"))
        card = {"code.repository": host.url("doubler-model"), "runtime.dependencies": ["numpy==2.3.5"]}
        model.release("1.0.0", **card)

        keys = tmp_path / "keys"
        subprocess.run([BERTH, "secrets", "keygen", "--out", str(keys)], check=True, capture_output=True, timeout=PATIENCE)
        plain = (
            f"secrets:\n  models:\n    type: git_token\n    token: {host.tokens['worker']}\n    username: worker\n"
            f"    hosts: ['127.0.0.1:{host.port}']\n"
        )
        for worker in world.workers:
            place = world.registry.work / f"workers/secrets/{worker}-secrets.yaml"
            subprocess.run(
                [BERTH, "secrets", "encrypt", "--key", str(keys / "registry.pub"), "--worker", worker, "--out", str(place)],
                input=plain, check=True, capture_output=True, text=True, timeout=PATIENCE,
            )  # fmt: skip
        world.registry.deploy("doubler", model, "1.0.0", replicas=2)
        manifest = world.registry.read(world.registry.path("doubler"))
        manifest["model_card_ref"]["repository"] = host.url("doubler-model")
        world.registry.write(world.registry.path("doubler"), manifest)
        world.registry.commit("Deploy doubler 1.0.0")

        # Owners of models do not deploy: operations do.
        git(world.registry.work, "remote", "set-url", "origin", host.url("model-registry", "ml"))
        assert world.registry.push(check=False).returncode != 0
        git(world.registry.work, "remote", "set-url", "origin", host.url("model-registry", "ops"))
        world.registry.push()

        world.start(
            "--source", f"git={host.url('model-registry')}#main", "--source-user", "broker",
            "--source-token-file", str(host.folder / "broker"), "--registry-key", f"file:{keys / 'registry.key'}",
        )  # fmt: skip
        # An environment with packages takes a busy machine minutes.
        world.until_ready("doubler", "1.0.0", 2, 2 * PATIENCE)
        load = Load(world.fleet.nodes, "/v1/doubler", {"x": 1}, callers=2)
        load.until("1.0.0 numpy 2.3.5")

        # Another version with another package: each replica has the environment of its own card.
        card["runtime.dependencies"] = ["numpy==2.4.6"]
        model.release("1.1.0", **card)
        manifest["model_card_ref"]["ref"] = "v1.1.0"
        world.registry.write(world.registry.path("doubler"), manifest)
        world.registry.commit("Deploy doubler 1.1.0")
        world.registry.push()
        world.until_ready("doubler", "1.1.0", 2, 2 * PATIENCE)
        load.until("1.1.0 numpy 2.4.6")
        load.end()
        assert load.failed == []
        until("the actual state, written by the broker", lambda: git(
            world.registry.work, "ls-remote", host.url("model-registry", "ops"), "refs/heads/berth/actual-state"
        ).stdout)  # fmt: skip
    finally:
        host.process.close()
