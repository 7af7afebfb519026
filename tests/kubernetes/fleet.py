"""A `berth up` that follows the objects of a cluster, with the rights that docs/kubernetes.md lists and no others."""

from __future__ import annotations

from pathlib import Path

from control_plane import FLEET, ControlPlane
from harness.examples import ARTIFACTS
from harness.server import Berth

KSERVE = "serving.kserve.io"


class Fleet(Berth):
    """One node; its objects get URLs that lead to it."""

    def __init__(self, folder: Path, plane: ControlPlane):
        super().__init__(folder)
        self.kubeconfig = plane.config(FLEET, "fleet-token")

    def follow(self, place: str = "kubernetes", *arguments: str) -> Fleet:
        return self.start("--source", place, "--kubernetes-url", f"http://{self.http}", *arguments, env={"KUBECONFIG": str(self.kubeconfig)})


def at(artifact: str) -> str:
    return f"file://{ARTIFACTS / artifact}.onnx"


def service(namespace: str, name: str = "iris", artifact: str = "iris", **predictor) -> dict:
    model = {"modelFormat": {"name": "onnx"}, "storageUri": at(artifact)} | predictor.pop("model", {})
    return {
        "apiVersion": f"{KSERVE}/v1beta1", "kind": "InferenceService", "metadata": {"name": name, "namespace": namespace},
        "spec": {"predictor": {"model": model} | predictor},
    }


def alpha(kind: str, namespace: str, name: str, **spec) -> dict:
    return {"apiVersion": f"{KSERVE}/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}
