"""The webhook: what cannot work is refused when it is written, by what the cluster says."""

from __future__ import annotations

import json
import shutil
import signal

from conftest import Operator, trusted
from harness.waiting import until
from models import clops, exists

PORTS = [{"name": "http", "port": 8080}]


def refusal(plane, written: dict) -> str:
    return plane.kubectl("apply", "-f", "-", text=json.dumps(written), fails=True)


def checked(plane, namespace: str) -> bool:
    """The API server uses a changed registration some moments later."""
    wrong = clops(namespace, "probe", container={"image": "i", "ports": PORTS * 2})
    _, said = plane.ask("POST", f"apis/berth.dev/v1/namespaces/{namespace}/clopsdeployments?dryRun=All", wrong)
    return b"denied the request" in said


def test_what_cannot_work_is_refused_at_once(plane, operator, webhook, namespace):
    webhook(operator)
    until("the webhook to be asked", lambda: checked(plane, namespace))
    said = refusal(plane, clops(namespace, container={"image": "i", "ports": PORTS * 2}))
    assert "spec.model.container.ports[].name: http comes twice" in said, said
    probe = {"httpGet": {"port": "no such port!"}}
    said = refusal(plane, clops(namespace, container={"image": "i", "ports": PORTS, "readinessProbe": probe}))
    assert "could not be applied" in said and "readinessProbe" in said, said
    said = refusal(plane, clops(namespace, container={"image": "i", "ports": PORTS, "env": [{"name": "THREADS", "value": 1}]}))
    assert "could not be applied" in said and "THREADS" in said and "expected string" in said, said
    plane.kubectl("create", "service", "clusterip", "taken", "-n", namespace, "--tcp=80")
    said = refusal(plane, clops(namespace, "taken"))
    assert f"there is a Service {namespace}/taken of somebody else" in said, said
    assert not exists(plane, namespace, "clops") and not exists(plane, namespace, "clops", "taken")

    plane.apply(clops(namespace))
    until("the Deployment", lambda: exists(plane, namespace, "deployment"))
    plane.apply(clops(namespace, container={"image": "registry.example/iris:2", "ports": PORTS}))
    said = refusal(plane, clops(namespace, container={"image": "i", "ports": PORTS, "readinessProbe": probe}))
    assert "readinessProbe" in said
    counted = operator.ask("/metrics")[1]
    assert 'berth_operator_reviews_total{verdict="denied"}' in counted and 'verdict="unchecked"' not in counted
    plane.kubectl("label", "clops", "iris", "-n", namespace, "team=flowers")
    plane.kubectl("delete", "clops", "iris", "-n", namespace)


def test_without_the_webhook_it_goes_as_configured(plane, tmp_path, webhook, namespace):
    operator = Operator(tmp_path, plane, "gone").start()
    try:
        webhook(operator, "fail")
        until("the webhook to be asked", lambda: checked(plane, namespace))
        operator.signal(signal.SIGKILL)
        said = refusal(plane, clops(namespace))
        assert "failed calling webhook" in said and "models.berth.dev" in said, said
        webhook(operator, "ignore")
        models = f"apis/berth.dev/v1/namespaces/{namespace}/clopsdeployments"
        until("the API server to let it through", lambda: plane.ask("POST", models, clops(namespace))[0] == 201)
    finally:
        operator.close()


def test_each_operator_has_a_certificate_of_its_own(plane, tmp_path, webhook, namespace):
    first, second = Operator(tmp_path, plane, "first").start(), Operator(tmp_path, plane, "second")
    try:
        webhook(first)
        second.start(leads=False)
        until("both certificates", lambda: trusted(plane) == 2)
        # One that lost its key makes another.
        assert second.stop() == 0
        shutil.rmtree(second.keys)
        second.start(leads=False)
        until("the third certificate", lambda: trusted(plane) == 3)
        until("the webhook to be asked", lambda: checked(plane, namespace))
        assert {one.stat().st_mode & 0o777 for one in first.keys.glob("*.key")} == {0o600}
        assert (first.stop(), second.stop()) == (0, 0)
    finally:
        first.close()
        second.close()
