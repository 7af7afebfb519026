"""Versions of the API side by side, by a real API server: nothing is lost between them, and nothing restarts."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import urllib.request

import pytest
from conftest import DEFINITIONS, Operator
from harness.processes import BERTH
from harness.waiting import until
from models import NO_CONTROLLER, clops, condition, exists, settled

ALPHA, BETA, STABLE = (f"clopsdeployments.{version}.berth.dev" for version in ("v1alpha1", "v1beta1", "v1"))
POD = {"labels": {"team": "flowers"}, "imagePullSecrets": [{"name": "pull"}], "terminationGracePeriodSeconds": 20}


def as_alpha(namespace: str, name: str = "iris", **fields) -> dict:
    return clops(namespace, name, **fields) | {"apiVersion": "berth.dev/v1alpha1"}


def model(plane, kind: str, namespace: str, name: str = "iris") -> dict:
    return plane.get(kind, namespace, name)["spec"]["model"]


def converting(plane, namespace: str) -> bool:
    """The API server uses a changed definition some moments later."""
    return plane.ask("GET", f"apis/berth.dev/v1alpha1/namespaces/{namespace}/clopsdeployments")[0] == 200


@pytest.fixture
def converting_operator(plane, operator, converts):
    """An operator that the API server asks for conversions."""
    converts(operator)
    return operator


def test_each_version_says_the_same(plane, converting_operator, namespace):
    plane.kubectl_apply(clops(namespace, pod=POD))
    until("conversions", lambda: converting(plane, namespace))
    alpha, beta = model(plane, ALPHA, namespace), model(plane, BETA, namespace)
    assert (alpha["podLabels"], alpha["imagePullSecrets"], alpha["terminationGracePeriodSeconds"]) == ({"team": "flowers"}, ["pull"], 20)
    assert "pod" not in alpha and beta["pod"] == POD | {"imagePullSecrets": ["pull"]}
    assert model(plane, STABLE, namespace)["pod"] == POD

    # An edit in the oldest version is one in all.
    plane.kubectl_apply(as_alpha(namespace, replicas=5, podLabels={"team": "trees"}, imagePullSecrets=["pull", "other"]))
    stable = model(plane, STABLE, namespace)
    assert (stable["replicas"], stable["pod"]["labels"]) == (5, {"team": "trees"})
    assert stable["pod"]["imagePullSecrets"] == [{"name": "pull"}, {"name": "other"}]
    until("the pods to follow", lambda: exists(plane, namespace, "deployment")
          and plane.get("deployment", namespace, "iris")["spec"]["replicas"] == 5)
    labels = plane.get("deployment", namespace, "iris")["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "trees"

    # What the oldest version cannot say comes back from there, whatever is edited in it.
    scaled = {"maxReplicas": 9, "cpuUtilization": 60}
    plane.kubectl_apply(clops(namespace, replicas=None, autoscaling=scaled, pod=POD | {"priorityClassName": "serving"}))
    read = plane.get(ALPHA, namespace, "iris")
    assert "autoscaling" not in read["spec"]["model"] and "serving" in read["metadata"]["annotations"]["berth.dev/newer-fields"]
    patch = {"spec": {"model": {"podLabels": {"team": "leaves"}}}}
    plane.kubectl("patch", ALPHA, "-n", namespace, "iris", "--type=merge", "-p", json.dumps(patch))
    stable = model(plane, STABLE, namespace)
    assert stable["autoscaling"] == scaled and stable["pod"] == POD | {"priorityClassName": "serving", "labels": {"team": "leaves"}}
    assert "berth.dev/newer-fields" not in plane.get(STABLE, namespace, "iris")["metadata"].get("annotations", {})

    # A field of another version is told, or dropped, as with any object; the oldest version is said to be old.
    said = plane.kubectl("apply", "-f", "-", text=json.dumps(as_alpha(namespace, podLabels=3)), fails=True)
    assert "spec.model.podLabels" in said, said
    warned = subprocess.run(["kubectl", f"--kubeconfig={plane.kubeconfig}", "get", ALPHA, "-n", namespace], capture_output=True, text=True)
    assert "berth.dev/v1alpha1 is deprecated: write berth.dev/v1" in warned.stderr, warned.stderr
    assert "Labels of the nodes" in plane.kubectl("explain", "clops.spec.model.nodeSelector", "--api-version=berth.dev/v1alpha1")
    assert plane.kubectl("get", "clops", "-n", namespace, "-o", "name").split() == ["clopsdeployment.berth.dev/iris"]
    counted = converting_operator.ask("/metrics")[1]
    assert 'berth_operator_conversions_total{outcome="succeeded"}' in counted and 'outcome="failed"} ' not in counted.split("conversions")[-1]


def stores(plane, version: str) -> None:
    """Has the API server store this version."""
    for name in DEFINITIONS:
        versions = plane.get("crd", name=name)["spec"]["versions"]
        for one in versions:
            one["storage"] = one["name"] == version
        plane.patch("crd", "", name, {"spec": {"versions": versions}})


def stored(plane, namespace: str, name: str) -> dict:
    """An object as etcd has it."""
    key = base64.b64encode(f"/registry/berth.dev/clopsdeployments/{namespace}/{name}".encode()).decode()
    request = urllib.request.Request(f"http://127.0.0.1:{plane.etcd}/v3/kv/range", json.dumps({"key": key}).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(base64.b64decode(json.load(answer)["kvs"][0]["value"]))


def stored_versions(plane) -> list[list[str]]:
    return [plane.get("crd", name=name)["status"]["storedVersions"] for name in DEFINITIONS]


def migrate(plane, fails: bool = False) -> str:
    done = subprocess.run([BERTH, "operator", "migrate-storage"], capture_output=True, text=True,
                          env={"KUBECONFIG": str(plane.kubeconfig), "PATH": "/usr/bin:/bin"}, timeout=120)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_objects_of_an_older_operator_move_and_nothing_restarts(plane, tmp_path, converts, namespace):
    operator = Operator(tmp_path, plane)
    converts(operator)
    stores(plane, "v1alpha1")
    names = [f"model-{number}" for number in range(30)]
    until("the old version to be stored", lambda: is_stored_old(plane, namespace))
    # Nobody converts yet: what is stored can be read, all else is refused, and nothing is lost.
    plane.kubectl_apply(*(as_alpha(namespace, name, podLabels={"team": name}) for name in names))
    said = plane.kubectl("get", STABLE, "-n", namespace, names[0], fails=True)
    assert "conversion webhook for berth.dev/v1alpha1" in said, said
    try:
        # The operator reads them by way of its own webhook.
        operator.start()
        until("all of them", lambda: operator.is_idle() and settled(plane, namespace))
        stores(plane, "v1")
        before = state(plane, namespace)
        assert all(one["metadata"]["generation"] == 1 for one in plane.get(STABLE, namespace)["items"])
        assert stored(plane, namespace, names[7])["apiVersion"] == "berth.dev/v1alpha1"
        said = migrate(plane)
        # Objects of tests before this one may still be on their way out.
        written = re.search(r"clopsdeployments.berth.dev: (\d+) objects written, all are stored as v1", said)
        assert written and int(written[1]) >= 31, said
        assert stored_versions(plane) == [["v1"], ["v1"]]
        moved = stored(plane, namespace, names[7])
        assert (moved["apiVersion"], moved["spec"]["model"]["pod"]["labels"]) == ("berth.dev/v1", {"team": names[7]})
        assert state(plane, namespace) == before, "no object and no pod template has changed"
        assert "all objects are stored as v1" in migrate(plane)
        # Without an operator, the stored version is there for everybody.
        operator.signal(signal.SIGKILL)
        assert len(plane.get(STABLE, namespace)["items"]) == 31
        plane.kubectl_apply(clops(namespace, "late", pod=POD))
        said = plane.kubectl("get", ALPHA, "-n", namespace, "late", fails=True)
        assert "conversion webhook for berth.dev/v1, Kind=CLOpsDeployment failed" in said, said
        plane.kubectl("delete", STABLE, "-n", namespace, "late")
    finally:
        operator.close()
        plane.kubectl("delete", "clops,mdep", "--all", "-n", namespace, "--wait=false", fails=None)


def is_stored_old(plane, namespace: str) -> bool:
    # Nobody converts: an object can be deleted in the version in which it is stored alone.
    for version in ("v1", "v1alpha1"):
        plane.ask("DELETE", f"apis/berth.dev/{version}/namespaces/{namespace}/clopsdeployments/first")
    plane.ask("POST", f"apis/berth.dev/v1alpha1/namespaces/{namespace}/clopsdeployments", as_alpha(namespace, "first"))
    try:
        return stored(plane, namespace, "first")["apiVersion"] == "berth.dev/v1alpha1"
    except KeyError:
        return False


def state(plane, namespace: str) -> dict[str, tuple]:
    """All that somebody could notice: specs, generations, pod templates."""
    objects = plane.all(namespace, "clops", "mdep", "deployment")
    return {(one["kind"], one["metadata"]["name"]): (one["metadata"]["generation"], json.dumps(one["spec"])) for one in objects}


def test_a_stopped_migration_loses_nothing_and_goes_on(plane, tmp_path, converts, namespace):
    operator = Operator(tmp_path, plane)
    converts(operator)
    stores(plane, "v1alpha1")
    until("the old version to be stored", lambda: is_stored_old(plane, namespace))
    stores(plane, "v1")
    try:
        said = migrate(plane, fails=True)
        assert "the API server says" in said and "conversion webhook" in said, said
        assert "v1alpha1" in stored_versions(plane)[0]
        operator.start()
        until("the object", lambda: condition(plane, namespace, "clops", "first").get("message") == NO_CONTROLLER)
        migrate(plane)
        assert stored_versions(plane) == [["v1"], ["v1"]]
        assert operator.stop() == 0
    finally:
        operator.close()
