"""The operator against a real control plane."""

from __future__ import annotations

import base64
import subprocess
import urllib.error
import urllib.request

import pytest
from control_plane import OPERATOR, REGISTRATION, ControlPlane
from pools import install_pools, remove_pools
from harness.documents import documents
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import until

pytest_plugins = ["harness.failures"]

# The marker of tests with hundreds of objects.
MANY = "many"
IMAGE = "registry.example/berth:1"
LEASE = "apis/coordination.k8s.io/v1/namespaces/berth/leases/berth-operator"
# Those with several versions.
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

    def start(self, image: str = IMAGE, leads: bool = True, program: str = BERTH, *words: str) -> Operator:
        environment = {"KUBECONFIG": str(self.kubeconfig), "BERTH_LOG": "info,berth_operator=debug"}
        self.spawn(program, "operator", "run", "--image", image, "--namespace", "berth", "--identity", self.name,
                   "--listen", f"127.0.0.1:{self.port}", "--webhook-listen", f"127.0.0.1:{self.webhook_port}",
                   "--webhook-folder", self.keys, *words, env=environment)
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
        install(plane)
        # The bootstrap roles, the namespaces and the CRDs are there; the operator's own Deployment runs nowhere.
        yield plane
    finally:
        plane.stop()


def install(plane: ControlPlane) -> None:
    """Applies what `berth operator manifests` prints, and registers no webhook."""
    words = [BERTH, "operator", "manifests", "--image", IMAGE]
    manifests = subprocess.run(words, check=True, capture_output=True, text=True)
    plane.kubectl("apply", "-f", "-", text=manifests.stdout)
    plane.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in [*DEFINITIONS, "asyncapis.berth.dev"]))
    # Services lead nowhere here: tests of webhooks register them by their address. A conversion that fails makes the API server
    # list all objects again and again, once for each version.
    plane.kubectl("delete", "validatingwebhookconfiguration", "berth-operator")
    convert_by(plane, None)


@pytest.fixture
def webhook(plane):
    """Registers the webhook of an operator, as the manifests do, but by its address. Returns when the API server trusts it."""
    def register(operator: Operator, failure: str = "ignore") -> None:
        words = ["operator", "manifests", "--image", IMAGE, "--webhook-failure", failure]
        printed = subprocess.run([BERTH, *words], check=True, capture_output=True, text=True).stdout
        registration = next(one for one in documents(printed) if one["kind"] == "ValidatingWebhookConfiguration")
        registration["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{operator.webhook_port}/admit"}
        plane.apply(registration)
        until("the certificate", lambda: trusted(plane))

    yield register
    plane.ask("DELETE", f"{REGISTRATION}/validatingwebhookconfigurations/berth-operator")


@pytest.fixture
def converts(plane):
    """Has the API server ask an operator for conversions, by its address."""
    def register(operator: Operator) -> None:
        convert_by(plane, {"url": f"https://127.0.0.1:{operator.webhook_port}/convert"})

    yield register
    convert_by(plane, None)


def convert_by(plane: ControlPlane, client: dict | None) -> None:
    """Who converts between versions: a webhook, or nobody, so that all versions show what is stored."""
    webhook = client and {"conversionReviewVersions": ["v1"], "clientConfig": client}
    for name in DEFINITIONS:
        plane.patch("crd", "", name, {"spec": {"conversion": {"strategy": "Webhook" if client else "None", "webhook": webhook}}})


def trusted(plane: ControlPlane) -> int:
    """How many certificates the API server trusts as the webhook's."""
    client = plane.get("validatingwebhook", name="berth-operator")["webhooks"][0]["clientConfig"]
    return base64.b64decode(client.get("caBundle", "")).count(b"BEGIN CERTIFICATE")


@pytest.fixture(scope="module")
def pools(plane):
    """The custom resources of pools and of routes, as small as an operator needs them. They go with the tests of a file: with each definition
    that comes or goes the API server describes all of its API anew, which takes a second."""
    install_pools(plane)
    yield
    remove_pools(plane)


@pytest.fixture(autouse=True)
def no_operator_stays():
    """An operator that a failed test leaves, or that was killed, would keep its lease, and the next test would wait for its end."""
    yield
    ended = [Operator.of_this_test.pop() for _ in range(len(Operator.of_this_test))]
    for operator in ended:
        operator.close()
    killed = [operator for operator in ended if operator.process and operator.process.returncode]
    if killed and killed[0].plane.is_ready():
        killed[0].plane.ask("DELETE", LEASE)


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
    # Thousands of objects go with the control plane: their deletion costs as much as their making.
    if not request.node.get_closest_marker(MANY):
        plane.ask("DELETE", f"api/v1/namespaces/{name}")


def pytest_configure(config):
    config.addinivalue_line("markers", f"{MANY}: makes so many objects that it runs after all other tests, and leaves them")


def pytest_collection_modifyitems(items):
    """Tests with many objects come last, in their order: no test works beside their remains."""
    items.sort(key=lambda item: item.get_closest_marker(MANY) is not None)
