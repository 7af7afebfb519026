"""Aliases of a registry: names that lead to deployments of the commit."""

from __future__ import annotations

import json

from harness.waiting import until


def alias(*targets: tuple[str, int]) -> dict:
    spec = {"targets": [{"deployment": name, "weight": weight} for name, weight in targets]}
    return {"apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": {"name": "numbers"}, "spec": spec}


def test_an_alias_comes_changes_and_goes_with_commits(world):
    model = world.model("doubler")
    model.release("1.0.0")
    for id in ("one", "two"):
        world.registry.deploy(id, model, "1.0.0")
    world.registry.write("aliases/numbers.yaml", alias(("one", 1)))
    world.push("Deploy two, and a name for one")
    fleet = world.start()
    world.until_ready("one", "1.0.0")

    def shares() -> dict[str, int]:
        listed = fleet.listed("aliases")
        return {target["deployment"]: target["share"] for one in listed for target in one["status"]["targets"]}

    until("the alias", lambda: shares() == {"one": 100})
    world.registry.write("aliases/numbers.yaml", alias(("one", 3), ("two", 1)))
    world.push("Lead a quarter to two")
    until("new shares", lambda: shares() == {"one": 75, "two": 25})
    world.registry.write("aliases/numbers.yaml", alias(("one", 1), ("tow", 1)))
    world.push("Misspell two")
    refused = until("the refusal", lambda: world.errors())
    assert "did you mean" in json.dumps(refused) and "aliases/numbers.yaml" in json.dumps(refused)
    assert shares() == {"one": 75, "two": 25}, "a commit that is refused changes nothing"
    (world.registry.work / "aliases/numbers.yaml").unlink()
    world.push("Drop the name")
    until("the alias is gone", lambda: not fleet.listed("aliases"))
