"""The example models, and manifests of them. `cargo xtask test` sets EXAMPLE_MODELS."""

from __future__ import annotations

import os
from pathlib import Path

EXAMPLES = Path(os.environ["EXAMPLE_MODELS"])
ARTIFACTS = EXAMPLES / "artifacts"

# A request for most of them: a flower of the first class.
IRIS = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}]}


def manifest(name: str, artifact: str = "iris", **spec) -> dict:
    """A deployment of one of the example models; `spec` is merged over the defaults."""
    model = {"format": "onnx", "uri": f"file:{ARTIFACTS / artifact}.onnx"} | spec.pop("model", {})
    return {
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {"model": model, "replicas": 1} | spec,
    }
