"""Proof that the operator bears what happens to clusters: many objects, an API server that dies, others who write the same fields."""

from __future__ import annotations

import json

from conftest import Operator
from harness.waiting import until
from models import NO_CONTROLLER, clops, exists


def settled(plane, namespace: str) -> bool:
    objects = plane.get("clops", "-n", namespace)["items"]
    return all(one.get("status", {}).get("conditions", [{}])[0].get("message") == NO_CONTROLLER for one in objects)


def image(plane, namespace: str, name: str = "iris") -> str:
    return plane.get("deployment", "-n", namespace, name)["spec"]["template"]["spec"]["containers"][0]["image"]


def changed(namespace: str, name: str = "iris") -> dict:
    return clops(namespace, name, container={"image": "registry.example/iris:2", "ports": [{"name": "http", "port": 8080}]})


def test_the_operator_bears_the_death_of_the_api_server(plane, tmp_path, namespace):
    operator = Operator(tmp_path, plane).start()
    try:
        plane.apply(clops(namespace))
        until("the Deployment", lambda: exists(plane, namespace, "deployment"))
        plane.stop("api")
        until("the operator to notice", lambda: '"watch_broke"' in operator.logged() or '"lease_unread"' in operator.logged())
        plane.start_api()
        # If the API server was away for longer than the lease lasts, the operator ends, and Kubernetes starts it anew.
        if not operator.runs():
            operator.start()
        plane.apply(changed(namespace))
        until("the change", lambda: image(plane, namespace) == "registry.example/iris:2", patience=120)
    finally:
        operator.close()


def test_one_change_among_a_thousand_objects_writes_that_object_alone(plane, tmp_path, namespace):
    operator = Operator(tmp_path, plane).start()
    try:
        plane.apply(*(clops(namespace, f"model-{i}") for i in range(1000)))
        until("1,000 objects", lambda: settled(plane, namespace), patience=300)
        before = len(plane.writes("berth-operator", namespace))
        plane.apply(changed(namespace, "model-500"))
        until("the change", lambda: image(plane, namespace, "model-500") == "registry.example/iris:2")
        until("its status", lambda: plane.get("mdep", "-n", namespace, "model-500")["status"]["observedGeneration"] == 2)
        written = plane.writes("berth-operator", namespace)[before:]
        assert {name for _, resource, name in written if resource != "events"} == {"model-500"}
        lines = [line for line in plane.audited() if line["objectRef"].get("name") == "model-500"
                 and line["objectRef"].get("namespace") == namespace and line["verb"] == "patch"]
        asked = next(line for line in reversed(lines) if line["user"]["username"] == "admin")
        applied = next(line for line in reversed(lines) if line["objectRef"]["resource"] == "deployments")
        print(f"from the answer to the user until the Deployment was applied: {asked['stageTimestamp']} {applied['stageTimestamp']}")
    finally:
        operator.close()


def test_fields_of_other_controllers_stay_theirs(plane, operator, namespace):
    plane.apply(clops(namespace))
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    theirs = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "iris", "namespace": namespace, "labels": {"mesh": "yes"}},
              "spec": {"template": {"metadata": {"annotations": {"sidecar.example/inject": "true"}},
                                    "spec": {"containers": [{"name": "sidecar", "image": "registry.example/sidecar:1"}]}}}}
    plane.kubectl("apply", "--server-side", "--field-manager=mesh", "--validate=false", "-f", "-", text=json.dumps(theirs))
    generation = plane.get("deployment", "-n", namespace, "iris")["metadata"]["generation"]
    plane.apply(changed(namespace))
    until("the change", lambda: "registry.example/iris:2" in json.dumps(plane.get("deployment", "-n", namespace, "iris")["spec"]))
    deployment = plane.get("deployment", "-n", namespace, "iris")
    names = {one["name"] for one in deployment["spec"]["template"]["spec"]["containers"]}
    assert names == {"model", "sidecar"} and deployment["metadata"]["labels"]["mesh"] == "yes"
    assert deployment["spec"]["template"]["metadata"]["annotations"]["sidecar.example/inject"] == "true"
    assert deployment["metadata"]["generation"] == generation + 1, "one change, one rollout: nobody fights"
    # A field that both want is the operator's, and the other is told so.
    theirs["spec"]["template"]["spec"]["containers"] = [{"name": "model", "image": "registry.example/other:1"}]
    refused = plane.kubectl("apply", "--server-side", "--field-manager=mesh", "--validate=false", "-f", "-", text=json.dumps(theirs), fails=True)
    assert "berth-operator" in refused and "image" in refused, refused


def test_a_namespace_that_goes_is_not_filled_again(plane, operator, namespace):
    plane.apply(*(clops(namespace, f"model-{i}") for i in range(20)))
    until("20 objects", lambda: settled(plane, namespace))
    plane.kubectl("delete", "namespace", namespace, "--timeout=60s")
    assert '"attempt_failed"' not in operator.logged()
    plane.kubectl("create", "namespace", namespace)
