"""The chart as Helm installs it: the objects of `berth operator manifests`, changed, taken back and removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEFINITIONS, Operator, trusted
from control_plane import ControlPlane
from harness.documents import documents
from harness.processes import BERTH
from harness.waiting import until
from models import clops

CHART = Path(__file__).parents[2] / "packaging/kubernetes/chart"
IMAGE, NEXT = "registry.example/berth:1", "registry.example/berth:2"
CUSTOM = {"clopsdeployments.berth.dev", "modeldeployments.berth.dev", "asyncapis.berth.dev"}
SHOP = {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "watch"}}}], "modelPolicies": ["shop"],
        "clientsFrom": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}]}
SHOP_FLAGS = ["--metrics-from", "team=watch", "--model-policies", "shop", "--clients-from", "team=web"]

# Values, and the flags of the command that say the same.
SETTINGS = [
    ({"executorImage": "e:1", "sidecars": "container", "webhookFailure": "Fail", "networkPolicy": False},
     ["--executor-image", "e:1", "--sidecars", "container", "--webhook-failure", "fail", "--network-policies", "off"]),
    ({"watchNamespace": "shop"} | SHOP, ["--watch-namespace", "shop", *SHOP_FLAGS]),
    ({"replicas": 2, "serviceMonitor": True}, ["--replicas", "2", "--service-monitor"]),
]


class Helm:
    """The program, with files of its own."""

    def __init__(self, folder: Path):
        self.folder, self.words = folder, []
        self.program = os.environ.get("HELM")
        if not self.program:
            reason = "Helm was not built: `cargo xtask test --kubernetes` says why"
            print(f"tests/kubernetes/test_helm.py is skipped: {reason}", file=sys.__stderr__)
            pytest.skip(reason)

    def __call__(self, *words: str, values: dict | None = None, fails: bool = False) -> str:
        """What it says, on standard error where it should fail."""
        given = [] if values is None else ["--values", "-"]
        done = subprocess.run([self.program, *words, *given, *self.words], input=json.dumps(values), capture_output=True, text=True, timeout=120,
                              env=os.environ | {"HOME": str(self.folder)})
        assert bool(done.returncode) == fails, f"helm {words}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout


@pytest.fixture
def helm(tmp_path):
    return Helm(tmp_path)


@pytest.fixture
def empty(tmp_path_factory):
    """A cluster of its own, in which nothing is installed."""
    plane = ControlPlane(tmp_path_factory.mktemp("helm"))
    try:
        yield plane.start()
    finally:
        plane.stop()


def manifests(*words: str) -> list[dict]:
    """What the command prints. Helm makes the namespace itself."""
    done = subprocess.run([BERTH, "operator", "manifests", *words], check=True, capture_output=True, text=True)
    return [one for one in documents(done.stdout) if one["kind"] != "Namespace"]


def by_name(found: list[dict]) -> dict[tuple, dict]:
    found = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in found}
    for one in found.values():
        if one["kind"] == "CustomResourceDefinition":
            assert one["metadata"].pop("annotations", {}) in ({}, {"helm.sh/resource-policy": "keep"})
        # An empty list of callers means the same as none.
        for rule in one.get("spec", {}).get("ingress", []):
            if rule.get("from") == []:
                del rule["from"]
    return found


@pytest.mark.parametrize(("version", "values", "words"), [("1.30.0", {}, ["--cel"]), *(("1.20.2", *one) for one in SETTINGS)])
def test_helm_makes_what_the_command_prints(helm, version, values, words):
    made = helm("template", "berth-operator", str(CHART), "--namespace", "berth", "--kube-version", version, values={"image": IMAGE} | values)
    assert by_name(documents(made)) == by_name(manifests("--image", IMAGE, *words))


def test_helm_finds_no_mistake_and_refuses_values_that_cannot_be(helm):
    for values, _ in SETTINGS:
        assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", str(CHART), values={"image": IMAGE} | values)
    assert "set image: an image of Berth" in helm("template", "x", str(CHART), fails=True)
    refused = {"image": IMAGE, "networkPolicy": False, "modelPolicies": ["shop"]}
    assert "modelPolicies are NetworkPolicies" in helm("template", "x", str(CHART), values=refused, fails=True)


def test_a_release_is_installed_upgraded_rolled_back_and_removed(helm, empty, tmp_path):
    plane = empty
    helm.words = ["--namespace", "berth", "--kubeconfig", str(plane.kubeconfig)]
    plane.create("api/v1/namespaces", {"metadata": {"name": "shop"}})

    def is_as_printed(*words: str) -> None:
        """Nothing would change if what the command prints were applied over it, and nothing else is there."""
        printed = manifests(*words)
        # kubectl fails where it finds a difference.
        plane.kubectl("diff", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": printed}))
        assert by_name(documents(helm("get", "manifest", "berth-operator"))).keys() == by_name(printed).keys()

    def certificates() -> list[str]:
        definitions = [plane.get("crd", name=name)["spec"]["conversion"]["webhook"]["clientConfig"].get("caBundle") for name in DEFINITIONS]
        return [*definitions, plane.get("validatingwebhook", name="berth-operator")["webhooks"][0]["clientConfig"].get("caBundle")]

    helm("install", "berth-operator", str(CHART), "--create-namespace", values={"image": IMAGE})
    is_as_printed("--image", IMAGE)
    plane.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in CUSTOM))
    # An operator with the rights that Helm gave it writes its certificates.
    operator = Operator(tmp_path, plane).start(IMAGE)
    until("its certificates", lambda: trusted(plane) and all(certificates()))
    assert operator.stop() == 0
    written = certificates()

    helm("upgrade", "berth-operator", str(CHART), values={"image": NEXT, "webhookFailure": "Fail"} | SHOP)
    is_as_printed("--image", NEXT, "--webhook-failure", "fail", *SHOP_FLAGS)
    assert plane.find("networkpolicy", "shop", "berth-models") and certificates() == written, "an upgrade takes no certificate away"

    helm("rollback", "berth-operator", "1")
    is_as_printed("--image", IMAGE)
    assert not plane.find("networkpolicy", "shop", "berth-models") and certificates() == written

    # Its Service leads nowhere here.
    plane.ask("DELETE", "apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/berth-operator")
    plane.create("apis/berth.dev/v1/namespaces/shop/clopsdeployments", clops("shop"))
    assert "clopsdeployments.berth.dev" in helm("uninstall", "berth-operator"), "it says what it keeps"
    until("the operator's Lease to go with its Deployment", lambda: not plane.find("lease", "berth", "berth-operator"))
    inside = plane.all("berth", "serviceaccount", "role", "rolebinding", "configmap", "secret", "deployment", "service", "networkpolicy")
    outside = plane.all("", "clusterrole", "clusterrolebinding", "validatingwebhook", "mutatingwebhook", "crd")
    assert {one["metadata"]["name"] for one in inside + outside if "berth" in one["metadata"]["name"]} == CUSTOM
    assert plane.find("clops", "shop", "iris")

    # What was kept is taken up by the next one.
    helm("install", "berth-operator", str(CHART), values={"image": NEXT})
    is_as_printed("--image", NEXT)
    assert plane.find("clops", "shop", "iris")
