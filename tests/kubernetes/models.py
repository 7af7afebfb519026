"""Model applications, as people write them, and what a cluster says of them."""

from __future__ import annotations

# The state of a Deployment whose controller has not looked at it; here there is none.
NO_CONTROLLER = "the Deployment was created or changed"
REDIS = {"redis": "redis://redis:6379", "key": "iris"}


def clops(namespace: str, name: str = "iris", **model) -> dict:
    container = {"image": "registry.example/iris:1", "ports": [{"name": "http", "port": 8080}]}
    fields = {"container": container, "replicas": 2} | model
    return {
        "apiVersion": "berth.dev/v1", "kind": "CLOpsDeployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {name: value for name, value in fields.items() if value is not None}},
    }


def asynchronous(queue: dict | None) -> dict:
    """An executor whose port takes asynchronous requests; without a queue, its jobs are in memory."""
    section = {"paths": ["/a"]} | ({"queue": queue} if queue else {})
    return {"executor": {"ports": [{"name": "http", "settings": {"async": section}}]}}


def condition(plane, namespace: str, kind: str, name: str = "iris", topic: str = "Ready") -> dict:
    conditions = plane.find(kind, namespace, name).get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == topic), {})


def settled(plane, namespace: str) -> bool:
    """True if each model says what it says once its Deployment is there."""
    objects = plane.get("clops", namespace)["items"]
    return all(one.get("status", {}).get("conditions", [{}])[0].get("message") == NO_CONTROLLER for one in objects)


def pods_are_ready(plane, namespace: str, name: str = "iris") -> None:
    """Says so in the place of the Deployment's controller."""
    deployment = plane.get("deployment", namespace, name)
    count = deployment["spec"]["replicas"]
    status = {"observedGeneration": deployment["metadata"]["generation"], "replicas": count, "updatedReplicas": count,
              "readyReplicas": count, "availableReplicas": count}
    plane.patch("deployment", namespace, name, {"status": status}, "/status")


def exists(plane, namespace: str, kind: str, name: str = "iris") -> bool:
    return bool(plane.find(kind, namespace, name))
