"""Asynchronous APIs: what is derived from a model's executor, what it tells, and what people may not do with it."""

from __future__ import annotations

from conftest import Operator
from harness.waiting import until
from models import NO_CONTROLLER, REDIS, asynchronous, clops, condition, exists, pods_are_ready

API = "iris.http"
SPEC = {"model": "iris", "port": "http", "servicePort": 8080, "paths": ["/a"], "always": False, "prefix": "/jobs",
        "queue": {"kind": "Redis", "key": "iris"}, "callbacks": []}


def counts(plane, namespace: str, kind: str = "clops") -> tuple[int, int]:
    """How many asynchronous APIs there are, and how many of them are ready."""
    status = plane.get(kind, namespace, "iris").get("status", {})
    return status.get("asyncApis", 0), status.get("readyAsyncApis", 0)


def spec(plane, namespace: str) -> dict:
    return plane.find("asyncapi", namespace, API).get("spec", {})


def uid(plane, namespace: str) -> str | None:
    return plane.find("asyncapi", namespace, API).get("metadata", {}).get("uid")


def told(plane, namespace: str) -> set[str]:
    """The reasons of its events."""
    events = plane.get("event", namespace)["items"]
    return {one["reason"] for one in events if one["involvedObject"]["kind"] == "AsyncAPI"}


def test_an_asynchronous_port_has_an_object_that_goes_with_it(plane, operator, namespace):
    plane.kubectl_apply(clops(namespace, **asynchronous(REDIS)))
    until("the object", lambda: exists(plane, namespace, "asyncapi", API))
    made = plane.get("asyncapi", namespace, API)
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ModelDeployment", plane.get("mdep", namespace, "iris")["metadata"]["uid"])
    assert made["spec"] == SPEC
    until("its status", lambda: condition(plane, namespace, "asyncapi", API).get("message") == NO_CONTROLLER)
    until("it to be counted", lambda: counts(plane, namespace) == (1, 0))
    pods_are_ready(plane, namespace)
    plane.kubectl("wait", "-n", namespace, f"asyncapi/{API}", "--for=condition=Ready", "--timeout=60s")
    status = plane.get("asyncapi", namespace, API)["status"]
    assert (status["address"], status["observedGeneration"]) == (f"iris.{namespace}.svc:8080/jobs", 1)
    until("the top to count it", lambda: counts(plane, namespace) == (1, 1))
    until("the event", lambda: "Available" in told(plane, namespace))
    assert plane.kubectl("get", "aapi", "-n", namespace).split()[:5] == ["NAME", "READY", "QUEUE", "ADDRESS", "AGE"]
    assert "Templates of the paths" in plane.kubectl("explain", "asyncapi.spec.paths")

    # Others do not change it, and cannot do without it; no pod is restarted for it.
    before = plane.get("deployment", namespace, "iris")["metadata"]["generation"]
    plane.patch("asyncapi", namespace, API, {"spec": {"paths": ["/other"], "queue": {"kind": "Memory"}}})
    until("it to be put right", lambda: spec(plane, namespace) == SPEC)
    plane.kubectl("delete", "asyncapi", "-n", namespace, API)
    until("another one in its place", lambda: uid(plane, namespace) not in (None, made["metadata"]["uid"]))
    assert plane.get("deployment", namespace, "iris")["metadata"]["generation"] == before

    # Two pods do not share a queue in memory.
    plane.kubectl_apply(clops(namespace, **asynchronous(None)))
    until("the queue to be told", lambda: condition(plane, namespace, "asyncapi", API, "Stalled").get("reason") == "QueueNotShared")
    assert "name a queue of Redis or NATS" in condition(plane, namespace, "asyncapi", API)["message"]
    until("none to be ready", lambda: counts(plane, namespace) == (1, 0))
    until("the event", lambda: "QueueNotShared" in told(plane, namespace))

    plane.kubectl_apply(clops(namespace))
    until("it to go", lambda: not exists(plane, namespace, "asyncapi", API))
    until("nothing to be counted", lambda: counts(plane, namespace) == counts(plane, namespace, "mdep") == (0, 0))


def test_one_that_people_write_says_so_and_is_refused(plane, operator, webhook, namespace):
    def written(name: str) -> dict:
        return {"apiVersion": "berth.dev/v1", "kind": "AsyncAPI", "metadata": {"name": name, "namespace": namespace}, "spec": SPEC}

    plane.kubectl_apply(written(API))
    until("the remedy", lambda: condition(plane, namespace, "asyncapi", API).get("reason") == "NotDerived")
    plane.kubectl_apply(clops(namespace, **asynchronous(REDIS)))
    until("the model, which does not wait", lambda: exists(plane, namespace, "service"))
    until("none to be ready", lambda: counts(plane, namespace) == (1, 0))
    first = uid(plane, namespace)
    plane.kubectl("delete", "asyncapi", "-n", namespace, API)
    until("the model's own", lambda: uid(plane, namespace) not in (None, first))
    assert plane.get("asyncapi", namespace, API)["metadata"]["ownerReferences"]

    webhook(operator)
    collection = f"apis/berth.dev/v1/namespaces/{namespace}/asyncapis?dryRun=All"
    until("the refusal", lambda: b"an AsyncAPI is derived, not written" in plane.ask("POST", collection, written("mine"))[1])
    # The operator passes its own webhook.
    plane.patch("asyncapi", namespace, API, {"spec": {"paths": ["/other"]}})
    until("it to be put right", lambda: spec(plane, namespace) == SPEC)


def test_an_operator_that_comes_to_a_model_adds_it_and_changes_nothing_else(plane, tmp_path, namespace):
    first = Operator(tmp_path, plane, "before").start()
    plane.apply(clops(namespace, **asynchronous(REDIS)))
    until("its status", lambda: condition(plane, namespace, "asyncapi", API))
    until("the status of the top", lambda: condition(plane, namespace, "clops").get("message") == NO_CONTROLLER)
    assert first.stop() == 0
    # As it is where an operator of before has made the model.
    plane.kubectl("delete", "asyncapi", "-n", namespace, API)
    writes = len(plane.writes("berth-operator", namespace))
    second = Operator(tmp_path, plane, "next").start(image="registry.example/berth:2")
    try:
        until("the object", lambda: condition(plane, namespace, "asyncapi", API))
        until("nothing to wait", second.is_idle)
        written = {resource for _, resource, _ in plane.writes("berth-operator", namespace)[writes:]}
        assert "asyncapis" in written and not written & {"deployments", "services", "configmaps"}, written
    finally:
        second.stop()
