"""From a CLOpsDeployment to a Deployment and a Service, by a real API server."""

from __future__ import annotations

import json
import signal
import subprocess

from conftest import IMAGE, Operator
from harness.processes import BERTH
from harness.waiting import until
from models import NO_CONTROLLER, clops, condition, exists, pods_are_ready


def test_what_is_written_becomes_what_runs(plane, operator, namespace):
    written = clops(namespace, parameters=[{"name": "weights", "uri": "s3://models/iris/1/", "mountPath": "/models",
                                            "credentialsSecret": "store"}])
    plane.kubectl_apply(written)
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    until("the Service", lambda: exists(plane, namespace, "service"))
    pod = plane.get("deployment", namespace, "iris")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example/iris:1"
    fetch = pod["initContainers"][0]
    assert (fetch["image"], fetch["args"][:2]) == (IMAGE, ["fetch", "s3://models/iris/1/"])
    assert fetch["envFrom"] == [{"secretRef": {"name": "store"}}]
    executor = pod["containers"][1]
    assert (executor["name"], executor["image"]) == ("executor", IMAGE), "an API server of 1.20 has no native sidecars"
    named = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert named == {"direct-8080": 8080, "http": 29001}
    assert plane.get("service", namespace, "iris")["spec"]["ports"][0]["targetPort"] == "http"
    until("the status", lambda: condition(plane, namespace, "clops").get("message") == NO_CONTROLLER)
    assert plane.get("clops", namespace, "iris")["status"]["executor"] == "Container"
    pods_are_ready(plane, namespace)
    plane.kubectl("wait", "-n", namespace, "clops/iris", "--for=condition=Ready", "--timeout=60s")
    status = plane.get("clops", namespace, "iris")["status"]
    assert (status["readyReplicas"], status["address"]) == (2, f"iris.{namespace}.svc:8080")
    assert status["observedGeneration"] == 1
    spec = plane.get("clops", namespace, "iris")["spec"]
    assert spec == written["spec"], "what people wrote is not changed"
    events = [event["reason"] for event in plane.get("event", namespace)["items"]]
    assert "Available" in events, events
    plane.kubectl("delete", "clops", "-n", namespace, "iris")
    for kind in ["mdep", "deployment", "service"]:
        until(f"the {kind} to go with its owner", lambda kind=kind: not exists(plane, namespace, kind))
    until("its ConfigMap to go too", lambda: not configurations(plane, namespace))


def configurations(plane, namespace: str) -> list[str]:
    """The configurations of executors, as they are in their ConfigMaps."""
    found = plane.get("configmap", namespace, labels="berth.dev/model")["items"]
    return [one["data"]["executor.yaml"] for one in found]


def executor(**settings) -> dict:
    return {"executor": {"ports": [{"name": "http", "settings": settings}]}}


def test_a_changed_executor_restarts_no_pod(plane, operator, namespace, tmp_path):
    plane.apply(clops(namespace, **executor(maxInFlight=8)))
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    before = plane.get("deployment", namespace, "iris")["spec"]
    plane.apply(clops(namespace, **executor(maxInFlight=9, timeout="10s")))
    until("the ConfigMap to follow", lambda: '"maxInFlight": 9' in "".join(configurations(plane, namespace)))
    until("the status", lambda: plane.get("mdep", namespace, "iris")["status"]["observedGeneration"] == 2)
    assert plane.get("deployment", namespace, "iris")["spec"] == before
    (text,) = configurations(plane, namespace)
    (tmp_path / "executor.yaml").write_text(text)
    subprocess.run([BERTH, "executor", "--config", tmp_path / "executor.yaml", "--check"], check=True)
    plane.apply(clops(namespace, **executor(timeout="soon")))
    until("the refusal", lambda: condition(plane, namespace, "mdep").get("reason") == "Invalid")
    assert "spec.executor.ports[http].settings" in condition(plane, namespace, "mdep")["message"]
    plane.apply(clops(namespace, executor={"enabled": False}))
    # This API server keeps the empty shell of the hook, and refuses it: docs/kubernetes.md has the remedy.
    until("the refusal of the shell", lambda: "preStop" in condition(plane, namespace, "mdep").get("message", ""))
    remove = json.dumps([{"op": "remove", "path": "/spec/template/spec/containers/0/lifecycle"}])
    plane.kubectl("patch", "deployment", "-n", namespace, "iris", "--type=json", "-p", remove)
    until("the executor to go", lambda: "executor" not in json.dumps(plane.get("deployment", namespace, "iris")["spec"]))
    until("the status", lambda: plane.get("clops", namespace, "iris")["status"].get("executor") == "Off")
    until("all to be as it should be", lambda: condition(plane, namespace, "clops").get("message") == NO_CONTROLLER)


def test_errors_are_said_where_they_are_made(plane, operator, namespace):
    broken = clops(namespace)
    broken["spec"]["model"]["container"]["ports"][0]["port"] = 70000
    said = plane.kubectl("apply", "-f", "-", text=json.dumps(broken), fails=True)
    assert "spec.model.container.ports.port" in said and "65535" in said, said
    twice = [{"name": "http", "port": 8080}, {"name": "http", "port": 8081}]
    plane.apply(clops(namespace, container={"image": "i", "ports": twice}))
    until("the status", lambda: condition(plane, namespace, "clops", topic="Stalled").get("status") == "True")
    assert condition(plane, namespace, "mdep")["message"] == "spec.container.ports[].name: http comes twice"
    assert condition(plane, namespace, "clops")["message"] == "spec.model.container.ports[].name: http comes twice"
    plane.apply(clops(namespace))
    until("the repaired object's Deployment", lambda: exists(plane, namespace, "deployment"))


def test_kubectl_explains_and_compares(plane, operator, namespace):
    explained = plane.kubectl("explain", "clops.spec.model.parameters")
    assert "Files of the model, fetched before the container starts." in explained
    written = json.dumps(clops(namespace))
    plane.kubectl("apply", "-f", "-", text=written)
    until("the status", lambda: condition(plane, namespace, "clops").get("status") == "False")
    assert plane.kubectl("diff", "-f", "-", text=written) == "", "nothing was written into what people wrote"
    changed = json.dumps(clops(namespace, replicas=5))
    assert "replicas: 5" in plane.kubectl("diff", "-f", "-", text=changed, fails=None)
    table = plane.kubectl("get", "clops", "-n", namespace)
    assert table.split()[:5] == ["NAME", "READY", "REPLICAS", "ADDRESS", "AGE"]


def test_a_refusal_of_the_api_server_is_told(plane, operator, namespace):
    container = {"image": "i", "ports": [{"name": "http", "port": 8080}], "readinessProbe": {"httpGet": {"port": "no such port!"}},
                 "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}
    plane.kubectl_apply(clops(namespace, container=container))
    until("the refusal", lambda: condition(plane, namespace, "clops").get("reason") == "ModelStalled")
    assert "readinessProbe" in condition(plane, namespace, "mdep")["message"]
    # Of another type than the schema of a Deployment: an API server says so with 500.
    quantity = {"image": "i", "ports": container["ports"], "resources": {"requests": {"cpu": "lots"}}}
    plane.kubectl_apply(clops(namespace, container=quantity))
    until("its reason", lambda: "quantities must match" in condition(plane, namespace, "mdep", topic="Stalled").get("message", ""))
    assert condition(plane, namespace, "mdep", topic="Stalled")["status"] == "True"
    plane.kubectl_apply(clops(namespace))
    until("the repaired object", lambda: condition(plane, namespace, "mdep", topic="Stalled").get("status") == "False")


def test_objects_of_others_are_left_alone(plane, operator, namespace):
    plane.kubectl("create", "deployment", "iris", "-n", namespace, "--image=theirs")
    plane.apply(clops(namespace))
    until("the clash", lambda: condition(plane, namespace, "mdep").get("reason") == "NameTaken")
    assert plane.get("deployment", namespace, "iris")["spec"]["template"]["spec"]["containers"][0]["image"] == "theirs"


def test_drift_is_corrected_and_other_fields_are_kept(plane, operator, namespace):
    plane.apply(clops(namespace))
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    plane.kubectl("set", "image", "-n", namespace, "deployment/iris", "model=another:2")
    plane.kubectl("annotate", "-n", namespace, "deployment/iris", "theirs=kept")

    def restored():
        deployment = plane.get("deployment", namespace, "iris")
        return deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/iris:1"

    until("the image to be set back", restored)
    assert plane.get("deployment", namespace, "iris")["metadata"]["annotations"]["theirs"] == "kept"


def test_an_autoscaler_keeps_its_replicas(plane, operator, namespace):
    written = clops(namespace)
    del written["spec"]["model"]["replicas"]
    plane.apply(written)
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    plane.kubectl("scale", "-n", namespace, "deployment/iris", "--replicas=5")
    until("the status to follow", lambda: plane.get("clops", namespace, "iris").get("status", {}).get("replicas") == 5)
    assert plane.get("deployment", namespace, "iris")["spec"]["replicas"] == 5


def test_the_number_of_pods_changes_hands(plane, operator, namespace):
    def count() -> int:
        return plane.get("deployment", namespace, "iris")["spec"]["replicas"]

    plane.kubectl_apply(clops(namespace, replicas=4))
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    scaled = {"minReplicas": 2, "maxReplicas": 9, "cpuUtilization": 60, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}}}
    pod = {"securityContext": {"fsGroup": 65532}, "priorityClassName": "serving", "affinity": {"podAntiAffinity": {}},
           "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}
    plane.kubectl_apply(clops(namespace, replicas=None, autoscaling=scaled, pod=pod))
    until("the autoscaler", lambda: exists(plane, namespace, "hpa"))
    until("the settings of pods", lambda: "serving" in json.dumps(plane.get("deployment", namespace, "iris")["spec"]))
    assert count() == 4, "as many as there were"
    wanted = plane.get("horizontalpodautoscalers.v2beta2.autoscaling", namespace, "iris")["spec"]
    assert (wanted["scaleTargetRef"]["name"], wanted["minReplicas"], wanted["maxReplicas"]) == ("iris", 2, 9)
    assert wanted["metrics"][0]["resource"]["target"] == {"type": "Utilization", "averageUtilization": 60}
    spread = plane.get("deployment", namespace, "iris")["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [(one["topologyKey"], one["labelSelector"]) for one in spread] == [("zone", {"matchLabels": {"berth.dev/model": "iris"}})]

    # In the place of the autoscaler's controller; a new image afterwards does not change the number.
    plane.kubectl("scale", "-n", namespace, "deployment/iris", "--replicas=6")
    image = {"image": "registry.example/iris:2", "ports": [{"name": "http", "port": 8080}]}
    plane.kubectl_apply(clops(namespace, replicas=None, autoscaling=scaled, pod=pod, container=image))
    until("the new image", lambda: "iris:2" in json.dumps(plane.get("deployment", namespace, "iris")["spec"]))
    assert count() == 6
    plane.kubectl_apply(clops(namespace, replicas=3, container=image))
    until("the autoscaler to go", lambda: not exists(plane, namespace, "hpa"))
    until("the number", lambda: count() == 3)


def test_another_operator_with_another_image_restarts_no_pod(plane, tmp_path, namespace):
    first = Operator(tmp_path, plane, "first").start()
    plane.apply(clops(namespace, parameters=[{"name": "weights", "uri": "s3://models/iris/1/", "mountPath": "/models"}]))
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    until("the record", lambda: plane.get("mdep", namespace, "iris").get("status", {}).get("render"))
    before = plane.get("deployment", namespace, "iris")["spec"]
    assert first.stop() == 0
    second = Operator(tmp_path, plane, "second").start(image="registry.example/berth:2")
    try:
        assert plane.get("deployment", namespace, "iris")["spec"] == before
        # A status that was lost, as from a backup, changes nothing either.
        plane.kubectl("patch", "mdep", "-n", namespace, "iris", "--subresource=status", "--type=json", "-p", '[{"op":"remove","path":"/status"}]')
        until("the status to be written again", lambda: plane.get("mdep", namespace, "iris").get("status", {}).get("render"))
        assert plane.get("deployment", namespace, "iris")["spec"] == before
        # A change of the spec takes the new image along.
        changed = clops(namespace, parameters=[{"name": "weights", "uri": "s3://models/iris/2/", "mountPath": "/models"}])
        plane.apply(changed)

        def fetch():
            return plane.get("deployment", namespace, "iris")["spec"]["template"]["spec"]["initContainers"][0]

        until("the new parameters", lambda: fetch()["args"][1] == "s3://models/iris/2/")
        assert fetch()["image"] == "registry.example/berth:2"
    finally:
        second.stop()


def test_a_second_operator_takes_over(plane, tmp_path, namespace):
    first, second = Operator(tmp_path, plane, "one").start(), Operator(tmp_path, plane, "two").start(leads=False)
    try:
        until("the second to wait", lambda: '"following"' in second.logged())
        first.signal(signal.SIGKILL)
        until("the second to lead", lambda: '"ready"' in second.logged())
        plane.apply(clops(namespace))
        until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    finally:
        first.close()
        second.stop()
