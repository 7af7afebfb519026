"""A commit that is not valid changes nothing: the hook refuses it, and where there is no hook nobody follows it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from forge import git
from harness.processes import BERTH
from harness.waiting import PATIENCE, until


def structure(world, model):
    shutil.rmtree(world.registry.work / "errors")


def manifest(world, model):
    world.registry.deploy("bad", model, "1.0.0", priority=101)


def unpinned(world, model):
    world.registry.deploy("bad", model, "1.0.0")
    change(world, "bad", lambda m: m["model_card_ref"].update(ref="main"))


def card_not_found(world, model):
    world.registry.deploy("bad", model, "9.9.9")


def card_invalid(world, model):
    model.release("2.0.0", **{"runtime.python_version": "three"})
    world.registry.deploy("bad", model, "2.0.0")


def incompatible(world, model):
    for worker in world.workers:
        world.registry.worker(worker, supported_schema_versions=["3.0.0"])
    model.release("3.0.0", **{"schemaVersion": "3.1.0"})
    world.registry.deploy("bad", model, "3.0.0")


def worker_config(world, model):
    world.registry.worker(world.workers[0], capacity={"max_memory": "lots"})


def change(world, id, how):
    path = world.registry.path(id)
    document = world.registry.read(path)
    how(document)
    world.registry.write(path, document)


# The repositories of these tests are folders.
VALIDATE = [BERTH, "registry", "validate", "--local-repositories"]

BAD = {
    "structure violation": structure,
    "invalid deployment manifest": manifest,
    "unpinned ref": unpinned,
    "model card not found": card_not_found,
    "invalid model card": card_invalid,
    "schema incompatibility": incompatible,
    "invalid worker config": worker_config,
}


def good(world):
    model = world.model("doubler")
    model.release("1.0.0")
    world.registry.deploy("doubler", model, "1.0.0")
    world.registry.commit("Deploy doubler")
    return model


@pytest.mark.parametrize("outcome", BAD)
def test_the_hook_refuses_and_keeps_nothing(world, hook, outcome):
    model = good(world)
    hook(world.registry.bare)
    world.registry.push()
    before, tip = world.registry.objects(), git(world.registry.bare, "rev-parse", "main").stdout
    BAD[outcome](world, model)
    world.registry.commit("Something is wrong with this")
    refused = world.registry.push(check=False)
    assert refused.returncode != 0 and "pre-receive hook declined" in refused.stderr, refused.stderr
    assert outcome in refused.stderr, f"the report names the outcome: {refused.stderr}"
    assert (world.registry.objects(), git(world.registry.bare, "rev-parse", "main").stdout) == (before, tip)
    # The same is seen before pushing.
    local = subprocess.run(
        [*VALIDATE, str(world.registry.work), "-o", "json"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert local.returncode == 1, local.stdout + local.stderr
    assert json.loads(local.stdout)["outcome"] == outcome.replace(" ", "_")


def test_good_commits_pass_all_of_it(world, hook):
    good(world)
    hook(world.registry.bare)
    world.registry.push()
    for form in ("json", "sarif", "junit"):
        done = subprocess.run(
            [*VALIDATE, str(world.registry.work), "-o", form], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_fleet_stays_with_the_last_good_commit(world):
    model = good(world)
    world.registry.push()
    last = git(world.registry.work, "rev-parse", "HEAD").stdout.strip()
    world.start()
    world.until_ready("doubler", "1.0.0")
    for outcome, spoil in BAD.items():
        spoil(world, model)
        bad = world.registry.commit(f"A {outcome}")
        world.registry.push()
        until(f"{outcome} is told", lambda: told(world, outcome, bad))
        # Of a leader that has only just begun nothing is known yet.
        until(lambda: f"{last} stays in force: {world.source()}", lambda: world.source()["applied"] == last)
        assert world.fleet.nodes[0].ask("/v1/doubler", {"x": 2}) == (200, {"y": 4, "version": "1.0.0"})
        world.until_ready("doubler", "1.0.0")
        git(world.registry.work, "reset", "--quiet", "--hard", last)
        # People mend a bad commit by another one; here the history is rewritten, which the source takes note of.
        world.registry.push(force=True)
    model.release("1.1.0")
    world.registry.deploy("doubler", model, "1.1.0")
    world.push("All is well again")
    world.until_ready("doubler", "1.1.0")
    until(lambda: f"the problem is over: {world.source()}", lambda: not world.source()["problem"])


def told(world, outcome: str, commit: str) -> bool:
    """The error file of this commit, on the broker's own branch, says what is wrong."""
    words = (outcome, outcome.replace(" ", "_"))
    texts = [json.dumps(error) for error in world.errors()]
    return any(commit in text and any(word in text for word in words) for text in texts)


def test_an_empty_registry_does_not_empty_the_fleet(world):
    good(world)
    world.registry.push()
    world.start()
    world.until_ready("doubler", "1.0.0")
    (world.registry.work / world.registry.path("doubler")).unlink()
    world.push("Oh no, everything is gone")
    until("it is told", lambda: world.source()["problem"])
    world.until_ready("doubler", "1.0.0")


def test_a_moved_tag_is_refused(world):
    model = good(world)
    world.registry.push()
    world.start()
    world.until_ready("doubler", "1.0.0")
    model.write("src/postprocessing.py", "def write(output, config):\n    return {}\n")
    model.commit("Quietly another 1.0.0", "v1.0.0")
    git(model.work, "push", "--quiet", "--force", "--tags", "origin", "main")
    world.registry.deploy("doubler", model, "1.0.0", priority=60)
    world.push("Only the priority")
    until("it is told", lambda: "moved" in (world.source()["problem"] or "") or "moved" in json.dumps(world.errors()))
    assert world.fleet.nodes[0].ask("/v1/doubler", {"x": 2})[1]["y"] == 4
