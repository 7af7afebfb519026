"""Functions of a registry: commits declare them, change them and remove them, with their code in a repository of its own."""

from __future__ import annotations

import json

import pytest

from conftest import WORKERS
from forge import Repository
from harness.functions import BUILD, WORDS, ask
from harness.server import Berth
from harness.waiting import until

FILE = "functions/text/words.yaml"


def words(uri: str) -> dict:
    target, probe = {"platform": "local"}, {"text": "a b"}
    spec = {"type": "python", "sourceUri": uri, "entrypoint": "handler.predict", "target": target, "probe": probe}
    return {"apiVersion": "berth.dev/v1", "kind": "Function", "metadata": {"name": "words"}, "spec": spec}


@pytest.fixture
def berth(tmp_path):
    berth = Berth(tmp_path / "up")
    yield berth
    berth.close()


def test_a_function_comes_changes_and_goes_with_commits(world, berth, tmp_path):
    code, registry = Repository(tmp_path, "code"), world.registry

    def released(version: int) -> str:
        code.write("handler.py", WORDS % version)
        return f"git+file://{code.work}@{code.commit(f'Release {version}')}"

    def answers(version: int) -> bool:
        return ask(berth, "words", {"text": "a b c"}) == (200, {"version": version, "words": 3})

    def refused() -> bool:
        sources = json.loads(berth.control("/v1/sources")[2])["items"]
        return any(source["status"].get("refused") for source in sources)

    registry.write(FILE, words(released(1)))
    world.push("Declare words")
    berth.start("--name", WORKERS[0], "--source", f"git={registry.url}#main", "--source-interval", "1s", "--local-repositories")
    until("the function to answer", lambda: answers(1), BUILD)
    registry.write(FILE, words(released(2)))
    world.push("Change its code")
    until("the next version", lambda: answers(2), BUILD)

    # Nobody takes it from the registry by accident.
    berth.run("delete", "function/words", code=1)
    assert "belongs to" in berth.stderr
    # A commit that is refused changes nothing; the next one goes on from there.
    broken = words(released(3))
    del broken["spec"]["entrypoint"]
    registry.write(FILE, broken)
    world.push("Forget its entrypoint")
    until("the refusal", refused)
    assert answers(2)
    (registry.work / FILE).unlink()
    world.push("Remove it")
    until("the function to go", lambda: ask(berth, "words", {"text": "a"})[0] == 404)
    until("the list to be empty", lambda: berth.run("get", "functions", "-o", "name", code=None) == "")
