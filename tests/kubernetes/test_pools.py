"""Pools for Gateways that ask an endpoint picker: what the operator makes, and the picker itself beside pods of a real API server."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import urllib.error
import urllib.request

import grpc
import pytest
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import until
from models import clops, condition, exists, pods_are_ready
from pools import install_pools, remove_pools

WANTED = {"port": "http", "maxInFlight": 8, "gateway": "infra/public", "hostnames": ["iris.example.com"]}
OF_PICKER = ["deployment", "service", "serviceaccount", "rolebinding"]


def way(plane, namespace: str, kind: str = "clops") -> str | None:
    """What is told of the way from a Gateway to the pods, in one word."""
    return condition(plane, namespace, kind, topic="Routed").get("reason")


def accept(plane, namespace: str, kind: str) -> None:
    """As a Gateway does."""
    accepted = {"parents": [{"parentRef": {"name": "public"}, "conditions": [{"type": "Accepted", "status": "True"}]}]}
    plane.patch(kind, namespace, "iris", {"status": accepted}, "/status")


def test_a_pool_comes_with_its_custom_resource_and_goes_with_its_field(plane, operator, namespace):
    plane.kubectl_apply(clops(namespace, replicas=1, inferencePool=WANTED))
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    until("what is missing", lambda: way(plane, namespace) == "NotInstalled")
    pods_are_ready(plane, namespace)
    until("the pods, which do not wait", lambda: condition(plane, namespace, "clops").get("status") == "True")
    before = plane.get("deployment", namespace, "iris")["spec"]
    install_pools(plane)
    try:
        until("the picker", lambda: all(exists(plane, namespace, kind, "iris-picker") for kind in OF_PICKER))
        # Its custom resource may be found after that of pools.
        until("the route", lambda: exists(plane, namespace, "httproute"))
        pool, route = plane.get("inferencepool", namespace, "iris"), plane.get("httproute", namespace, "iris")
        assert pool["spec"] == {
            "selector": {"matchLabels": {"berth.dev/model": "iris"}},
            "targetPorts": [{"number": 29001}],
            "endpointPickerRef": {"kind": "Service", "name": "iris-picker", "port": {"number": 9002}, "failureMode": "FailOpen"},
        }
        assert route["spec"]["hostnames"] == ["iris.example.com"]
        (backend,) = route["spec"]["rules"][0]["backendRefs"]
        assert backend == {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "iris"}
        assert [one["metadata"]["ownerReferences"][0]["kind"] for one in (pool, route)] == ["ModelDeployment"] * 2
        picker = plane.get("deployment", namespace, "iris-picker")
        assert picker["metadata"]["ownerReferences"][0]["uid"] == pool["metadata"]["uid"]
        assert "--max-in-flight" in picker["spec"]["template"]["spec"]["containers"][0]["args"]
        assert plane.get("deployment", namespace, "iris")["spec"] == before, "no pod of the model is restarted"
        until("the picker's absence to be told", lambda: way(plane, namespace) == "PickerNotReady")
        pods_are_ready(plane, namespace, "iris-picker")
        until("the Gateway's silence to be told", lambda: way(plane, namespace) == "NotAccepted")
        accept(plane, namespace, "inferencepool")
        accept(plane, namespace, "httproute")
        plane.kubectl("wait", "-n", namespace, "clops/iris", "--for=condition=Routed", "--timeout=60s")
        # Others do not change it, and nothing is written that is as it should be.
        plane.patch("inferencepool", namespace, "iris", {"spec": {"targetPorts": [{"number": 1}]}})
        until("the port to be set back", lambda: plane.get("inferencepool", namespace, "iris")["spec"] == pool["spec"])

        plane.kubectl_apply(clops(namespace, replicas=1))
        until("the pool and the route to go", lambda: not exists(plane, namespace, "inferencepool") and not exists(plane, namespace, "httproute"))
        until("the picker to go with the pool", lambda: not any(exists(plane, namespace, kind, "iris-picker") for kind in OF_PICKER))
        until("the condition to go", lambda: not condition(plane, namespace, "clops", topic="Routed"))
        assert plane.get("deployment", namespace, "iris")["spec"] == before
    finally:
        remove_pools(plane)


def test_a_contradiction_is_refused_when_it_is_written(plane, operator, pools, webhook, namespace):
    webhook(operator)
    for wrong, said in [
        (WANTED | {"port": "grpc"}, "spec.model.inferencePool.port: the container has no port grpc, but http"),
        (WANTED | {"failureMode": "Maybe"}, "failureMode"),
        ({"port": "http", "hostnames": ["a.example.com"]}, "spec.model.inferencePool.hostnames"),
    ]:
        text = json.dumps(clops(namespace, inferencePool=wrong))
        assert said in plane.kubectl("apply", "-f", "-", text=text, fails=True)
    plane.kubectl("apply", "-f", "-", text=json.dumps(clops(namespace, inferencePool=WANTED)))


def test_a_fleet_has_a_pool_of_its_nodes(plane, pools):
    words = ["fleet", "--name", "pooled", "--image", "x", "--gateway", "infra/public", "--url", "http://{name}.example.com", "--inference-pool"]
    printed = subprocess.run([BERTH, "operator", *words], check=True, capture_output=True, text=True).stdout
    plane.kubectl("apply", "-f", "-", text=printed)
    try:
        pool = plane.get("inferencepool", "berth", "pooled")["spec"]
        assert pool["selector"]["matchLabels"] == plane.get("service", "berth", "pooled")["spec"]["selector"]
        assert exists(plane, "berth", "service", pool["endpointPickerRef"]["name"])
        container = plane.get("statefulset", "berth", "pooled")["spec"]["template"]["spec"]["containers"][0]
        assert {"name": "BERTH_KUBERNETES_POOL", "value": "berth/pooled"} in container["env"]
    finally:
        plane.kubectl("delete", "-f", "-", text=printed)


class Picker(Process):
    """A `berth operator picker` of the model iris, with the rights of its role and no others."""

    def __init__(self, folder, plane, namespace: str):
        super().__init__("picker", folder)
        self.port, self.metrics = free_port(), free_port()
        account = {"metadata": {"name": "iris-picker", "namespace": namespace}}
        plane.create(f"api/v1/namespaces/{namespace}/serviceaccounts", account)
        plane.create(f"apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", account | {
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "berth-picker"},
            "subjects": [{"kind": "ServiceAccount", "name": "iris-picker", "namespace": namespace}],
        })
        status, said = plane.ask("POST", f"api/v1/namespaces/{namespace}/serviceaccounts/iris-picker/token", {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}})
        assert status == 201, said
        config = plane.config(f"picker-{namespace}", json.loads(said)["status"]["token"])
        self.spawn(BERTH, "operator", "picker", "--namespace", namespace, "--selector", "berth.dev/model=iris", "--port", "29001",
                   "--listen", f"127.0.0.1:{self.port}", "--metrics-listen", f"127.0.0.1:{self.metrics}", "--max-in-flight", "2",
                   env={"KUBECONFIG": str(config), "BERTH_LOG": "info"})
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()
        except OSError:
            return 0, ""

    def sample(self, name: str) -> float:
        lines = self.ask("/metrics")[1].splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), -1)

    def close(self) -> None:
        self.channel.close()
        super().close()


class Stream:
    """A Gateway's stream about one request. Messages are bytes: `12 00` is a ProcessingRequest with request headers, `2a 02 10 01` one with the
    end of the response's body."""

    def __init__(self, picker: Picker):
        self.parts = queue.Queue()
        self.call = picker.channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process")(iter(self.parts.get, None))

    def ask(self, part: bytes) -> bytes:
        self.parts.put(part)
        return next(self.call)

    def pick(self) -> str:
        """The address that is chosen, or the status that the client gets: 503 is `f7 03`, 429 `ad 03`."""
        answer = self.ask(b"\x12\x00")
        addresses = set(re.findall(rb"10\.0\.0\.\d:29001", answer))
        if not addresses:
            return {b"\xf7\x03": "503", b"\xad\x03": "429"}[answer[5:7]]
        (address,) = addresses
        return address.decode()

    def close(self) -> None:
        self.parts.put(None)
        self.call.cancel()


@pytest.fixture
def picker(plane, namespace, tmp_path):
    picker = Picker(tmp_path, plane, namespace)
    try:
        until("the picker", lambda: picker.ask("/readyz")[0] == 200)
        yield picker
    finally:
        picker.close()


def pod(plane, namespace: str, number: int, ready: bool = True, model: str = "iris") -> None:
    """A pod that runs nowhere, in the state that its kubelet would tell."""
    name, address = f"{model}-{number}", f"10.0.0.{number}"
    if not exists(plane, namespace, "pod", name):
        plane.create(f"api/v1/namespaces/{namespace}/pods", {
            "metadata": {"name": name, "labels": {"berth.dev/model": model}}, "spec": {"containers": [{"name": "model", "image": "i"}]}})
    told = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    plane.patch("pod", namespace, name, {"status": told}, "/status")


def test_a_picker_spreads_requests_over_the_pods_that_are_ready(plane, picker, namespace):
    stream = Stream(picker)
    assert stream.pick() == "503"
    stream.close()
    for number in (1, 2):
        pod(plane, namespace, number)
    pod(plane, namespace, 3, ready=False)
    pod(plane, namespace, 4, model="other")
    until("both pods", lambda: picker.sample("berth_picker_ready_pods ") == 2)
    streams = [Stream(picker) for _ in range(5)]
    assert sorted(stream.pick() for stream in streams) == ["10.0.0.1:29001"] * 2 + ["10.0.0.2:29001"] * 2 + ["429"]
    assert picker.sample("berth_picker_requests_in_flight ") == 4
    # A request ends, with its response or with its stream.
    streams[0].ask(b"\x2a\x02\x10\x01")
    for stream in streams:
        stream.close()
    until("all to have ended", lambda: picker.sample("berth_picker_requests_in_flight ") == 0)
    pod(plane, namespace, 1, ready=False)
    until("one pod", lambda: picker.sample("berth_picker_ready_pods ") == 1)
    last = [Stream(picker) for _ in range(2)]
    assert {stream.pick() for stream in last} == {"10.0.0.2:29001"}
    plane.ask("DELETE", f"api/v1/namespaces/{namespace}/pods/iris-2?gracePeriodSeconds=0")
    until("none", lambda: picker.sample("berth_picker_ready_pods ") == 0)
    for stream in last:
        stream.close()
    # Gateways and probes ask for its health by gRPC: 1 is SERVING.
    assert picker.channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
    assert picker.stop() == 0
