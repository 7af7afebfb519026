"""The operator on a Kubernetes of today: rules that the API server checks by itself, native sidecars, budgets, and a real Helm."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import IMAGE
from control_plane import OPERATOR, ControlPlane
from harness.processes import BERTH
from harness.waiting import until
from models import clops, condition, exists, pods_are_ready

NEWER, HELM = os.environ.get("KUBERNETES_NEWER"), os.environ.get("HELM")
CHART = Path(__file__).parents[2] / "packaging/kubernetes/chart"
HTTP = {"name": "http", "port": 8080}

pytestmark = pytest.mark.skipif(not NEWER, reason="KUBERNETES_NEWER names no control plane; `cargo xtask test --kubernetes` builds it where there is Go")


def helm(plane, *words: str) -> str:
    done = subprocess.run([HELM, *words, "-n", "berth", "--kubeconfig", plane.kubeconfig], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """The control plane with an operator's objects: from the chart where there is a Helm, else from the command."""
    plane = ControlPlane(tmp_path_factory.mktemp("newer"), Path(NEWER))
    try:
        plane.start()
        if HELM:
            helm(plane, "install", "berth-operator", str(CHART), "--create-namespace", "--set", f"image={IMAGE}")
        else:
            printed = subprocess.run([BERTH, "operator", "manifests", "--image", IMAGE], check=True, capture_output=True, text=True)
            plane.kubectl("apply", "--validate=strict", "-f", "-", text=printed.stdout)
        plane.kubectl("wait", "--for=condition=Established", "crd/clopsdeployments.berth.dev", "crd/modeldeployments.berth.dev")
        yield plane
    finally:
        plane.stop()


def test_the_schema_refuses_what_cannot_work_while_no_operator_runs(plane, namespace):
    def refused(name: str = "iris", **model) -> str:
        return plane.kubectl("apply", "-f", "-", text=json.dumps(clops(namespace, name, **model)), fails=True)

    def with_ports(*ports: dict) -> dict:
        return {"image": "i", "ports": list(ports)}

    scaled = {"minReplicas": 3, "maxReplicas": 2}
    fleet = {"model": {"format": "onnx", "uri": "s3://models/iris.onnx"}}
    for said, model in [
        ("a name comes twice", {"container": with_ports(HTTP, HTTP | {"port": 8081})}),
        ("a port comes twice", {"container": with_ports(HTTP, {"name": "grpc", "port": 8080})}),
        ("a servicePort comes twice", {"container": with_ports(HTTP | {"servicePort": 80}, {"name": "grpc", "port": 80})}),
        ("leave out replicas, or autoscaling", {"autoscaling": {"maxReplicas": 2}}),
        ("minReplicas is more than maxReplicas", {"autoscaling": scaled, "replicas": None}),
        ("write container, or fleet", {"container": None}),
        ("a model of a fleet has no pods of its own", {"fleet": fleet, "replicas": None}),
        ("metadata.name: it names a Service", {"name": "1iris"}),
        ("metadata.name: it names a Service", {"name": "iris.v1"}),
        ("metadata.name: it names a Service", {"name": "i" * 64}),
    ]:
        assert said in refused(**model), model
    plane.apply(clops(namespace), clops(namespace, "pooled", fleet=fleet, container=None, replicas=None),
                clops(namespace, "scaled", autoscaling=scaled | {"maxReplicas": 3}, replicas=None))
    assert "cannot change between pods and a fleet" in refused(fleet=fleet, container=None, replicas=None)
    assert "cannot change between pods and a fleet" in refused("pooled")
    plane.kubectl("label", "clops", "pooled", "-n", namespace, "team=flowers")


def test_a_model_gets_what_this_cluster_is_able_to_do(plane, operator, namespace):
    written = clops(namespace, parameters=[{"name": "weights", "uri": "s3://models/iris/1/", "mountPath": "/models"}])
    plane.apply(written)
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    until("the budget", lambda: plane.find("poddisruptionbudgets.v1.policy", namespace, "iris"))
    pod = plane.get("deployment", namespace, "iris")["spec"]["template"]["spec"]
    first, last = pod["initContainers"]
    assert (first["name"], last["name"], last["restartPolicy"]) == ("fetch-weights", "executor", "Always")
    assert [one["name"] for one in pod["containers"]] == ["model"]
    pods_are_ready(plane, namespace)
    plane.kubectl("wait", "-n", namespace, "clops/iris", "--for=condition=Ready", "--timeout=60s")
    assert plane.get("clops", namespace, "iris")["status"]["executor"] == "NativeSidecar"
    assert plane.get("clops", namespace, "iris")["spec"] == written["spec"], "what people wrote is not changed"
    assert "Files of the model, fetched before the container starts." in plane.kubectl("explain", "clops.spec.model.parameters")

    # The number of pods goes to an autoscaler and back, and the executor goes.
    plane.apply(written | {"spec": {"model": written["spec"]["model"] | {"replicas": None, "autoscaling": {"maxReplicas": 3}}}})
    until("the autoscaler", lambda: plane.find("horizontalpodautoscalers.v2.autoscaling", namespace, "iris"))
    plane.apply(clops(namespace, executor={"enabled": False}))
    until("the executor to go", lambda: "executor" not in json.dumps(plane.get("deployment", namespace, "iris")["spec"]))
    until("the autoscaler to go", lambda: not exists(plane, namespace, "hpa"))
    until("the status", lambda: plane.get("clops", namespace, "iris")["status"].get("executor") == "Off")
    assert condition(plane, namespace, "mdep", topic="Stalled").get("status") == "False"
    refused = [line["requestURI"] for line in plane.audited()
               if line["user"]["username"] == OPERATOR and line.get("responseStatus", {}).get("code") == 403]
    assert not refused, refused
    plane.kubectl("delete", "clops", "-n", namespace, "iris", "--timeout=10s")
    until("the Deployment to go with its owner", lambda: not exists(plane, namespace, "deployment"))


@pytest.mark.skipif(not HELM, reason="HELM names no program")
def test_helm_upgrades_and_uninstalls_and_keeps_the_models(plane, namespace):
    def objects(text: str) -> dict:
        return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}

    plane.apply(clops(namespace))
    helm(plane, "upgrade", "berth-operator", str(CHART), "--set", f"image={IMAGE},replicas=2,webhookFailure=Fail")
    assert plane.get("deployment", "berth", "berth-operator")["spec"]["replicas"] == 2
    assert plane.get("validatingwebhook", name="berth-operator")["webhooks"][0]["failurePolicy"] == "Fail"
    said = subprocess.run([BERTH, "operator", "manifests", "--image", IMAGE, "--replicas", "2", "--webhook-failure", "fail"],
                          check=True, capture_output=True, text=True).stdout
    chart, command = objects(helm(plane, "get", "manifest", "berth-operator")), objects(said)
    # The namespace is Helm's, and a CustomResourceDefinition has the note that it stays.
    assert chart.keys() == command.keys() - {("Namespace", "berth")}
    for key in chart.keys():
        chart[key]["metadata"].pop("annotations", None)
        assert chart[key] == command[key], key
    helm(plane, "uninstall", "berth-operator")
    inside = plane.all("berth", "serviceaccount", "role", "rolebinding", "deployment", "service", "networkpolicy")
    cluster = plane.all("", "clusterrole", "clusterrolebinding", "validatingwebhook")
    assert not [one["metadata"]["name"] for one in inside + cluster if "berth" in one["metadata"]["name"]]
    assert exists(plane, namespace, "clops"), "the models stay, and their custom resources"
