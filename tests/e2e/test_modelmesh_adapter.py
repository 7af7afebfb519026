"""KServe's own mlserver-adapter (`modelmesh-runtime-adapter`, in Go) as it is, between Berth and a real MLServer.

MLSERVER_ADAPTER names the program, which `cargo xtask test` builds where there is Go.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.ports import free_port
from harness.processes import Process
from harness.waiting import until
from test_runtimes import MLSERVER, TRAIN, declared, loaded, model, predicted

ADAPTER = os.environ.get("MLSERVER_ADAPTER")

pytestmark = pytest.mark.skipif(not (ADAPTER and MLSERVER), reason="MLSERVER_ADAPTER or MLSERVER names no program")

KINDS = {"sklearn": "model.joblib", "lightgbm": "model.bst", "xgboost": "model.json"}


class Beside:
    """MLServer and its adapter, as they stand beside ModelMesh in a pod."""

    def __init__(self, folder: Path):
        self.models, self.spi, self.inference = folder / "models", free_port(), free_port()
        self.server, self.adapter = Process("mlserver", folder), Process("adapter", folder)
        (self.models / "_mlserver_models").mkdir(parents=True)

    def start_server(self) -> None:
        ports = {"GRPC": self.inference, "HTTP": free_port(), "METRICS": free_port()}
        env = {f"MLSERVER_{name}_PORT": str(port) for name, port in ports.items()}
        env |= {
            "MLSERVER_HOST": "127.0.0.1",
            "MLSERVER_PARALLEL_WORKERS": "0",
            "MLSERVER_LOAD_MODELS_AT_STARTUP": "false",
            "MLSERVER_MODEL_NAME": "dummy-model-fixme",
        }
        self.server.spawn(str(Path(MLSERVER) / "mlserver"), "start", str(self.models / "_mlserver_models"), env=env)

    def start(self) -> Beside:
        self.start_server()
        env = {
            "ADAPTER_PORT": str(self.spi),
            "RUNTIME_PORT": str(self.inference),
            "CONTAINER_MEM_REQ_BYTES": str(1 << 30),
            "MEM_BUFFER_BYTES": str(128 << 20),
            "ROOT_MODEL_DIR": str(self.models),
        }
        self.adapter.spawn(ADAPTER, env=env)
        return self

    def close(self) -> None:
        self.adapter.close()
        self.server.close()


@pytest.fixture
def beside(tmp_path):
    pair = Beside(tmp_path).start()
    yield pair
    pair.close()


def test_models_of_mlserver_are_loaded_called_and_mended_through_the_adapter(berth, beside, tmp_path):
    runtime = {"protocol": "spi", "address": beside.spi, "inferenceAddress": beside.inference, "formats": list(KINDS)}
    berth.start("--runtime", declared(tmp_path, runtime))
    python = Path(MLSERVER) / "python"
    for kind, file in KINDS.items():
        path = tmp_path / kind / file
        path.parent.mkdir()
        subprocess.run([python, "-c", TRAIN, kind, path], check=True, capture_output=True)
        berth.apply(model(kind, kind, f"file:{path}"))
    loaded(berth, *KINDS)
    right = lambda kind: predicted(berth, kind, [0.0, 0.0]) < predicted(berth, kind, [3.0, 3.0])
    assert all(right(kind) for kind in KINDS)
    assert "896MiB" in berth.run("describe", "node", "local"), "the adapter's capacity is what it may hold"
    laid = beside.models / "_mlserver_models"
    assert {folder.name for folder in laid.iterdir()} == set(KINDS)
    # A server that was started again holds nothing; the adapter does not know.
    beside.server.close()
    beside.start_server()
    until("an answer of the new server", lambda: berth.infer("sklearn", {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [0.0, 0.0]}]})[0] == 200)
    assert right("sklearn")
    berth.run("delete", "deployment", "lightgbm")
    until("the adapter to unload it", lambda: not (laid / "lightgbm").exists())
