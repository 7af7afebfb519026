"""Proof that the operator bears what happens to clusters: many objects, an API server that dies, others who write the same fields."""

from __future__ import annotations

import json
import signal
import time

import pytest
from conftest import Operator
from control_plane import OPERATOR
from harness.waiting import until
from models import clops, exists, settled


def image(plane, namespace: str, name: str = "iris") -> str:
    return plane.get("deployment", namespace, name)["spec"]["template"]["spec"]["containers"][0]["image"]


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
        plane.apply(changed(namespace))

        def is_there() -> bool:
            # If the API server was away, or denied it its lease, for longer than that lasts, the operator ends, and Kubernetes starts it anew.
            if not operator.runs():
                operator.start(leads=False)
            # An API server that starts may deny for a moment that there are ModelDeployments: Kubernetes collects their children then, and
            # the operator makes them anew.
            return exists(plane, namespace, "deployment") and image(plane, namespace) == "registry.example/iris:2"

        until("the change", is_there)
    finally:
        operator.close()


def test_an_api_server_that_falls_silent_ends_the_leadership(plane, tmp_path, namespace):
    """It answers nothing and closes nothing, like a machine that is cut off: another operator may lead after 15 s."""
    api = plane.processes["api"]
    leader, told = Operator(tmp_path, plane, "leader").start(), Operator(tmp_path, plane, "told")
    try:
        api.send_signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            until("the leader to end", lambda: not leader.runs(), patience=60)
            assert time.monotonic() - begun > 5, "it bears a few seconds"
            assert "this one ends, to start anew" in leader.logged(), leader.logged()
        finally:
            api.send_signal(signal.SIGCONT)
        until("the API server", plane.is_ready)
        # Who is told to stop does not wait for an answer without an end either.
        told.start()
        api.send_signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            assert told.stop() == 0, told.logged()
            assert time.monotonic() - begun < 30, "the kubelet would have killed it"
        finally:
            api.send_signal(signal.SIGCONT)
        until("the API server", plane.is_ready)
    finally:
        leader.close()
        told.close()


@pytest.mark.many
@pytest.mark.timeout(2000)
def test_a_thousand_objects_cost_no_write_and_a_change_costs_its_own(plane, tmp_path, namespace):
    first = Operator(tmp_path, plane, "maker").start()
    plane.create(f"apis/berth.dev/v1/namespaces/{namespace}/clopsdeployments", *(clops(namespace, f"model-{i}") for i in range(1000)))
    # All are looked at once nothing waits any more: a list of 1,000 objects costs the API server more than a change of one.
    until("1,000 objects", lambda: first.is_idle() and settled(plane, namespace), patience=1500)
    assert first.stop() == 0
    before = plane.writes("berth-operator", namespace)
    second = Operator(tmp_path, plane, "beginner").start()
    try:
        ready = next(json.loads(line) for line in second.logged_lines() if '"ready"' in line)
        print(f"start beside 1,000 objects: {ready}")
        assert plane.writes("berth-operator", namespace) == before
        plane.apply(changed(namespace, "model-500"))
        until("the change", lambda: image(plane, namespace, "model-500") == "registry.example/iris:2")
        until("its status", lambda: plane.get("mdep", namespace, "model-500")["status"]["observedGeneration"] == 2)
        written = plane.writes("berth-operator", namespace)[len(before):]
        assert {name for _, resource, name in written if resource != "events"} == {"model-500"}
        times = {(line["user"]["username"], line["objectRef"]["resource"]): line["stageTimestamp"] for line in plane.audited()
                 if line.get("objectRef", {}).get("name") == "model-500" and line["verb"] == "patch"}
        asked, applied = times["admin", "clopsdeployments"], times[OPERATOR, "deployments"]
        print(f"one change: written by its user at {asked}, applied to the Deployment at {applied}")
        assert second.stop() == 0
    finally:
        second.close()


def test_fields_of_other_controllers_stay_theirs(plane, operator, namespace):
    plane.apply(clops(namespace))
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    theirs = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "iris", "namespace": namespace, "labels": {"mesh": "yes"}},
              "spec": {"template": {"metadata": {"annotations": {"sidecar.example/inject": "true"}},
                                    "spec": {"containers": [{"name": "sidecar", "image": "registry.example/sidecar:1"}]}}}}
    plane.kubectl("apply", "--server-side", "--field-manager=mesh", "--validate=false", "-f", "-", text=json.dumps(theirs))
    generation = plane.get("deployment", namespace, "iris")["metadata"]["generation"]
    plane.apply(changed(namespace))
    until("the change", lambda: "registry.example/iris:2" in json.dumps(plane.get("deployment", namespace, "iris")["spec"]))
    deployment = plane.get("deployment", namespace, "iris")
    names = {one["name"] for one in deployment["spec"]["template"]["spec"]["containers"]}
    assert names == {"model", "executor", "sidecar"} and deployment["metadata"]["labels"]["mesh"] == "yes"
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
    failed = [line for line in operator.logged_lines() if '"attempt_failed"' in line and namespace in line]
    assert not failed, failed[:3]
    plane.create("api/v1/namespaces", {"metadata": {"name": namespace}})
