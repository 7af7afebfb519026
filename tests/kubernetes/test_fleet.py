"""A fleet that follows objects of the cluster: what is written is served, and its status says so."""

from __future__ import annotations

import json
import subprocess

import pytest
from control_plane import COLLECTIONS, FLEET, place
from fleet import Fleet, alpha, at, service
from harness.documents import documents
from harness.examples import IRIS
from harness.processes import BERTH
from harness.waiting import until
from models import condition


@pytest.fixture(scope="module")
def kserve(plane):
    """The custom resources of KServe and ModelMesh, and what runs a fleet: its rights count here, its pod runs nowhere. All of it goes."""
    definitions = printed("crds", "--kserve")
    fleet = printed("fleet", "--image", "x", "--storage-config", "storage-config", "--volume", "models")
    plane.kubectl("apply", "-f", "-", text=definitions)
    plane.kubectl("apply", "-f", "-", text=fleet)
    plane.kubectl("wait", "--for=condition=Established", "crd/inferenceservices.serving.kserve.io", "crd/predictors.serving.kserve.io")
    yield
    for one in (fleet, definitions):
        plane.kubectl("delete", "-f", "-", text=one)


def printed(*words: str) -> str:
    return subprocess.run([BERTH, "operator", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def fleet(plane, kserve, namespace, tmp_path):
    """A fleet for the namespace of the test."""
    fleet = Fleet(tmp_path, plane)
    try:
        yield fleet.follow(f"kubernetes={namespace}")
    finally:
        fleet.close()


def status(plane, namespace: str, kind: str, name: str = "iris") -> dict:
    return plane.get(kind, namespace, name).get("status", {})


def transition(plane, namespace: str) -> str | None:
    """What the status of the InferenceService says of its newest spec, once it says anything."""
    return status(plane, namespace, "isvc").get("modelStatus", {}).get("transitionStatus")


def ready(plane, namespace: str, kind: str = "isvc", name: str = "iris") -> None:
    until(f"{name} to be ready", lambda: condition(plane, namespace, kind, name).get("status") == "True")


def label(fleet: Fleet, namespace: str, name: str = "iris") -> list:
    code, _, body = fleet.post(f"/namespaces/{namespace}/v2/models/{name}/infer", IRIS)
    assert code == 200, body
    return next(output["data"] for output in json.loads(body)["outputs"] if output["name"] == "label")


def test_an_inference_service_is_served_and_its_status_says_so(plane, fleet, namespace):
    written = service(namespace, minReplicas=1)
    plane.kubectl_apply(written)
    plane.kubectl("wait", "-n", namespace, "isvc/iris", "--for=condition=Ready", "--timeout=60s")
    assert label(fleet, namespace) == [0]
    said = status(plane, namespace, "isvc")
    assert said["url"] == f"http://{fleet.http}/namespaces/{namespace}" == said["components"]["predictor"]["restUrl"]
    assert said["modelStatus"] == {
        "transitionStatus": "UpToDate", "copies": {"failedCopies": 0, "totalCopies": 1},
        "states": {"activeModelState": "Loaded", "targetModelState": "Loaded"},
    }
    assert said["observedGeneration"] == 1
    first = said["components"]["predictor"]["latestReadyRevision"]
    assert plane.kubectl("get", "isvc", "-n", namespace).split()[:3] == ["NAME", "URL", "READY"]

    # What cannot be carried over is refused with the field, and the model serves on.
    plane.apply(service(namespace, workerSpec={}))
    until("the refusal", lambda: transition(plane, namespace) == "InvalidSpec")
    failure = status(plane, namespace, "isvc")["modelStatus"]["lastFailureInfo"]
    assert failure["reason"] == "InvalidPredictorSpec" and "over several nodes" in failure["message"], failure
    assert label(fleet, namespace) == [0] and "workerSpec" in fleet.run("get", "sources", "-o", "json")
    assert fleet.metric("berth_kubernetes_refused_objects", source="kubernetes") == 1
    assert fleet.metric("berth_kubernetes_objects", kind="InferenceService") == 1
    assert fleet.metric("berth_kubernetes_readable", kind="InferenceService") == 1
    assert fleet.metric("berth_kubernetes_writes_total", result="written") >= 1

    # A model that cannot be loaded beside one that serves: blocked, and clients notice nothing.
    plane.apply(service(namespace, artifact="no-such-model"))
    until("the failure", lambda: transition(plane, namespace) == "BlockedByFailedLoad")
    said = status(plane, namespace, "isvc")
    assert said["modelStatus"]["states"] == {"activeModelState": "Loaded", "targetModelState": "FailedToLoad"}, said
    assert said["modelStatus"]["lastFailureInfo"]["reason"] == "ModelLoadFailed" and label(fleet, namespace) == [0]

    plane.apply(service(namespace, artifact="iris-v2"))
    until("the change", lambda: transition(plane, namespace) == "UpToDate")
    said = status(plane, namespace, "isvc")
    assert said["observedGeneration"] == 4 and said["components"]["predictor"]["latestReadyRevision"] != first
    assert "lastFailureInfo" not in said["modelStatus"]
    assert plane.get("isvc", namespace, "iris")["metadata"].get("finalizers") is None
    plane.kubectl("delete", "isvc", "-n", namespace, "iris", "--timeout=10s")
    until("the model to go", lambda: fleet.get(f"/namespaces/{namespace}/v2/models/iris")[0] == 404)


def test_a_fleet_sees_the_storages_that_it_is_given(plane, kserve):
    pod = plane.get("statefulset", "berth", "berth-fleet")["spec"]["template"]["spec"]
    mounted = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    told = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert volumes[mounted[told["BERTH_STORAGE_CONFIG"]]]["secret"]["secretName"] == "storage-config"
    assert volumes[mounted["/pvc_mounts/models"]]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}


def test_several_nodes_are_taken_by_the_api_server(plane, kserve, tmp_path):
    subprocess.run([BERTH, "pki", "init", tmp_path / "pki"], check=True, capture_output=True)
    words = ["--name", "cluster", "--image", "x", "--nodes", "3", "--store", "etcds://etcd:2379", "--store-secret", "etcd-client"]
    said = printed("fleet", *words, "--authority-secret", "fleet-ca", "--ca", str(tmp_path / "pki" / "ca.pem"))
    # An API server of 1.20 has no PodDisruptionBudget of policy/v1.
    taken = [one for one in documents(said) if one["kind"] != "PodDisruptionBudget"]
    plane.kubectl_apply(*taken)
    try:
        sets = {one["metadata"]["name"]: one["spec"] for one in taken if one["kind"] == "StatefulSet"}
        pods = {}
        for name, pods_of_set, found_by in [("cluster", 3, "cluster-nodes"), ("cluster-controllers", 2, "cluster-controllers")]:
            stored = plane.get("statefulset", "berth", name)["spec"]
            assert (stored["replicas"], stored["serviceName"], stored["podManagementPolicy"]) == (pods_of_set, found_by, "Parallel")
            # Nothing that was written is unknown there: the API server drops such fields.
            pods[name], mine = stored["template"]["spec"], sets[name]["template"]["spec"]
            containers = [pod.get("initContainers", []) + pod["containers"] for pod in (pods[name], mine)]
            for container, own in zip(*containers, strict=True):
                assert container["args"] == own["args"] and container["volumeMounts"] == own["volumeMounts"]
                assert [one["name"] for one in container["env"]] == [one["name"] for one in own["env"]]
            volumes = [{one["name"]: one for one in pod["volumes"]} for pod in (pods[name], mine)]
            assert volumes[0].keys() == volumes[1].keys()
            assert volumes[0].get("join", {}).get("projected") == volumes[1].get("join", {}).get("projected")
        # Models run where the CA's key, the store and the API server are out of reach.
        nodes, controllers = pods["cluster"], pods["cluster-controllers"]
        secrets = lambda pod: {one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
        assert (secrets(nodes), secrets(controllers)) == (set(), {"fleet-ca", "etcd-client"})
        assert nodes["automountServiceAccountToken"] is False and nodes["serviceAccountName"] == "cluster-nodes"
        assert plane.get("service", "berth", "cluster-nodes")["spec"]["clusterIP"] == "None"
    finally:
        plane.kubectl("delete", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": taken}))
    missing = subprocess.run([BERTH, "operator", "fleet", "--image", "x", "--nodes", "3"], capture_output=True, text=True)
    assert missing.returncode != 0 and "--store" in missing.stderr and "--ca" in missing.stderr, missing.stderr


def test_objects_of_modelmesh_load_by_their_first_request(plane, fleet, namespace):
    onnx = {"name": "onnx"}
    plane.apply(
        alpha("Predictor", namespace, "predictor", modelType=onnx, storageUri=at("iris")),
        alpha("Predictor", namespace, "lazy", modelType=onnx, storageUri=at("iris")),
        alpha("TrainedModel", namespace, "trained", inferenceService="parent", model={"framework": "onnx", "storageUri": at("iris"), "memory": "10Mi"}),
        alpha("ServingRuntime", namespace, "triton", supportedModelFormats=[onnx], containers=[]),
        alpha("ServingRuntime", namespace, "old", disabled=True, supportedModelFormats=[onnx], containers=[]),
        service(namespace, "named", model={"runtime": "triton"}),
        service(namespace, "disabled", model={"runtime": "old"}),
        service(namespace, "unknown", model={"runtime": "none"}),
        service(namespace, "predictor"),
    )
    ready(plane, namespace, "isvc", "named")
    ready(plane, namespace, "trainedmodel", "trained")
    assert status(plane, namespace, "isvc", "named")["servingRuntimeName"] == "triton"
    assert status(plane, namespace, "trainedmodel", "trained")["url"].endswith("/v2/models/trained/infer")
    for name, reason in [("disabled", "RuntimeDisabled"), ("unknown", "RuntimeNotRecognized")]:
        until(f"{name} to be refused", lambda name=name: "modelStatus" in status(plane, namespace, "isvc", name))
        assert status(plane, namespace, "isvc", name)["modelStatus"]["lastFailureInfo"]["reason"] == reason
    # The name is that of the InferenceService.
    until("the conflict", lambda: status(plane, namespace, "predictor", "predictor").get("transitionStatus") == "InvalidSpec")
    plane.kubectl("delete", "isvc", "-n", namespace, "predictor")
    until("its turn", lambda: status(plane, namespace, "predictor", "predictor")["transitionStatus"] == "UpToDate")
    assert status(plane, namespace, "predictor", "predictor")["available"] is True
    until("the state", lambda: status(plane, namespace, "predictor", "lazy").get("activeModelState") == "Standby")
    assert status(plane, namespace, "predictor", "lazy")["available"] is True
    assert label(fleet, namespace, "lazy") == [0]
    until("its state", lambda: status(plane, namespace, "predictor", "lazy")["activeModelState"] == "Loaded")
    endpoint = status(plane, namespace, "predictor", "lazy")
    assert (endpoint["grpcEndpoint"], endpoint["targetModelState"]) == (f"http://{fleet.http}", "")


def test_a_dead_fleet_holds_nothing_up_and_comes_back_without_a_write(plane, fleet, namespace):
    plane.apply(service(namespace), service(namespace, "gone"))
    ready(plane, namespace)
    ready(plane, namespace, name="gone")
    fleet.kill()
    plane.kubectl("delete", "isvc", "-n", namespace, "gone", "--timeout=10s")
    before = plane.writes("berth-fleet", namespace)
    fleet.follow(f"kubernetes={namespace}")
    until("the model to be there", lambda: fleet.get(f"/namespaces/{namespace}/v2/models/iris/ready")[0] == 200)
    until("the other to go", lambda: fleet.get(f"/namespaces/{namespace}/v2/models/gone")[0] == 404)
    until("the state", lambda: transition(plane, namespace) == "UpToDate")
    # It tells that the model was loaded anew, of one object.
    after = plane.writes("berth-fleet", namespace)[len(before):]
    assert {name for _, _, name in after} <= {"iris"} and len(after) <= 4, after

    refused = [line for line in plane.audited() if line["user"]["username"] == FLEET and line.get("responseStatus", {}).get("code") == 403]
    assert not refused, refused[:3]

    # An API server that begins knows no custom resources for a while: nothing goes by that.
    plane.stop("api")
    until("the fleet to notice", lambda: '"cluster_away"' in fleet.logged() or '"kind_unread"' in fleet.logged())
    assert label(fleet, namespace) == [0]
    plane.start_api()
    plane.apply(service(namespace, "more"))
    until("what came meanwhile", lambda: fleet.get(f"/namespaces/{namespace}/v2/models/more/ready")[0] == 200, patience=120)
    assert label(fleet, namespace) == [0]
    unloaded = [line for line in fleet.logged_lines() if '"UNLOAD"' in line and f"{namespace}/iris" in line]
    assert not unloaded, unloaded


def fleet_model(namespace: str, name: str = "iris", **spec) -> dict:
    """What people write; the operator derives the ModelDeployment that the fleet follows."""
    model = {"model": {"format": "onnx", "uri": at("iris")}} | spec
    return {"apiVersion": "berth.dev/v1", "kind": "CLOpsDeployment", "metadata": {"name": name, "namespace": namespace},
            "spec": {"model": {"fleet": model}}}


def test_the_operator_hands_a_model_to_the_fleet(plane, operator, webhook, fleet, namespace):
    webhook(operator)
    written = fleet_model(namespace, replicas=1)
    plane.apply(written)
    ready(plane, namespace, "clops")
    assert label(fleet, namespace) == [0]
    said = status(plane, namespace, "clops")
    assert (said["readyReplicas"], said["observedGeneration"]) == (1, 1)
    assert said["address"] == f"http://{fleet.http}/namespaces/{namespace}/v2/models/iris"
    assert plane.get("clops", namespace, "iris")["spec"] == written["spec"]
    assert plane.get("deployment", namespace)["items"] == [], "it has no pods of its own"

    def refused(object: dict, way: str = "apply-patch+yaml") -> str:
        said = plane.ask("PATCH", f"{place(object)}?fieldManager=tests&dryRun=All", object, f"application/{way}")[1].decode()
        return said if "denied the request" in said else ""

    until("the webhook to be asked", lambda: refused(fleet_model(namespace, "bad", replicas=-1)))
    assert "spec.model.fleet.replicas" in refused(fleet_model(namespace, "bad", replicas=-1))
    pods = written | {"spec": {"model": {"container": {"image": "x", "ports": [{"name": "http", "port": 1}]}, "fleet": None}}}
    assert "cannot change between pods and a fleet" in refused(pods, "merge-patch+json")

    plane.apply(fleet_model(namespace, model={"format": "onnx", "uri": at("no-such-model")}))
    until("the failure", lambda: any(one["type"] == "Stalled" and one["status"] == "True" for one in status(plane, namespace, "clops")["conditions"]))
    assert label(fleet, namespace) == [0], "the older one serves"
    plane.kubectl("delete", "clops", "-n", namespace, "iris", "--timeout=10s")
    until("the model to go", lambda: fleet.get(f"/namespaces/{namespace}/v2/models/iris")[0] == 404)


def route(plane, namespace: str, name: str) -> dict:
    return plane.find("httproute", namespace, f"{name}-berth")


def test_a_gateway_gives_each_object_a_host(plane, kserve, namespace, tmp_path):
    opened = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": opened, "status": opened}}}
    routes = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {
            "name": "httproutes.gateway.networking.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/2997"}},
        "spec": {"group": "gateway.networking.k8s.io", "scope": "Namespaced", "names": {"kind": "HTTPRoute", "plural": "httproutes"},
                 "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}]},
    }
    url = "http://{name}-{namespace}.example.com"
    plane.kubectl("apply", "-f", "-", text=printed("fleet", "--image", "x", "--gateway", "infra/public", "--url", url))
    fleet = Fleet(tmp_path, plane)
    try:
        fleet.start("--source", f"kubernetes={namespace}", "--kubernetes-url", url, "--kubernetes-gateway", "infra/public",
                    "--kubernetes-service", "berth/berth-fleet:8080", env={"KUBECONFIG": str(fleet.kubeconfig)})
        plane.apply(service(namespace))
        until("what is missing", lambda: condition(plane, namespace, "isvc", topic="IngressReady").get("reason") == "NotInstalled")
        plane.create(COLLECTIONS["crd"], routes)
        plane.kubectl("wait", "--for=condition=Established", "crd/httproutes.gateway.networking.k8s.io")
        until("the route", lambda: route(plane, namespace, "iris"))
        made = route(plane, namespace, "iris")
        host = f"iris-{namespace}.example.com"
        assert made["spec"]["hostnames"] == [host] and made["metadata"]["ownerReferences"][0]["name"] == "iris"
        until("the model", lambda: transition(plane, namespace) == "UpToDate")
        until("the wait for the gateway", lambda: condition(plane, namespace, "isvc").get("reason") == "RoutePending")
        assert condition(plane, namespace, "isvc")["status"] == "False"
        accepted = {"parents": [{"conditions": [{"type": "Accepted", "status": "True"}]}]}
        plane.patch("httproute", namespace, "iris-berth", {"status": accepted}, "/status")
        ready(plane, namespace)
        assert status(plane, namespace, "isvc")["url"] == f"http://{host}"
        # As a Gateway would ask, by the route.
        header = made["spec"]["rules"][0]["filters"][0]["requestHeaderModifier"]["set"][0]
        assert fleet.infer("iris", headers={header["name"]: header["value"], "host": host})[0] == 200
        plane.patch("httproute", namespace, "iris-berth", {"spec": {"hostnames": ["other"]}})
        until("the host to be set back", lambda: route(plane, namespace, "iris")["spec"]["hostnames"] == [host])
        plane.kubectl("delete", "isvc", "-n", namespace, "iris", "--timeout=10s")
        until("its route to go with it", lambda: not route(plane, namespace, "iris"))
    finally:
        fleet.close()
        plane.kubectl("delete", "--ignore-not-found", "crd", "httproutes.gateway.networking.k8s.io")
