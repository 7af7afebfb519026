"""Names with a namespace and any characters, over REST, gRPC and the command line."""

import json
from urllib.parse import quote

import pytest

from harness.examples import IRIS, manifest

grpc = pytest.importorskip("tritonclient.grpc")

import numpy  # noqa: E402  (comes with tritonclient)

NAMES = ["MyModel", "a model", "a/b", "é" * 253, "%2F@ü/ x", "模型"]


def named(name: str, namespace: str | None = None, artifact: str | None = None) -> dict:
    document = manifest("iris", artifact) if artifact else manifest("iris")
    document["metadata"]["name"] = name
    if namespace:
        document["metadata"]["namespace"] = namespace
    return document


def path(name: str, namespace: str | None = None) -> str:
    prefix = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}/v2/models/{quote(name, safe='')}"


def over_grpc(berth, name: str, namespace: str | None = None) -> str:
    """The version that answers."""
    with grpc.InferenceServerClient(berth.http) as client:
        tensor = IRIS["inputs"][0]
        data = numpy.array(tensor["data"], dtype=numpy.float32).reshape(tensor["shape"])
        given = grpc.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
        given.set_data_from_numpy(data)
        headers = {"berth-namespace": namespace} if namespace else None
        answer = client.infer(name, [given], headers=headers).get_response()
        assert answer.model_name == name
        return answer.model_version


def test_names_of_any_kind_answer_over_rest_grpc_and_the_command_line(berth, tmp_path):
    berth.start()
    berth.apply(*(named(name) for name in NAMES))
    request = tmp_path / "iris.json"
    request.write_text(json.dumps(IRIS))
    for name in NAMES:
        written = f"default/{name}" if "/" in name else name
        berth.run("wait", "deployment", name, "-n", "default", "--for=Available", "--timeout=60s")
        status, _, body = berth.post(path(name) + "/infer", IRIS)
        assert status == 200, (name, body)
        assert json.loads(body)["model_name"] == name
        over_grpc(berth, name)
        berth.run("infer", written, "-f", str(request))
        berth.run("infer", name, "-n", "default", "-f", str(request), "--grpc")
        found = json.loads(berth.run("get", "deployment", name, "-n", "default", "-o", "json"))
        assert (found["metadata"]["name"], found["metadata"]["namespace"]) == (name, "default")
        assert written in berth.run("get", "deployments", "-o", "name")
        listed = [line.split("  ")[0] for line in berth.run("get", "deployments").splitlines()[1:]]
        assert written in listed, "what is shown can be typed"
        inside = [line.split("  ")[0] for line in berth.run("get", "deployments", "-n", "default").splitlines()[1:]]
        assert name in inside, "with -n the name is whole"
        assert berth.run("explain", written) and berth.run("describe", "deployment", written)
        assert berth.metric("berth_gateway_requests_total", deployment=name, namespace="default") >= 2, name


def test_two_namespaces_hold_one_name_and_a_restart_keeps_both(berth):
    berth.start()
    berth.apply(named("iris"), named("iris", "team", "iris-v2"))
    for namespace in ("default", "team"):
        berth.run("wait", "deployment/iris", "-n", namespace, "--for=Available", "--timeout=60s")

    def versions() -> dict:
        found = {}
        for namespace in (None, "team"):
            status, _, body = berth.post(path("iris", namespace) + "/infer", IRIS)
            assert status == 200, body
            found[namespace] = json.loads(body)["model_version"]
            assert over_grpc(berth, "iris", namespace) == found[namespace]
        by_header = berth.post(path("iris") + "/infer", IRIS, {"berth-namespace": "team"})
        assert json.loads(by_header[2])["model_version"] == found["team"]
        return found

    before = versions()
    assert before[None] != before["team"]
    assert "team" not in berth.run("get", "deployments")
    everywhere = berth.run("get", "deployments", "-A")
    assert "NAMESPACE" in everywhere and "team" in everywhere
    assert berth.run("get", "deployments", "-A", "-o", "name").split() == ["deployment/iris", "deployment/team/iris"]
    for unknown in ("nobody", "No-Namespace"):
        assert berth.post(path("iris", unknown) + "/infer", IRIS)[0] == 404

    berth.close()
    berth.start()
    for namespace in ("default", "team"):
        berth.run("wait", "deployment/iris", "-n", namespace, "--for=Available", "--timeout=60s")
    assert versions() == before

    berth.run("delete", "deployment", "iris", "-n", "team")
    berth.run("wait", "deployment/iris", "-n", "team", "--for=delete")
    assert berth.post(path("iris", "team") + "/infer", IRIS)[0] == 404
    assert berth.post(path("iris") + "/infer", IRIS)[0] == 200


def test_what_is_no_name_is_refused_with_a_reason(berth):
    berth.start()
    for name, says in (("a\tb", "invisible"), (" a", "white space"), ("x" * 254, "253"), ("..", "another name")):
        berth.run("apply", "-f", "-", stdin=json.dumps(named(name)), code=4)
        assert says in berth.stderr, (name, berth.stderr)
    berth.run("apply", "-f", "-", "-n", "Team", stdin=json.dumps(named("iris")), code=2)
    assert "lower-case" in berth.stderr
