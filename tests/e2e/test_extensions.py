"""Further parts of the inference port: KServe's first protocol, generate, shared memory, log and trace settings, labels, inputs with
defaults, metrics, readiness on demand. With the clients that people use for them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from harness.examples import EXAMPLES, manifest
from harness.server import Berth
from harness.waiting import PATIENCE

FLOWERS = np.array([[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]], dtype=np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server where all of these parts are on."""
    berth = Berth(tmp_path_factory.mktemp("extensions"))
    try:
        berth.start("--http-metrics", "--on-demand-ready", "--shared-memory", models=EXAMPLES).available("iris", "sentiment")
        yield berth
    finally:
        berth.close()


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    module = {"http": triton_http, "grpc": triton_grpc}[request.param]
    with module.InferenceServerClient(server.http) as client:
        client.module = module
        yield client


def as_dict(client, **more) -> dict:
    return more if client.module is triton_http else more | {"as_json": True}


def test_kserves_sdk_in_its_first_protocol(server):
    script = Path(__file__).parent / "kserve_v1_client.py"
    done = subprocess.run([sys.executable, str(script), f"http://{server.http}"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["live"], seen["ready"]) == (True, True)
    # Several outputs: rows are objects.
    assert [row["label"] for row in seen["predictions"]] == [0, 2] and len(seen["predictions"][0]["probabilities"]) == 3
    assert "positive" in json.dumps(seen["texts"])


def test_the_first_protocol_by_hand(server):
    assert json.loads(server.get("/v1/models")[2])["models"] == json.loads(server.get("/v2/models")[2])["models"]
    status, _, body = server.post("/v1/models/iris:predict", {"inputs": {"X": FLOWERS.tolist()}})
    assert status == 200 and [row["label"] for row in json.loads(body)["predictions"]] == [0, 2]
    for path, body, expected in [
        ("/v1/models/iris:predict", {"instances": [[1, 2]]}, 400),
        ("/v1/models/iris:predict", {}, 400),
        ("/v1/models/nobody:predict", {"instances": [[1, 2]]}, 404),
        ("/v1/models/iris:explain", {"instances": [[1, 2]]}, 501),
    ]:
        status, _, answer = server.post(path, body)
        assert status == expected and json.loads(answer)["error"], (path, body, status, answer)
    assert server.get("/v1/models/nobody")[0] == 404


def test_generate_and_its_stream(server):
    asked = {"id": "7", "text": "a great film, I loved it"}
    status, _, body = server.post("/v2/models/sentiment/generate", asked)
    answer = json.loads(body)
    assert status == 200 and (answer["id"], answer["model_name"], answer["label"]) == ("7", "sentiment", "positive"), answer
    status, headers, body = server.post("/v2/models/sentiment/generate_stream", asked)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    [event] = [line.removeprefix("data: ") for line in body.decode().splitlines() if line]
    assert json.loads(event) == answer
    assert server.post("/v2/models/sentiment/generate", {"text": 3})[0] == 400


def test_shared_memory(client):
    module, name = client.module, f"berth-{'http' if client.module is triton_http else 'grpc'}"
    took, gave = FLOWERS.nbytes, 2 * 3 * 4
    inputs = shm.create_shared_memory_region("in", f"/{name}-in", took)
    outputs = shm.create_shared_memory_region("out", f"/{name}-out", gave)
    try:
        client.register_system_shared_memory("in", f"/{name}-in", took)
        client.register_system_shared_memory("out", f"/{name}-out", gave)
        with pytest.raises(InferenceServerException, match="registered already"):
            client.register_system_shared_memory("in", f"/{name}-in", took)
        shm.set_shared_memory_region(inputs, [FLOWERS])

        def flowers(region, **where):
            x = module.InferInput("X", [2, 4], "FP32")
            x.set_shared_memory(region, took, **where)
            return [x]

        probabilities = module.InferRequestedOutput("probabilities")
        probabilities.set_shared_memory("out", gave)
        answer = client.infer("iris", flowers("in"), outputs=[module.InferRequestedOutput("label"), probabilities])
        assert answer.as_numpy("label").tolist() == [0, 2]
        written = shm.get_contents_as_numpy(outputs, np.float32, [2, 3])
        assert written.argmax(axis=1).tolist() == [0, 2]
        status = client.get_system_shared_memory_status(**as_dict(client))
        assert {"in", "out"} <= {region["name"] for region in (status if isinstance(status, list) else status["regions"].values())}
        # More than the region has, a region that is not there, and one that has shrunk.
        with pytest.raises(InferenceServerException, match="beyond"):
            client.infer("iris", flowers("in", offset=8))
        with pytest.raises(InferenceServerException, match="not registered"):
            client.infer("iris", flowers("other"))
        Path(f"/dev/shm/{name}-in").write_bytes(b"short")
        with pytest.raises(InferenceServerException, match="no longer what was registered"):
            client.infer("iris", flowers("in"))
        client.unregister_system_shared_memory("in")
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status(**as_dict(client)).__len__() or client.module is triton_grpc
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(inputs)
        shm.destroy_shared_memory_region(outputs)


def test_shared_memory_is_off_unless_somebody_wants_it(shared):
    with triton_http.InferenceServerClient(shared.http) as client:
        assert "system_shared_memory" not in client.get_server_metadata()["extensions"]
        with pytest.raises(InferenceServerException, match="--shared-memory"):
            client.register_system_shared_memory("in", "/in", 4)


def test_log_and_trace_settings(client):
    settings = client.get_log_settings(**as_dict(client))
    assert "log_verbose_level" in json.dumps(settings)
    for level in (1, 0):
        changed = client.update_log_settings({"log_verbose_level": level}, **as_dict(client))
        assert str(level) in json.dumps(changed), changed
    with pytest.raises(InferenceServerException, match="standard error"):
        client.update_log_settings({"log_file": "/tmp/log"})
    # Nobody takes the traces of this server.
    assert "OFF" in json.dumps(client.get_trace_settings(**as_dict(client)))
    with pytest.raises(InferenceServerException, match="--otlp"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})


def test_metrics_on_the_inference_port(server, shared):
    status, headers, body = server.get("/metrics")
    assert status == 200 and b"berth_gateway_requests" in body and headers["content-type"].startswith("application/openmetrics-text")
    assert shared.get("/metrics")[0] == 404, "it is a setting"


def test_a_model_on_demand_counts_as_ready(client, shared):
    assert client.is_model_ready("diabetes") and not client.is_model_ready("nobody")
    with triton_http.InferenceServerClient(shared.http) as other:
        assert not other.is_model_ready("digits-forest"), "it is a setting"


def scaled(path: Path) -> Path:
    """y = x · scale, where scale is 2 unless a request gives it, and the classes have names."""
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    node = helper.make_node("Mul", ["x", "scale"], ["y"])
    default = helper.make_tensor("scale", TensorProto.FLOAT, [1], [2.0])
    graph = helper.make_graph([node], "scaled", [value("x", ["n", 3]), value("scale", [1])], [value("y", ["n", 3])], [default])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    helper.set_model_props(model, {"labels": json.dumps(["cat", "dog", "bird"])})
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_inputs_with_defaults_and_labels(client, server, tmp_path, isolation):
    name = f"scaled-{isolation}"
    server.apply(manifest(name, model={"uri": f"file:{scaled(tmp_path / 'scaled.onnx')}"}, runtime={"isolation": isolation}))
    server.available(name)
    module = client.module

    def tensor(name, values):
        array = np.array(values, dtype=np.float32)
        tensor = module.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        return tensor

    x = tensor("x", [[1, 3, 2]])
    assert client.infer(name, [x]).as_numpy("y").tolist() == [[2, 6, 4]]
    assert client.infer(name, [tensor("scale", [10]), x]).as_numpy("y").tolist() == [[10, 30, 20]]
    with pytest.raises(InferenceServerException, match="shape"):
        client.infer(name, [x, tensor("scale", [1, 2])])
    metadata = client.get_model_metadata(name, **as_dict(client))
    assert [each["name"] for each in metadata["inputs"]] == ["x", "scale"]
    config = client.get_model_config(name, **as_dict(client))
    assert [bool(each.get("optional")) for each in config.get("config", config)["input"]] == [False, True]
    classes = client.infer(name, [x], outputs=[module.InferRequestedOutput("y", class_count=2)]).as_numpy("y")
    assert [each.decode() for each in classes.ravel()] == ["6.000000:1:dog", "4.000000:2:bird"]
    server.run("delete", f"deployment/{name}")


def test_versions_of_one_model_beside_each_other(client, server):
    """Triton's version policy: an alias whose targets have versions."""
    versions = [("1", 1), ("2", 99)]
    deployments = [manifest(f"flower-v{version}", model={"version": version}) for version, _ in versions]
    targets = [{"deployment": f"flower-v{version}", "weight": weight} for version, weight in versions]
    alias = {"apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": {"name": "flower"}, "spec": {"targets": targets}}
    server.apply(*deployments, alias)
    server.available("flower-v1", "flower-v2")
    x = client.module.InferInput("X", [2, 4], "FP32")
    x.set_data_from_numpy(FLOWERS)

    def answered(version: str) -> str:
        answer = client.infer("flower", [x], model_version=version).get_response()
        name, version = (answer["model_name"], answer["model_version"]) if isinstance(answer, dict) else (answer.model_name, answer.model_version)
        assert name == "flower"
        return version

    assert [answered(version) for version in ("1", "2") * 4] == ["1", "2"] * 4
    assert {answered("") for _ in range(100)} == {"1", "2"}
    metadata = client.get_model_metadata("flower", **as_dict(client))
    assert metadata["versions"] == ["2", "1"]
    assert client.is_model_ready("flower", "1") and client.is_model_ready("flower", "2") and not client.is_model_ready("flower", "3")
    with pytest.raises(InferenceServerException, match="version"):
        answered("3")
    server.run("delete", "alias/flower")
    server.run("delete", "deployment/flower-v1")
    server.run("delete", "deployment/flower-v2")
