"""What installs the operator: its rights, its port, the Kustomize base."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from conftest import DEFINITIONS, IMAGE, Operator
from control_plane import OPERATOR
from harness.documents import documents
from harness.processes import BERTH
from harness.waiting import until
from models import NO_CONTROLLER, REDIS, asynchronous, clops, condition, exists, pods_are_ready

PACKAGES = Path(__file__).parents[2] / "packaging/kubernetes"

# Rights that leave no line of their own in the audit log: a server-side apply of a new object needs create, one of a binding to a role needs
# bind, and a cluster that checks who may block a deletion asks for the finalizers.
SILENT = {("modeldeployments", "create"), ("asyncapis", "create"), ("deployments", "create"), ("services", "create"), ("configmaps", "create"),
          ("horizontalpodautoscalers", "create"), ("inferencepools", "create"), ("httproutes", "create"), ("serviceaccounts", "create"),
          ("rolebindings", "create"), ("clusterroles", "bind"),
          ("clopsdeployments/finalizers", "update"), ("modeldeployments/finalizers", "update")}

# Rights that may leave a line or none: an event that comes again within minutes is patched.
SOMETIMES = {("events", "patch")}

# Budgets come with Kubernetes 1.21, and this API server is of 1.20.
NEWER = {("poddisruptionbudgets", verb) for verb in ("get", "list", "watch", "create", "patch")}


def manifests(*words: str) -> list[dict]:
    done = subprocess.run([BERTH, "operator", "manifests", *words], check=True, capture_output=True, text=True)
    return documents(done.stdout)


def converter(plane, definition: str) -> dict:
    return plane.get("crd", name=definition)["spec"]["conversion"]["webhook"]["clientConfig"]


def granted(objects: list[dict]) -> set[tuple[str, str]]:
    """The rights of the operator. The role of pickers is bound to theirs: test_pools.py runs one with it."""
    roles = [one for one in objects if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"] != "berth-picker"]
    return {(resource, verb) for role in roles for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}


def everything(plane, operator: Operator, namespace: str, webhook, converts) -> None:
    """All that an operator does, from its start to its end."""
    webhook(operator)
    converts(operator)
    until("its certificate in the definitions", lambda: all(converter(plane, name).get("caBundle") for name in DEFINITIONS))
    plane.kubectl_apply(clops(namespace))
    until("the Deployment", lambda: exists(plane, namespace, "service"))
    pods_are_ready(plane, namespace)
    until("the status", lambda: condition(plane, namespace, "clops").get("status") == "True")
    # An autoscaler comes and goes.
    plane.kubectl_apply(clops(namespace, replicas=None, autoscaling={"maxReplicas": 3}))
    until("the autoscaler", lambda: exists(plane, namespace, "hpa"))
    plane.kubectl_apply(clops(namespace))
    until("the autoscaler to go", lambda: not exists(plane, namespace, "hpa"))
    # So does an asynchronous API.
    plane.kubectl_apply(clops(namespace, **asynchronous(REDIS)))
    until("the asynchronous API", lambda: condition(plane, namespace, "asyncapi", "iris.http"))
    plane.kubectl_apply(clops(namespace))
    until("the asynchronous API to go", lambda: not exists(plane, namespace, "asyncapi", "iris.http"))
    # So does a pool, with a route and a picker.
    plane.kubectl_apply(clops(namespace, inferencePool={"port": "http", "gateway": "infra/public"}))
    until("the picker", lambda: exists(plane, namespace, "service", "iris-picker"))
    plane.kubectl_apply(clops(namespace))
    until("the pool and the route to go", lambda: not exists(plane, namespace, "inferencepool") and not exists(plane, namespace, "httproute"))
    assert operator.stop() == 0


def rights_used(lines: list[dict]) -> set[tuple[str, str]]:
    """The rights that an operator used, by lines of the audit log."""
    lines = [line for line in lines if line["user"]["username"] == OPERATOR]
    # What nobody granted, and not what a namespace that goes refuses, by 403 as well.
    refused = [line["requestURI"] for line in lines if line.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"]
    assert not refused, refused
    # Without an object, it asks for the version alone, which everybody may.
    assert {line["requestURI"] for line in lines if "objectRef" not in line} <= {"/version"}
    lines = [line for line in lines if "objectRef" in line]
    places = [line["objectRef"] for line in lines]
    return {("/".join(filter(None, [place["resource"], place.get("subresource")])), line["verb"])
            for place, line in zip(places, lines, strict=True)}


def test_the_operator_uses_all_of_its_rights_and_asks_for_no_other(plane, tmp_path, namespace, pools, webhook, converts):
    everything(plane, Operator(tmp_path, plane).start(), namespace, webhook, converts)
    used, wanted = rights_used(plane.audited()), granted(manifests("--image", "x"))
    assert used - wanted == set(), "the API server let it do what nothing grants"
    assert wanted - used - SOMETIMES == SILENT | NEWER, "rights that it does not use"


def test_an_operator_of_one_namespace_has_rights_there_alone(plane, tmp_path, namespace, pools, webhook, converts):
    def roles(*words: str) -> list[dict]:
        return [one for one in manifests("--image", IMAGE, *words) if "Role" in one["kind"]]

    def may_list(*where: str) -> bool:
        return plane.kubectl("auth", "can-i", "list", "clopsdeployments.berth.dev", "--as", OPERATOR, *where, fails=None).startswith("yes")

    limited, before = roles("--watch-namespace", namespace), len(plane.audited())
    plane.kubectl_apply(*limited)
    try:
        until("its rights to be those of one namespace", lambda: may_list("-n", namespace) and not may_list("--all-namespaces"))
        operator = Operator(tmp_path, plane).start(IMAGE, True, BERTH, "--watch-namespace", namespace)
        everything(plane, operator, namespace, webhook, converts)
        lines = plane.audited()[before:]
        used, wanted = rights_used(lines), granted(limited)
        # The Lease is there from an operator before.
        unused = wanted - used - SOMETIMES - {("leases", "create")}
        assert used - wanted == set() and unused == SILENT | NEWER
        places = [line["objectRef"] for line in lines if line["user"]["username"] == OPERATOR and "objectRef" in line]
        assert {place.get("namespace") for place in places} == {None, "berth", namespace}
        # Of what is in no namespace, it touches what it may name.
        assert all(place.get("name") for place in places if "namespace" not in place)
    finally:
        plane.kubectl_apply(*roles())
        until("its rights to be those of before", lambda: may_list("--all-namespaces"))


def test_an_operator_without_a_right_says_which(plane, tmp_path, namespace, pools):
    """As after an upgrade of the image alone: the roles are those of a version that had no pools."""
    def role(*without: str) -> dict:
        role = next(one for one in manifests("--image", IMAGE) if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", "berth-operator"))
        return role | {"rules": [rule for rule in role["rules"] if not set(rule["resources"]) & set(without)]}

    def may_list(kind: str) -> bool:
        return plane.kubectl("auth", "can-i", "list", kind, "--as", OPERATOR, "--all-namespaces", fails=None).startswith("yes")

    def routed() -> dict:
        return condition(plane, namespace, "clops", topic="Routed")

    plane.kubectl_apply(role("inferencepools", "httproutes", "serviceaccounts", "rolebindings"))
    try:
        until("the rights to be gone", lambda: not may_list("rolebindings"))
        operator = Operator(tmp_path, plane).start()
        plane.apply(clops(namespace, inferencePool={"port": "http"}))
        until("the model", lambda: exists(plane, namespace, "service"))
        until("the missing right", lambda: routed().get("reason") == "Forbidden")
        assert "InferencePool" in routed()["message"] and not exists(plane, namespace, "inferencepool")
        told = [line for line in operator.logged_lines() if '"right_missing"' in line]
        assert len(told) == 4 and "cannot list resource" in told[0], told
        plane.kubectl_apply(role())
        until("the picker", lambda: exists(plane, namespace, "service", "iris-picker"))
        assert operator.stop() == 0
        # Without these there is nothing that it could do.
        plane.kubectl_apply(role("deployments"))
        until("this right to be gone", lambda: not may_list("deployments.apps"))
        refused = Operator(tmp_path, plane, "refused").start(leads=False)
        until("its end", lambda: not refused.runs())
        assert refused.process.returncode == 1
        assert 'cannot list resource "deployments"' in refused.logged() and "berth operator manifests" in refused.logged()
    finally:
        plane.kubectl_apply(role())
        until("its rights to be those of before", lambda: may_list("rolebindings") and may_list("deployments.apps"))


def test_its_port_tells_how_it_is(plane, operator, namespace):
    plane.apply(clops(namespace))
    until("the Deployment", lambda: exists(plane, namespace, "service"))
    assert [operator.ask(path)[0] for path in ("/livez", "/readyz", "/secrets")] == [200, 200, 404]

    def sample(name: str) -> float:
        lines = operator.ask("/metrics")[1].splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), -1)

    until("its attempts", lambda: sample('berth_operator_attempts_total{kind="ModelDeployment",outcome="succeeded"}') >= 1)
    until("nothing to wait", lambda: sample("berth_operator_waiting_objects ") == 0)
    assert sample("berth_operator_leading ") == 1
    assert sample('berth_operator_objects{kind="Deployment"}') >= 1
    assert sample("berth_operator_attempt_duration_seconds_count") >= 1


def test_the_base_with_an_image_is_what_the_command_prints(tmp_path):
    shutil.copytree(PACKAGES / "base", tmp_path / "base")
    overlay = tmp_path / "mine"
    overlay.mkdir()
    paths = ["/spec/template/spec/containers/0/image", "/spec/template/spec/containers/0/env/0/value"]
    patch = [{"op": "replace", "path": path, "value": "registry.example/berth:1"} for path in paths]
    (overlay / "kustomization.yaml").write_text(json.dumps({
        "resources": ["../base"],
        "patches": [{"target": {"kind": "Deployment", "name": "berth-operator"}, "patch": json.dumps(patch)}],
    }))
    built = subprocess.run(["kubectl", "kustomize", str(overlay)], check=True, capture_output=True, text=True)

    def by_name(objects):
        return {(one["kind"], one["metadata"]["name"]): one for one in objects}

    assert by_name(documents(built.stdout)) == by_name(manifests("--image", "registry.example/berth:1"))


def test_policies_say_who_may_connect(plane, namespace):
    def policies(*words: str) -> dict[str, dict]:
        return {one["metadata"]["name"]: one for one in manifests("--image", "x", *words) if one["kind"] == "NetworkPolicy"}

    assert policies().keys() == {"berth-operator"} and policies("--network-policies", "off") == {}
    printed = policies("--model-policies", namespace, "--clients-from", "team=web", "--metrics-from", "kubernetes.io/metadata.name=monitoring")
    plane.kubectl_apply(printed["berth-models"], printed["berth-pickers"])
    for name in ("berth-models", "berth-pickers"):
        # The API server drops fields that it does not know.
        assert plane.get("networkpolicy", namespace, name)["spec"] == printed[name]["spec"]
    refused = subprocess.run([BERTH, "operator", "manifests", "--image", "x", "--clients-from", "team=web"], capture_output=True, text=True)
    assert refused.returncode == 2 and "--model-policies" in refused.stderr
    # Who may connect is said by policies.
    for words in (["manifests", "--metrics-from", "a=b"], ["fleet", "--metrics-from", "a=b"], ["fleet", "--clients-from", "a=b"]):
        refused = subprocess.run([BERTH, "operator", *words, "--image", "x", "--network-policies", "off"], capture_output=True, text=True)
        assert refused.returncode == 2 and f"{words[1]} is for NetworkPolicies" in refused.stderr, refused.stderr


def test_several_operators_are_protected_and_watched():
    kinds = {one["kind"] for one in manifests("--image", "x", "--replicas", "2", "--service-monitor")}
    more = kinds - {one["kind"] for one in manifests("--image", "x")}
    assert more == {"PodDisruptionBudget", "ServiceMonitor", "PodMonitor"}


def test_uninstalling_leaves_nothing_and_keeps_the_models_that_should_stay(plane, tmp_path, namespace):
    """What is installed goes, with all that the operator made for itself; as with the chart, the custom resources stay, and so the models."""
    operator = Operator(tmp_path, plane).start()
    plane.apply(clops(namespace))
    until("the Service", lambda: exists(plane, namespace, "service"))
    until(lambda: f"the status: {condition(plane, namespace, 'clops')}", lambda: condition(plane, namespace, "clops").get("message") == NO_CONTROLLER)
    owner = plane.get("lease", "berth", "berth-operator")["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Deployment", "berth-operator")
    assert operator.stop() == 0
    installed = manifests("--image", IMAGE)
    rest = [one for one in installed if one["kind"] not in ("CustomResourceDefinition", "Namespace")]
    before = plane.all(namespace, "clops", "mdep", "deployment", "service", "configmap")
    try:
        plane.kubectl("delete", "--ignore-not-found", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": rest}))
        until("the Lease to go", lambda: not exists(plane, "berth", "lease", "berth-operator"))
        inside = plane.all("berth", "serviceaccount", "role", "rolebinding", "lease", "configmap", "secret", "deployment", "statefulset",
                           "service", "networkpolicy")
        cluster = plane.all("", "clusterrole", "clusterrolebinding", "validatingwebhook", "mutatingwebhook")
        names = [one["metadata"]["name"] for one in inside + cluster]
        assert not [name for name in names if "berth" in name], names
        assert plane.all(namespace, "clops", "mdep", "deployment", "service", "configmap") == before, "the models stay as they are"
    finally:
        plane.kubectl_apply(*(one for one in rest if one["kind"] != "ValidatingWebhookConfiguration"))
    # Installed again, it finds all as it should be.
    writes = plane.writes("berth-operator", namespace)
    again = Operator(tmp_path, plane, "again").start()
    assert again.stop() == 0
    assert plane.writes("berth-operator", namespace) == writes
