"""Strangers with bad intentions against a real server. Each test is a way in which one was brought down, or read, once.

The binary comes from BERTH, the engine from ORT_DYLIB_PATH, the trained models from EXAMPLE_MODELS
(`cargo xtask test` sets all three).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.server import Berth

pytest_plugins = ["harness.failures"]

# Graphs that no exporter would make by mistake.
GRAPHS = Path(__file__).parents[2] / "crates/worker/tests/fixtures"


@pytest.fixture
def berth(tmp_path):
    """A server that is not started yet."""
    server = Berth(tmp_path)
    yield server
    server.close()


def deployment(name: str, graph: str, **spec) -> dict:
    """A deployment of one of the graphs."""
    return {
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"format": "onnx", "uri": f"file:{GRAPHS / graph}.onnx"}, "replicas": 1} | spec,
    }
