"""Commands that people type every day, against a real server."""

import json
import os
import shutil
from pathlib import Path

import pytest

from harness.examples import ARTIFACTS, manifest
from harness.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fleet(berth):
    """A server with two models and a name for one of them."""
    berth.start()
    alias = {"apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": {"name": "flowers"}, "spec": {"targets": [{"deployment": "iris"}]}}
    berth.apply(manifest("iris"), manifest("local"), alias)
    berth.available("iris", "local")
    return berth


def test_a_name_is_enough_and_a_kind_tells_namesakes_apart(fleet):
    for words in (["iris"], ["m/iris"], ["deploy/iris"], ["model", "iris"], ["models", "iris"]):
        assert "Available" in fleet.run("get", *words), words
    assert "iris 100%" in fleet.run("get", "flowers")
    assert "iris 100%" in fleet.run("get", "al/flowers")
    both = fleet.run("get", "iris", "flowers")
    assert "PHASE" in both and "TARGETS" in both
    fleet.run("get", "local", code=2)
    assert "deployment/local or node/local" in fleet.stderr, "the node has that name, too"
    assert "leader" in fleet.run("get", "node/local")
    fleet.run("get", "irsi", code=3)
    assert "did you mean deployment/iris?" in fleet.stderr
    fleet.run("describe", "deployment", code=2)
    assert "deployment/deployment" in fleet.stderr
    fleet.run("delete", "flowers")
    fleet.run("delete", "flowers", code=3)


def test_several_kinds_are_listed_at_once(fleet):
    both = fleet.run("get", "deployments,nodes")
    assert "PHASE" in both and "ROLES" in both
    assert fleet.run("get", "no,deploy", "-o", "name").split() == ["node/local", "deployment/iris", "deployment/local"]
    kinds = [item["kind"] for item in json.loads(fleet.run("get", "deployments,nodes,aliases", "-A", "-o", "json"))["items"]]
    assert kinds == ["ModelDeployment", "ModelDeployment", "Node", "Alias"]
    documents = fleet.run("get", "nodes,aliases", "-o", "yaml").split("---\n")[1:]
    assert [document.partition("kind: ")[2].split()[0] for document in documents] == ["Node", "Alias"]
    assert fleet.run("get", "deployments,nodes", "-n", "team", "-o", "name").split() == ["node/local"]
    assert "CPU" in fleet.run("get", "nodes,workers", "-o", "wide")
    fleet.run("get", "deployments,nodes", "iris", code=2)
    assert "write KIND/NAME" in fleet.stderr


def test_slips_are_understood(fleet):
    for words, code, says in (
        (["scael", "iris"], 2, "'scale'"),
        (["get", "depolyments"], 3, "did you mean deployments?"),
        (["get", "depolyment/iris"], 3, "did you mean deployment/iris?"),
        (["get", "deployments,ndoes"], 2, "did you mean nodes?"),
        (["get", "iris", "--api", f"http://{fleet.http}"], 1, "is no control API"),
        (["logs", "flowers"], 3, "that is an alias, `berth describe alias/flowers` shows it"),
        (["scale", "flowers", "--replicas", "1"], 3, "that is an alias, `berth describe alias/flowers` shows it"),
    ):
        fleet.run(*words, code=code)
        assert says in fleet.stderr, words


def test_describe_shows_a_request_that_works(fleet):
    described = fleet.run("describe", "iris")
    line = next(line for line in described.splitlines() if "| berth infer iris" in line)
    request = line.strip().removeprefix("printf '%s\\n' '").split("' | ")[0]
    assert "label" in fleet.run("infer", "iris", stdin=request)
    assert "Inputs" in described and "Outputs" in described


def test_scale_edit_and_history(fleet):
    fleet.run("scale", "iris", "--min", "0", "--max", "2")
    assert fleet.deployment("iris")["spec"]["replicas"] == {"min": 0, "max": 2}
    fleet.run("scale", "iris", code=2)
    os.environ["EDITOR"] = "sed -i 's/max: 2/max: 3/'"
    try:
        assert "configured" in fleet.run("edit", "iris")
        assert "nothing changed" in fleet.run("edit", "iris")
    finally:
        del os.environ["EDITOR"]
    assert fleet.deployment("iris")["spec"]["replicas"] == {"min": 0, "max": 3}
    assert not list(Path("/dev/shm").glob("berth-edit-*"))
    history = json.loads(fleet.run("rollout", "history", "iris", "-o", "json"))["items"]
    assert [past["generation"] for past in history] == [2, 1]
    assert "replicas.max: 2 → 3" in fleet.run("rollout", "history", "iris")
    fleet.run("rollout", "undo", "iris", "--to-generation", "1")
    assert fleet.deployment("iris")["spec"]["replicas"] == 1
    fleet.run("rollout", "undo", "iris", "--to-generation", "77", code=3)
    fleet.run("delete", "iris")
    fleet.run("wait", "iris", "--for=delete")
    fleet.apply(manifest("iris"))
    assert json.loads(fleet.run("rollout", "history", "iris", "-o", "json"))["items"] == [], "its past is gone with it"


def test_a_restart_makes_fresh_replicas_before_the_old_ones_go(fleet):
    before = fleet.status("iris")["revision"]["serving"]
    fleet.run("rollout", "restart", "iris")
    fleet.run("rollout", "status", "iris")
    after = fleet.status("iris")["revision"]["serving"]
    assert before != after
    assert fleet.infer("iris")[0] == 200


def test_an_end_that_is_final_ends_the_wait(fleet, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    fleet.apply(manifest("iris", model={"uri": f"file:{broken}"}))
    for waiting in (["wait", "iris", "--timeout=300s"], ["rollout", "status", "iris"]):
        fleet.run(*waiting, code=1)
        assert "was given up" in fleet.stderr or "cannot" in fleet.stderr or "not" in fleet.stderr, fleet.stderr
        assert "describe iris" in fleet.stderr
    logs = fleet.run("logs", "iris", "--tail", "50")
    assert "cannot be loaded" in logs and "loaded in" in logs
    lines = [json.loads(line) for line in fleet.run("logs", "iris", "-o", "json").splitlines()]
    assert {line["node"] for line in lines} == {"local"}
    assert [line["number"] for line in lines] == sorted(line["number"] for line in lines)
    fleet.run("rollout", "undo", "iris")
    fleet.run("rollout", "status", "iris")


def test_a_rollout_that_finds_no_worker_says_what_it_waits_for(fleet):
    fleet.apply(manifest("iris", replicas=2))
    fleet.run("rollout", "status", "iris", "--timeout", "10s", code=5)
    cause = "1 of 2 replicas answer; each worker holds at most one replica of a deployment, and there is 1 worker"
    assert f"deployment/iris waits: it is Degraded, {cause}" in fleet.stderr, fleet.stderr
    assert f"deployment/iris is not rolled out after 10s; it is Degraded: {cause}" in fleet.stderr, fleet.stderr
    fleet.apply(manifest("iris"))
    fleet.run("rollout", "status", "iris")
    assert fleet.stderr == ""


def test_diff_and_plan_tell_each_field_and_exit_as_scripts_want(fleet):
    same = json.dumps(manifest("iris"))
    assert fleet.run("diff", "-f", "-", "--detailed-exitcode", stdin=same) == ""
    fleet.run("plan", "-f", "-", "--detailed-exitcode", stdin=same)
    other = json.dumps(manifest("iris", priority=80))
    for command in ("diff", "plan"):
        told = fleet.run(command, "-f", "-", "--detailed-exitcode", stdin=other, code=2)
        assert "spec.priority: + 80" in told, told
        fleet.run(command, "-f", "-", stdin=other)
        fleet.run(command, "-f", "/nowhere", "--detailed-exitcode", code=1)


def test_what_get_prints_can_be_applied_from_every_folder(berth, tmp_path, monkeypatch):
    """Each example stays as it is, whatever folder its manifest comes back from."""
    berth.start()
    (tmp_path / "elsewhere").mkdir()
    for folder in ("models", "update", "cluster"):
        for example in sorted((ROOT / "examples" / folder).glob("*.yaml")):
            copy = tmp_path / folder / example.name
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(example, copy)
            berth.run("apply", "-f", str(copy))
            monkeypatch.chdir(tmp_path / "elsewhere")
            again = berth.run("apply", "-f", f"../{folder}/{example.name}")
            assert all(line.endswith(" unchanged") for line in again.splitlines()), again
            declared = json.loads(berth.run("get", "models", "-o", "json"))["items"]
            assert declared
            for one in declared:
                name = one["metadata"]["name"]
                for place in (tmp_path, ROOT, Path("/")):
                    monkeypatch.chdir(place)
                    printed = berth.run("get", name, "-o", "yaml")
                    # A version of its own would make a second apply fail where anything else has changed meanwhile.
                    assert berth.run("apply", "-f", "-", stdin=printed).strip() == f"deployment/{name} unchanged", example
                    assert berth.run("diff", "-f", "-", stdin=printed) == ""
                monkeypatch.chdir(ROOT)
                berth.run("delete", name)
    for example in ("iris", "sentiment"):
        berth.run("apply", "-f", str(tmp_path / f"models/{example}.yaml"))
    every = berth.run("get", "models", "-o", "yaml")
    assert berth.run("apply", "-f", "-", stdin=every).splitlines() == ["deployment/iris unchanged", "deployment/sentiment unchanged"]


def test_all_that_is_declared_can_be_applied_again_in_every_form(fleet):
    other = manifest("iris")
    other["metadata"]["namespace"] = "team"
    fleet.apply(other)
    same = {f"{each} unchanged" for each in ("deployment/iris", "deployment/local", "deployment/team/iris", "alias/flowers")}
    printed = {form: fleet.run("get", "all", "-A", "-o", form) for form in ("json", "yaml")}
    listed = json.loads(printed["json"])["items"]
    for text in (*printed.values(), json.dumps(listed), json.dumps({"items": listed}), "\n---\n".join(map(json.dumps, listed))):
        assert set(fleet.run("apply", "-f", "-", stdin=text).splitlines()) == same, text[:200]
    both = fleet.run("get", "iris", "flowers", "-o", "json")
    assert [one["kind"] for one in json.loads(both)["items"]] == ["ModelDeployment", "Alias"]
    models = fleet.run("get", "models", "-A", "-o", "json")
    assert len(fleet.run("apply", "-f", "-", stdin=models).splitlines()) == 3
    listed[1]["spec"]["priority"] = "high"
    fleet.run("apply", "-f", "-", stdin=json.dumps(listed), code=4)
    assert "[1].spec.priority" in fleet.stderr and listed[1]["metadata"]["name"] in fleet.stderr, fleet.stderr


def test_what_a_folder_declares_can_be_compared(berth, tmp_path):
    """It cannot be changed from here, which `apply` says."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models/iris.yaml").write_text(json.dumps(manifest("iris")))
    berth.start(models=tmp_path / "models")
    berth.available("iris")
    assert berth.run("diff", "-f", "-", "--detailed-exitcode", stdin=json.dumps(manifest("iris"))) == ""
    other = json.dumps(manifest("iris", priority=80))
    assert "spec.priority" in berth.run("diff", "-f", "-", "--detailed-exitcode", stdin=other, code=2)
    berth.run("apply", "-f", "-", stdin=other, code=1)


def test_a_source_says_which_of_its_deployments_do_not_get_on(berth, tmp_path):
    """It is in force, and the new revision of one of its models was given up."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "iris.yaml").write_text(json.dumps(manifest("iris")))
    berth.start(models=folder)
    berth.available("iris")

    def stuck() -> dict:
        (source,) = json.loads(berth.run("get", "sources", "-o", "json"))["items"]
        return source["status"]["stuck"]

    assert stuck() == {"count": 0}
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    (folder / "iris.yaml").write_text(json.dumps(manifest("iris", model={"uri": f"file:{tmp_path}/broken.onnx"})))
    until("the new revision to be given up", lambda: stuck() == {"count": 1, "first": ["iris: RolloutStuck"]})
    header, row = berth.run("get", "sources").splitlines()[:2]
    assert row.split()[header.split().index("STUCK")] == "1", (header, row)
    assert "iris: RolloutStuck" in berth.run("source", "describe")
    (folder / "iris.yaml").write_text(json.dumps(manifest("iris")))
    until("the source to be well", lambda: stuck() == {"count": 0})


def test_logs_are_followed(fleet):
    import subprocess

    env = os.environ | {"BERTH_API": f"http://{fleet.api}", "BERTH_HTTP": f"http://{fleet.http}"}
    following = subprocess.Popen([fleet_binary(), "logs", "iris", "-f"], stdout=subprocess.PIPE, text=True, env=env)
    try:
        fleet.run("rollout", "restart", "iris")
        fleet.run("rollout", "status", "iris")
        until("the line of the reload", lambda: "new version" in following.stdout.readline())
    finally:
        following.kill()


def fleet_binary() -> str:
    from harness.server import BERTH

    return str(BERTH)


def test_small_numbers_without_a_unit_are_refused(fleet):
    fleet.run("apply", "-f", "-", stdin=json.dumps(manifest("small", resources={"memory": 512})), code=4)
    assert "512MiB" in fleet.stderr and "512B" in fleet.stderr
    fleet.run("up", "--memory", "8", code=2)
    assert "8GiB" in fleet.stderr
    assert ARTIFACTS.exists()
