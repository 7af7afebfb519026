"""A hook announces pushes: an emergency stop does not wait for the next poll, which here comes an hour later."""

from __future__ import annotations

import subprocess

import pytest

from conftest import WORKERS
from harness.processes import BERTH
from harness.server import Berth
from harness.waiting import PATIENCE, until

SECRET = "the secret of the webhook"


@pytest.mark.parametrize("auth", ["off", "tokens"])
def test_an_emergency_stop_is_announced(world, tmp_path, auth):
    model = world.model("doubler")
    model.release("1.0.0")
    world.registry.deploy("doubler", model, "1.0.0")
    world.push("Deploy doubler 1.0.0")
    # Nothing but the push below may lead to a poll, so the server writes no actual state.
    berth = Berth(tmp_path / "up")
    arguments = ["--name", WORKERS[0], "--source", f"git={world.registry.url}#main", "--source-interval", "1h", "--auth", auth]
    announce = ["--announce", f"http://{berth.api}"]
    if auth == "tokens":
        (tmp_path / "secret").write_text(SECRET)
        arguments += ["--webhook-secret-file", str(tmp_path / "secret")]
        announce += ["--announce-secret", str(tmp_path / "secret")]
    try:
        berth.start(*arguments, "--write-back", "off")
        headers = {}
        if auth == "tokens":
            token = berth.data / "admin.token"
            until("the admin's token", lambda: token.exists() and token.read_text().strip())
            headers = {"authorization": f"Bearer {token.read_text().strip()}"}

        def status() -> int:
            return berth.post("/v1/doubler", {"x": 1}, headers)[0]

        until(lambda: f"doubler to answer; it says {status()}", lambda: status() == 200)

        install = [BERTH, "registry", "hook", "install", "--local-repositories", *announce, str(world.registry.bare)]
        subprocess.run(install, check=True, capture_output=True, timeout=PATIENCE)
        world.registry.deploy("doubler", model, "1.0.0", enabled=False)
        world.registry.commit("EMERGENCY: disable doubler")
        pushed = world.registry.push()
        assert f"told http://{berth.api} to look now" in pushed.stderr, pushed.stderr
        until(lambda: f"doubler to be stopped; it says {status()}", lambda: status() == 503)

        # Who lacks the secret is told so, and the push stands.
        if auth == "tokens":
            (tmp_path / "secret").write_text("another")
            world.registry.deploy("doubler", model, "1.0.0")
            world.registry.commit("Enable doubler")
            refused = world.registry.push()
            assert "no server was told" in refused.stderr and "secret" in refused.stderr, refused.stderr
            assert status() == 503
    finally:
        berth.close()
