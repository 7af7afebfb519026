"""The operator against a real control plane."""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.error
import urllib.request

import pytest
import yaml
from control_plane import OPERATOR, ControlPlane
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import until

pytest_plugins = ["harness.failures"]

IMAGE = "registry.example/berth:1"
DEFINITIONS = ["clopsdeployments.berth.dev", "modeldeployments.berth.dev"]


class Operator(Process):
    """A `berth operator run` with the rights that its manifests give it. It ends with its test."""

    of_this_test: list[Operator] = []

    def __init__(self, folder, plane: ControlPlane, name: str = "operator"):
        super().__init__(name, folder)
        self.of_this_test.append(self)
        self.plane, self.name, self.keys = plane, name, folder / f"{name}-keys"
        self.kubeconfig = plane.config(OPERATOR, "operator-token")
        self.port, self.webhook_port = free_port(), free_port()

    def start(self, image: str = IMAGE, leads: bool = True) -> Operator:
        environment = {"KUBECONFIG": str(self.kubeconfig), "BERTH_LOG": "info,berth_operator=debug"}
        self.spawn(BERTH, "operator", "run", "--image", image, "--namespace", "berth", "--identity", self.name,
                   "--listen", f"127.0.0.1:{self.port}", "--webhook-listen", f"127.0.0.1:{self.webhook_port}",
                   "--webhook-folder", self.keys, env=environment)
        if leads:
            until("the operator to have looked at everything", self.is_ready)
        return self

    def ask(self, path: str) -> tuple[int, str]:
        """The answer of its port."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def is_idle(self) -> bool:
        return "\nberth_operator_waiting_objects 0\n" in self.ask("/metrics")[1]

    def is_ready(self) -> bool:
        assert self.runs(), f"it ended: {self.logged()}"
        return '"ready"' in self.logged()


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    """The control plane, with what `berth operator manifests` prints."""
    plane = ControlPlane(tmp_path_factory.mktemp("plane"))
    try:
        plane.start()
        words = [BERTH, "operator", "manifests", "--image", IMAGE, "--no-cel"]
        manifests = subprocess.run(words, check=True, capture_output=True, text=True)
        plane.kubectl("apply", "-f", "-", text=manifests.stdout)
        plane.kubectl("wait", "--for=condition=Established", "crd/clopsdeployments.berth.dev", "crd/modeldeployments.berth.dev")
        # Services lead nowhere here: tests of the webhook register it by its address.
        plane.kubectl("delete", "validatingwebhookconfiguration", "berth-operator")
        # The bootstrap roles, the namespaces and the CRDs are there; the operator's own Deployment runs nowhere.
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def webhook(plane):
    """Registers the webhook of an operator, as the manifests do, but by its address. Returns when the API server trusts it."""
    name = "validatingwebhookconfiguration/berth-operator"

    def register(operator: Operator, failure: str = "ignore") -> None:
        words = ["operator", "manifests", "--image", IMAGE, "--webhook-failure", failure]
        printed = subprocess.run([BERTH, *words], check=True, capture_output=True, text=True).stdout
        registration = next(one for one in yaml.safe_load_all(printed) if one["kind"] == "ValidatingWebhookConfiguration")
        registration["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{operator.webhook_port}/admit"}
        plane.apply(registration)
        until("the certificate", lambda: trusted(plane))

    yield register
    plane.kubectl("delete", name, "--ignore-not-found")


@pytest.fixture
def converts(plane):
    """Has the API server ask an operator for conversions, by its address."""
    def register(operator: Operator) -> None:
        client = {"service": None, "url": f"https://127.0.0.1:{operator.webhook_port}/convert"}
        convert_by(plane, client)

    yield register
    convert_by(plane, {"url": None, "service": {"name": "berth-operator", "namespace": "berth", "path": "/convert", "port": 443}})


def convert_by(plane: ControlPlane, client: dict) -> None:
    for name in DEFINITIONS:
        plane.patch("crd", "", name, {"spec": {"conversion": {"webhook": {"clientConfig": client}}}})


def trusted(plane: ControlPlane) -> int:
    """How many certificates the API server trusts as the webhook's."""
    client = plane.get("validatingwebhook", name="berth-operator")["webhooks"][0]["clientConfig"]
    return base64.b64decode(client.get("caBundle", "")).count(b"BEGIN CERTIFICATE")


@pytest.fixture(autouse=True)
def no_operator_stays():
    """An operator that a failed test leaves would keep its lease, and every later test would wait for it."""
    yield
    while Operator.of_this_test:
        Operator.of_this_test.pop().close()


@pytest.fixture
def operator(plane, tmp_path):
    """A running operator."""
    operator = Operator(tmp_path, plane)
    try:
        yield operator.start()
        assert operator.stop() == 0
    finally:
        operator.close()


@pytest.fixture
def namespace(plane, request):
    """A namespace of the test's own."""
    name = request.node.name.replace("_", "-")[:60].rstrip("-")
    plane.create("api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    plane.ask("DELETE", f"api/v1/namespaces/{name}")
