"""From one operator to the next: nothing changes by itself, and what somebody asks for moves in waves.

The next one is this one with another image. BERTH_BEFORE names a `berth` of an earlier commit for the first one.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from conftest import Operator
from harness.processes import BERTH
from harness.waiting import until
from models import NO_CONTROLLER, clops, condition, exists, pods_are_ready, settled

OLD, NEW = "registry.example/berth:1", "registry.example/berth:2"
BEFORE = os.environ.get("BERTH_BEFORE", BERTH)

# Fields of a model that are there or not, each by a bit of its number.
POD = {
    "parameters": [{"name": "weights", "uri": "s3://models/iris/1/", "mountPath": "/models", "credentialsSecret": "store"},
                   {"name": "words", "uri": "https://example.com/words.txt", "mountPath": "/words"}],
    "nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "gpu", "operator": "Exists"}], "annotations": {"note": "kept"},
    "terminationGracePeriodSeconds": 60,
}
CONTAINER = {
    "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}, "limits": {"memory": "2Gi"}},
    "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}}, "env": [{"name": "THREADS", "value": "2"}],
}


def shape(namespace: str, number: int) -> dict:
    fields = [*POD, *CONTAINER]
    chosen = [field for bit, field in enumerate(fields) if number >> bit & 1]
    container = {"image": "registry.example/iris:1", "ports": [{"name": "http", "port": 8080}]}
    container |= {field: CONTAINER[field] for field in chosen if field in CONTAINER}
    pod = {field: POD[field] for field in chosen if field in POD}
    parameters = {"parameters": pod.pop("parameters")} if "parameters" in pod else {}
    return clops(namespace, f"model-{number}", container=container, pod=pod, **parameters)


def specs(plane, namespace: str) -> dict[str, tuple[str, int]]:
    """Pod templates byte for byte, and how often anything in the spec was changed."""
    objects = plane.get("deployment", namespace)["items"]
    return {one["metadata"]["name"]: (json.dumps(one["spec"]["template"]), one["metadata"]["generation"]) for one in objects}


def plan(plane, *words: str, fails: bool = False) -> subprocess.CompletedProcess:
    environment = {"KUBECONFIG": str(plane.kubeconfig), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([BERTH, "operator", "plan-upgrade", "--image", NEW, *words], capture_output=True, text=True, env=environment, timeout=300)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done


@pytest.fixture
def next_operator(plane, tmp_path):
    """Makes the models with an operator, ends it, and starts the next one."""
    operators = []

    def replace(*models: dict) -> Operator:
        first = Operator(tmp_path, plane, "old").start(image=OLD, program=BEFORE)
        operators.append(first)
        namespace = models[0]["metadata"]["namespace"]
        plane.create(f"apis/berth.dev/v1/namespaces/{namespace}/clopsdeployments", *models)

        # A list of many objects costs the API server more than a change of one.
        until("the models", lambda: first.is_idle() and settled(plane, namespace), patience=120)
        assert first.stop() == 0
        second = Operator(tmp_path, plane, "new")
        operators.append(second)
        return second

    yield replace
    for operator in operators:
        # One that ends by itself lets the next one lead at once.
        if operator.runs():
            operator.stop()
        operator.close()


@pytest.mark.many
def test_a_next_operator_changes_no_pod_template_of_200_models(plane, next_operator, namespace):
    second = next_operator(*(shape(namespace, number) for number in range(56, 256)))
    before, writes = specs(plane, namespace), plane.writes("berth-operator", namespace)
    second.start(image=NEW)
    assert len(before) == 200 and specs(plane, namespace) == before
    # An earlier one may say less in a status.
    assert BEFORE != BERTH or plane.writes("berth-operator", namespace) == writes
    writes = plane.writes("berth-operator", namespace)
    planned = json.loads(plan(plane, "-n", namespace, "-o", "json").stdout)
    assert len(planned["changes"]) == 200 and not planned["unknown"]
    assert all(one["restartsPods"] for one in planned["changes"]), "each has an executor of that image"
    assert plane.writes("berth-operator", namespace) == writes, "a plan changes nothing"


def test_models_adopt_newer_rules_in_waves(plane, next_operator, namespace):
    parameters = {"parameters": POD["parameters"][:1]}
    second = next_operator(*(clops(namespace, name, **parameters) for name in ("a", "b", "c", "waits")))
    for name in "abc":
        pods_are_ready(plane, namespace, name)
    second.start(image=NEW)
    for name in "abc":
        until(f"{name} to be ready", lambda name=name: condition(plane, namespace, "mdep", name).get("status") == "True")
    told = plan(plane, "-n", namespace).stdout
    assert f"{namespace}/a: rules 2 with {OLD} → rules 2 with {NEW}, restarts its pods" in told
    assert f'spec.template.spec.initContainers[fetch-weights].image: "{OLD}" → "{NEW}"' in told
    assert f"{namespace}/waits: rules 2 with {OLD} → rules 2 with {NEW}, restarts its pods, not ready now" in told

    # Nobody says that the pods of the first wave are ready: no second wave starts.
    failed = plan(plane, "-n", namespace, "--adopt", "--wave", "1", "--timeout", "2s", "-o", "json", fails=True)
    outcome = json.loads(failed.stdout)
    assert [one["name"] for one in outcome["failed"]] == ["a"] and outcome["adopted"] == []
    assert outcome["left"] == [f"{namespace}/{name}" for name in ("waits", "b", "c")]
    assert "it has the new rules, and is not ready" in failed.stderr

    def image(name: str) -> str:
        pod = plane.get("deployment", namespace, name)["spec"]["template"]["spec"]
        return pod["initContainers"][0]["image"]

    assert [image(name) for name in ("a", "b", "c", "waits")] == [NEW, OLD, OLD, OLD]
    adoption = subprocess.Popen([BERTH, "operator", "plan-upgrade", "--image", NEW, "-n", namespace, "--adopt"],
                                env={"KUBECONFIG": str(plane.kubeconfig), "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, text=True)
    for name in "bc":
        until(f"{name} to be changed", lambda name=name: image(name) == NEW)
        pods_are_ready(plane, namespace, name)
    said, _ = adoption.communicate(timeout=120)
    assert adoption.returncode == 0, said
    assert f"adopted: {namespace}/b" in said and f"left as it is: {namespace}/waits" in said
    assert image("waits") == OLD
    assert json.loads(plan(plane, "-n", namespace, "-o", "json").stdout)["changes"][0]["name"] == "waits"


def test_without_an_operator_a_request_is_withdrawn(plane, next_operator, namespace):
    next_operator(clops(namespace))
    failed = plan(plane, "iris", "-n", namespace, "--adopt", "--timeout", "1s", fails=True)
    assert "no operator took it up, and the request was withdrawn" in failed.stderr
    assert "berth.dev/adopt" not in plane.get("mdep", namespace, "iris")["metadata"].get("annotations", {})
    missing = plan(plane, "nobody", "-n", namespace, fails=True)
    assert "there is no ModelDeployment nobody" in missing.stderr


def test_models_of_the_first_rules_stay_until_somebody_asks(plane, tmp_path, namespace):
    """There is no operator of version 1 here: a status that says so takes its place."""
    container = CONTAINER | {"image": "i", "ports": [{"name": "http", "port": 8080}]}
    plane.apply({"apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "iris", "namespace": namespace},
                 "spec": {"container": container, "replicas": 2}})
    written = {"observedGeneration": 1, "conditions": [], "replicas": 2, "readyReplicas": 0,
               "render": {"version": 1, "image": OLD, "generation": 1}}
    plane.patch("mdep", namespace, "iris", {"status": written}, "/status")
    operator = Operator(tmp_path, plane, "next").start(image=NEW)
    try:
        adopts_when_asked(plane, namespace)
    finally:
        operator.stop()
        operator.close()


def adopts_when_asked(plane, namespace: str) -> None:
    def names() -> list[str]:
        return [one["name"] for one in plane.get("deployment", namespace, "iris")["spec"]["template"]["spec"]["containers"]]

    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    until("the old state", lambda: condition(plane, namespace, "mdep").get("message") == NO_CONTROLLER)
    pod = plane.get("deployment", namespace, "iris")["spec"]["template"]["spec"]
    assert names() == ["model"] and pod["containers"][0]["ports"] == [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]
    service = plane.get("service", namespace, "iris")["spec"]
    pods_are_ready(plane, namespace)
    until("ready pods", lambda: condition(plane, namespace, "mdep").get("status") == "True")

    told = plan(plane, "-n", namespace).stdout
    assert f"rules 1 with {OLD} → rules 2 with {NEW}, restarts its pods" in told and "Service" not in told
    adoption = subprocess.Popen([BERTH, "operator", "plan-upgrade", "--image", NEW, "-n", namespace, "--adopt"],
                                env={"KUBECONFIG": str(plane.kubeconfig), "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, text=True)
    until("the executor", lambda: names() == ["model", "executor"])
    pods_are_ready(plane, namespace)
    said, _ = adoption.communicate(timeout=120)
    assert adoption.returncode == 0, said
    assert plane.get("service", namespace, "iris")["spec"] == service, "it leads to old pods and new ones"
