"""Aliases: one name for several deployments, by weight or by caller."""

import json
from collections import Counter

import pytest

from conftest import Load
from harness.examples import IRIS, manifest
from harness.waiting import until

grpc = pytest.importorskip("tritonclient.grpc")

import numpy  # noqa: E402  (comes with tritonclient)


def alias(name: str, *targets: tuple[str, int], **spec) -> dict:
    leads_to = [{"deployment": deployment, "weight": weight} for deployment, weight in targets]
    return {"apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": {"name": name}, "spec": {"targets": leads_to} | spec}


def asked(berth, name: str, headers: dict | None = None) -> str:
    """The deployment that answers."""
    status, found, body = berth.post(f"/v2/models/{name}/infer", IRIS, headers)
    assert status == 200, body
    assert json.loads(body)["model_name"] == name
    return found["berth-deployment"]


def test_weights_change_under_load_and_nothing_is_lost(berth):
    berth.start()
    berth.apply(manifest("iris-v1"), manifest("iris-v2", "iris-v2"), alias("iris", ("iris-v1", 90), ("iris-v2", 10)))
    berth.available("iris-v1", "iris-v2")
    ten = Counter(asked(berth, "iris") for _ in range(10))
    assert ten == {"iris-v1": 9, "iris-v2": 1}, ten
    with Load(berth, "iris", callers=8) as load:
        load.more(80)
        for weights in ((50, 50), (0, 100), (100, 0), (10, 90)):
            berth.apply(alias("iris", ("iris-v1", weights[0]), ("iris-v2", weights[1])))
            load.more(80)
    assert not load.failed, load.failed[:3]
    # An apply is in force when it returns.
    berth.apply(alias("iris", ("iris-v2", 1)))
    assert {asked(berth, "iris") for _ in range(20)} == {"iris-v2"}
    assert berth.metric("berth_gateway_alias_requests_total", alias="iris", deployment="iris-v2", result="ok") >= 20
    with grpc.InferenceServerClient(berth.http) as client:
        tensor = IRIS["inputs"][0]
        given = grpc.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
        given.set_data_from_numpy(numpy.array(tensor["data"], dtype=numpy.float32).reshape(tensor["shape"]))
        assert client.infer("iris", [given]).get_response().model_name == "iris"


def test_callers_keep_to_their_deployment_also_over_a_restart(berth):
    berth.start()
    both = alias("iris", ("iris-v1", 1), ("iris-v2", 1), sticky={"header": "x-user"})
    berth.apply(manifest("iris-v1"), manifest("iris-v2", "iris-v2"), both)
    berth.available("iris-v1", "iris-v2")
    users = [f"user-{number}" for number in range(40)]
    before = {user: asked(berth, "iris", {"x-user": user}) for user in users}
    assert set(before.values()) == {"iris-v1", "iris-v2"}
    berth.stop()
    berth.start()
    berth.available("iris-v1", "iris-v2")
    assert before == {user: asked(berth, "iris", {"x-user": user}) for user in users}
    # A deployment that goes moves its own callers alone, and the status says that it is missing.
    berth.run("delete", "deployment/iris-v2")
    until("its share to move", lambda: {asked(berth, "iris", {"x-user": user}) for user in users} == {"iris-v1"})
    berth.run("wait", "deployment/iris-v2", "--for=delete")
    status = json.loads(berth.run("get", "alias", "iris", "-o", "json"))["status"]
    assert status["missing"] == ["iris-v2"]
    assert [target["share"] for target in status["targets"]] == [100, 0]
    explained = berth.run("explain", "iris")
    assert "iris leads to iris-v1 (100% of its requests), iris-v2 (which is not declared)" in explained
    assert "One replica of iris-v1@" in explained
    assert [view["metadata"]["name"] for view in json.loads(berth.run("explain", "alias/iris", "-o", "json"))] == ["iris-v1"]


def test_an_alias_loads_what_it_leads_to_and_goes_without_it(berth):
    berth.start()
    berth.apply(manifest("cold", replicas={"min": 0}), alias("iris", ("cold", 1)))
    assert berth.status("cold")["phase"] == "ScaledDown"
    assert asked(berth, "iris") == "cold"
    berth.run("delete", "alias/iris")
    status, _, body = berth.post("/v2/models/iris/infer", IRIS)
    assert status == 404, body
    assert asked_directly(berth, "cold")


def asked_directly(berth, name: str) -> bool:
    return berth.infer(name)[0] == 200


def test_the_command_line_knows_aliases(berth, monkeypatch):
    berth.start()
    said = berth.apply(manifest("iris-v1"), alias("iris", ("iris-v1", 3), ("iris-v2", 1), sticky="client"))
    assert said.splitlines() == ["deployment/iris-v1 created", "alias/iris created"]
    assert "no deployment iris-v2" in berth.stderr
    berth.available("iris-v1")
    table = berth.run("get", "aliases", "-o", "wide")
    assert "iris-v1 100%, iris-v2 0%" in table and "client" in table, table
    described = berth.run("describe", "alias", "iris")
    assert "Missing" in described and "AliasChanged" in described, described
    again = berth.run("get", "alias", "iris", "-o", "yaml")
    assert "alias/iris" in berth.run("apply", "-f", "-", stdin=again)
    planned = berth.run("plan", "-f", "-", stdin=json.dumps(alias("other", ("iris-v1", 1))))
    assert "alias/other would be created" in planned
    assert '"title": "Alias"' in berth.run("schema", "alias")
    berth.run("apply", "-f", "-", stdin=json.dumps(manifest("iris")), code=None)
    assert "the name of an alias" in berth.stderr, berth.stderr
    berth.run("apply", "-f", "-", stdin=json.dumps(alias("iris-v1", ("iris", 1))), code=None)
    assert "the name of a deployment" in berth.stderr, berth.stderr
    for name, value in {"COMPLETE": "bash", "_CLAP_IFS": "\n", "_CLAP_COMPLETE_INDEX": "2"}.items():
        monkeypatch.setenv(name, value)
    until("both to be offered", lambda: sorted(berth.run("--", "berth", "delete", "ir").split()) == ["iris", "iris-v1"])


def test_a_folder_declares_aliases(berth, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    (models / "iris-v1.json").write_text(json.dumps(manifest("iris-v1")))
    (models / "alias.json").write_text(json.dumps(alias("iris", ("iris-v1", 1))))
    berth.start(models=models)
    berth.available("iris-v1")
    until("the alias to answer", lambda: berth.infer("iris")[0] == 200)
    (models / "alias.json").unlink()
    until("the alias to go", lambda: berth.infer("iris")[0] == 404)
    assert berth.infer("iris-v1")[0] == 200
