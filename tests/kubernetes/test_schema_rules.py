"""Rules in the schemas of the custom resources, checked by the code of an API server of today: the one of these tests knows none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.documents import documents

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "packaging/kubernetes/chart/templates/custom-resources.yaml"
HTTP = {"name": "http", "port": 8080}
FLEET = {"model": {"format": "onnx", "uri": "s3://models/iris.onnx"}}


@pytest.fixture(scope="module")
def program():
    """The checker, which `cargo xtask test --kubernetes` builds."""
    program = os.environ.get("SCHEMA_RULES")
    if not program:
        reason = "the checker was not built: `cargo xtask test --kubernetes` says why"
        print(f"tests/kubernetes/test_schema_rules.py is skipped: {reason}", file=sys.__stderr__)
        pytest.skip(reason)
    return program


def definitions() -> list[dict]:
    """Those of the chart, as Helm makes them for a cluster that knows rules."""
    lines = [line for line in CHART.read_text().splitlines() if not line.startswith("{{-")]
    return documents(re.sub(r"{{.*?}}", "berth", "\n".join(lines)))


def container(*ports: dict) -> dict:
    return {"image": "i", "ports": list(ports or [HTTP])}


def parameters(name: str = "weights") -> list[dict]:
    return [{"name": name, "uri": "s3://models/iris/", "mountPath": "/models"}]


# What is said, of a model, over what it was, under which name.
CASES = [
    ("", {"container": container(), "replicas": 2, "parameters": parameters()}, None, "iris"),
    ("a name comes twice", {"container": container(HTTP, HTTP | {"port": 8081})}, None, "iris"),
    ("a port comes twice", {"container": container(HTTP, {"name": "grpc", "port": 8080})}, None, "iris"),
    ("a servicePort comes twice", {"container": container(HTTP | {"servicePort": 80}, {"name": "grpc", "port": 80})}, None, "iris"),
    ("leave out replicas, or autoscaling", {"container": container(), "replicas": 1, "autoscaling": {"maxReplicas": 3}}, None, "iris"),
    ("", {"container": container(), "autoscaling": {"minReplicas": 1, "maxReplicas": 3}}, None, "iris"),
    ("minReplicas is more than maxReplicas", {"container": container(), "autoscaling": {"minReplicas": 5, "maxReplicas": 3}}, None, "iris"),
    # What an API server leaves behind of fields that were taken out.
    ("", {"container": container(), "replicas": 1, "autoscaling": {}}, None, "iris"),
    ("", {"container": container(), "replicas": 1, "autoscaling": {"behavior": None}, "fleet": None}, None, "iris"),
    ("", {"container": container()}, {"container": container(), "fleet": None}, "iris"),
    ("write container, or fleet", {}, None, "iris"),
    ("write container, or fleet", {"fleet": None}, None, "iris"),
    ("", {"fleet": FLEET}, None, "iris"),
    ("has no pods of its own", {"fleet": FLEET, "container": container()}, None, "iris"),
    ("has no pods of its own", {"fleet": FLEET, "replicas": 2}, None, "iris"),
    ("has no pods of its own", {"fleet": FLEET, "executor": {"enabled": False}}, None, "iris"),
    ("has no pods of its own", {"fleet": FLEET, "inferencePool": {"port": "http"}}, None, "iris"),
    ("has no pods of its own", {"fleet": FLEET, "parameters": parameters()}, None, "iris"),
    ("has no pods of its own", {"fleet": FLEET, "autoscaling": {"maxReplicas": 2}}, None, "iris"),
    ("", {"fleet": FLEET, "parameters": [], "autoscaling": {}}, None, "iris"),
    ("cannot change between pods and a fleet", {"fleet": FLEET}, {"container": container()}, "iris"),
    ("cannot change between pods and a fleet", {"container": container()}, {"fleet": FLEET}, "iris"),
    ("", {"fleet": FLEET | {"replicas": 2}}, {"fleet": FLEET}, "iris"),
    ("", {"container": container()}, None, "i" * 63),
    ("it names a Service", {"container": container()}, None, "i" * 64),
    ("it names a Service", {"container": container()}, None, "1iris"),
    ("it names a Service", {"container": container()}, None, "iris.v1"),
]


# What is said of an AsyncAPI of the port http of iris, under which name.
NAMES = [("", "iris.http"), ("it is MODEL.PORT", "iris"), ("it is MODEL.PORT", "other.http")]


def api(name: str) -> dict:
    spec = {"model": "iris", "port": "http", "servicePort": 80, "paths": ["/a"], "always": False, "prefix": "/jobs", "queue": {"kind": "Memory"},
            "callbacks": []}
    return {"apiVersion": "berth.dev/v1", "kind": "AsyncAPI", "metadata": {"name": name}, "spec": spec}


def written(kind: str, name: str, model: dict | None) -> dict | None:
    spec = {"model": model} if kind == "CLOpsDeployment" else model
    return None if model is None else {"apiVersion": "berth.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def test_the_schema_refuses_what_cannot_work_while_no_operator_runs(program):
    asked = [(kind, *case) for kind in ("CLOpsDeployment", "ModelDeployment") for case in CASES]
    objects = [{"kind": kind, "new": written(kind, name, model), "old": written(kind, name, old)} for kind, _, model, old, name in asked]
    asked += [("AsyncAPI", expected, None, None, name) for expected, name in NAMES]
    objects += [{"kind": "AsyncAPI", "new": api(name), "old": None} for _, name in NAMES]
    question = json.dumps({"definitions": definitions(), "objects": objects})
    answer = json.loads(subprocess.run([program], input=question, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert answer["definitions"] == [], "the API server would not take them: a rule that is wrong, or costs too much"
    for (kind, expected, model, _, name), said in zip(asked, answer["objects"], strict=True):
        assert (expected in said) if expected else not said, (kind, name, model, said)
