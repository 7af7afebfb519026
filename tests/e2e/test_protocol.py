"""Unmodified tritonclient over HTTP, gRPC and asyncio: the Open Inference Protocol as its most common client speaks it."""

import asyncio
import json
import queue
import socket

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from tritonclient.utils import InferenceServerException

from harness.examples import IRIS
from harness.waiting import PATIENCE

FLOWERS = np.array([[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]], dtype=np.float32)
KINDS = [0, 2]


@pytest.fixture(params=["http", "grpc"])
def client(request, shared):
    module = {"http": triton_http, "grpc": triton_grpc}[request.param]
    with module.InferenceServerClient(shared.http) as client:
        client.module = module
        yield client


def flower(module, array=FLOWERS, **how):
    tensor = module.InferInput("X", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, **how)
    return tensor


def test_health_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("iris")
    # On demand and not loaded: known, but not ready.
    assert not client.is_model_ready("diabetes") and not client.is_model_ready("nobody")
    as_dict = (lambda m, **k: m) if client.module is triton_http else None
    server = client.get_server_metadata() if as_dict else client.get_server_metadata(as_json=True)
    assert server["name"] == "berth" and {"binary_tensor_data", "model_repository", "statistics"} <= set(server["extensions"])
    model = client.get_model_metadata("iris") if as_dict else client.get_model_metadata("iris", as_json=True)
    assert model["platform"] == "onnx_onnxv1"
    assert [(t["name"], t["datatype"]) for t in model["inputs"]] == [("X", "FP32")]
    assert [int(d) for d in model["inputs"][0]["shape"]] == [-1, 4]
    assert [t["name"] for t in model["outputs"]] == ["label", "probabilities"]


def test_infer_with_the_clients_defaults(client):
    result = client.infer("iris", [flower(client.module)], request_id="seven")
    assert result.as_numpy("label").tolist() == KINDS
    np.testing.assert_allclose(result.as_numpy("probabilities").sum(axis=1), 1, rtol=1e-5)
    answer = result.get_response()
    assert (answer["id"] if isinstance(answer, dict) else answer.id) == "seven"


def test_infer_by_version_and_requested_outputs(client):
    model = client.get_model_metadata("iris")
    version = model["versions"][0] if isinstance(model, dict) else model.versions[0]
    wanted = [client.module.InferRequestedOutput("probabilities")]
    result = client.infer("iris", [flower(client.module)], model_version=version, outputs=wanted)
    assert result.as_numpy("label") is None and result.as_numpy("probabilities").shape == (2, 3)
    with pytest.raises(InferenceServerException, match="version"):
        client.infer("iris", [flower(client.module)], model_version="no-such-version")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_http_json_and_binary_both_ways(shared, binary_in, binary_out):
    with triton_http.InferenceServerClient(shared.http) as client:
        wanted = [triton_http.InferRequestedOutput(name, binary_data=binary_out) for name in ("label", "probabilities")]
        result = client.infer("iris", [flower(triton_http, binary_data=binary_in)], outputs=wanted)
        assert result.as_numpy("label").tolist() == KINDS


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compression_both_ways(shared, compression):
    with triton_http.InferenceServerClient(shared.http) as client:
        how = {"request_compression_algorithm": compression, "response_compression_algorithm": compression}
        assert client.infer("iris", [flower(triton_http)], **how).as_numpy("label").tolist() == KINDS
    with triton_grpc.InferenceServerClient(shared.http) as client:
        assert client.infer("iris", [flower(triton_grpc)], compression_algorithm=compression).as_numpy("label").tolist() == KINDS


def test_text(client):
    text = np.array([["a great film, I loved it"], ["awful and boring"]], dtype=np.object_)
    tensor = client.module.InferInput("text", [2, 1], "BYTES")
    tensor.set_data_from_numpy(text)
    labels = client.infer("sentiment", [tensor]).as_numpy("label")
    assert [label.decode() for label in labels.ravel()] == ["positive", "negative"]


def test_classification(shared):
    with triton_http.InferenceServerClient(shared.http) as client:
        wanted = [triton_http.InferRequestedOutput("probabilities", class_count=2)]
        classes = client.infer("iris", [flower(triton_http)], outputs=wanted).as_numpy("probabilities")
        assert classes.shape == (2, 2) and classes[0][0].decode().split(":")[1] == "0" and classes[1][0].decode().split(":")[1] == "2"


def test_asyncio(shared):
    async def both():
        async with triton_http_aio.InferenceServerClient(shared.http) as over_http:
            async with triton_grpc_aio.InferenceServerClient(shared.http) as over_grpc:
                calls = [over_http.infer("iris", [flower(triton_http)]) for _ in range(50)]
                calls += [over_grpc.infer("iris", [flower(triton_grpc)]) for _ in range(50)]
                return await asyncio.gather(*calls)

    for result in asyncio.run(both()):
        assert result.as_numpy("label").tolist() == KINDS


def test_grpc_stream(shared):
    answers: queue.Queue = queue.Queue()
    with triton_grpc.InferenceServerClient(shared.http) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for index in range(20):
            client.async_stream_infer("iris", [flower(triton_grpc)], request_id=str(index))
        client.async_stream_infer("nobody", [flower(triton_grpc)], request_id="bad")
        good, bad = [], []
        for _ in range(21):
            result, error = answers.get(timeout=PATIENCE)
            (bad if error else good).append(error or result)
        client.stop_stream()
    assert sorted(int(result.get_response().id) for result in good) == list(range(20))
    assert len(bad) == 1 and "nobody" in str(bad[0])


def test_statistics_count(client):
    def count():
        stats = client.get_inference_statistics("iris") if client.module is triton_http else client.get_inference_statistics("iris", as_json=True)
        return int(stats["model_stats"][0]["inference_stats"]["success"]["count"])

    before = count()
    for _ in range(5):
        client.infer("iris", [flower(client.module)])
    assert count() == before + 5


def test_model_config(client):
    config = client.get_model_config("iris") if client.module is triton_http else client.get_model_config("iris", as_json=True)["config"]
    assert config["name"] == "iris" and config["input"][0]["data_type"] == "TYPE_FP32"


def test_repository(client):
    index = client.get_model_repository_index() if client.module is triton_http else client.get_model_repository_index(as_json=True)["models"]
    states = {model["name"]: model.get("state") for model in index}
    assert states["iris"] == "READY" and "digits-forest" in states
    client.load_model("digits-forest")
    assert client.is_model_ready("digits-forest")
    client.unload_model("digits-forest")
    assert not client.is_model_ready("digits-forest")
    # What is declared to stay is not taken away by a client.
    with pytest.raises(InferenceServerException, match="replicas"):
        client.unload_model("iris")
    with pytest.raises(InferenceServerException, match="nobody"):
        client.load_model("nobody")


def test_grpc_typed_contents(shared):
    from tritonclient.grpc import service_pb2, service_pb2_grpc
    import grpc

    with grpc.insecure_channel(shared.http) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="iris", id="typed")
        tensor = request.inputs.add(name="X", datatype="FP32", shape=[2, 4])
        tensor.contents.fp32_contents.extend(FLOWERS.ravel().tolist())
        answer = stub.ModelInfer(request, timeout=PATIENCE)
        assert list(answer.outputs[0].contents.int64_contents) == KINDS and not answer.raw_output_contents
        # Both forms at once say two things.
        request.raw_input_contents.append(FLOWERS.tobytes())
        with pytest.raises(grpc.RpcError) as error:
            stub.ModelInfer(request, timeout=PATIENCE)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_trailing_slash_and_unknown_paths(shared):
    assert shared.get("/v2")[0] == shared.get("/v2/")[0] == 200
    for path in ("/nothing", "/v3", "/v2/nothing", "/v2/models/iris/nothing"):
        status, _, body = shared.get(path)
        assert status == 404 and "error" in json.loads(body), path
    status, headers, _ = shared._call(shared.http, "DELETE", "/v2/models/iris/infer")
    assert status == 405 and "POST" in headers["allow"]


BAD = {
    "no JSON": (b"{", "JSON"),
    "no inputs": ({}, "inputs"),
    "unknown input": ({"inputs": [dict(IRIS["inputs"][0], name="Z")]}, "Z"),
    "another datatype": ({"inputs": [dict(IRIS["inputs"][0], datatype="INT64", data=[1, 2, 3, 4])]}, "FP32"),
    "no datatype at all": ({"inputs": [dict(IRIS["inputs"][0], datatype="FP31")]}, "FP31"),
    "too few elements": ({"inputs": [dict(IRIS["inputs"][0], data=[1, 2])]}, "X"),
    "negative dimension": ({"inputs": [dict(IRIS["inputs"][0], shape=[-1, 4])]}, "X"),
    "overflowing shape": ({"inputs": [dict(IRIS["inputs"][0], shape=[1 << 62, 1 << 62])]}, "X"),
    "wrong width": ({"inputs": [dict(IRIS["inputs"][0], shape=[1, 5], data=[1] * 5)]}, "X"),
    "text as number": ({"inputs": [dict(IRIS["inputs"][0], data=["a", "b", "c", "d"])]}, "X"),
    "twice the same": ({"inputs": IRIS["inputs"] * 2}, "X"),
    "unknown output": (dict(IRIS, outputs=[{"name": "nothing"}]), "nothing"),
    "deep nesting": (b'{"inputs":' + b"[" * 5_000 + b"]" * 5_000 + b"}", ""),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_refused_and_harm_nobody(shared, case):
    body, named = BAD[case]
    status, _, answer = shared.post("/v2/models/iris/infer", body)
    assert status == 400, answer
    assert named in json.loads(answer)["error"]
    assert shared.infer("iris")[0] == 200


def test_bad_binary_headers(shared):
    for length in ("99999999", "-1", "many"):
        status, _, answer = shared.post("/v2/models/iris/infer", IRIS, {"inference-header-content-length": length})
        assert status == 400 and "error" in json.loads(answer), length


def test_large_bodies_are_refused(shared):
    status, _, answer = shared._call(shared.http, "POST", "/v2/models/iris/infer", None, {"content-length": str(1 << 40)})
    assert status == 413, answer


def raw(shared, head: str, body: bytes = b"") -> str:
    """The whole answer to a request written by hand, of which nothing follows."""
    host, port = shared.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        connection.sendall(f"POST {head}\r\nhost: {shared.http}\r\n\r\n".encode() + body)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()


INFER = "/v2/models/iris/infer HTTP/1.1\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize("chunk", [b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n{}\r\n0\r\n\r\n", b"f" * 20 + b"\r\n{}\r\n"])
def test_malformed_chunks_are_the_clients_mistake(shared, chunk):
    answer = raw(shared, INFER + "transfer-encoding: chunked", chunk)
    assert answer.startswith("HTTP/1.1 400 ") and "malformed" in answer, answer


def test_a_body_shorter_than_its_length_is_the_clients_mistake(shared):
    answer = raw(shared, INFER + "content-length: 100", b'{"inputs": ')
    assert answer.startswith("HTTP/1.1 400 ") and "Content-Length" in answer, answer


def test_nobody_is_asked_for_a_body_that_is_refused(shared):
    """`100 Continue` asks for the body; a model that is not there needs none."""
    refused = raw(shared, INFER.replace("iris", "nobody") + "content-length: 9000\r\nexpect: 100-continue")
    assert refused.startswith("HTTP/1.1 404 ") and "Request for unknown model" in refused, refused
    host, port = shared.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        head = f"POST {INFER}content-length: 2\r\nexpect: 100-continue\r\nconnection: close\r\nhost: {shared.http}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(b"{}")
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 400 "), answer


def test_an_unknown_method_is_named(shared):
    import grpc

    with grpc.insecure_channel(shared.http) as channel:
        for path in ("/inference.GRPCInferenceService/TraceIt", "/no.such.Service/Method"):
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(path)(b"", timeout=PATIENCE)
            assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED and path in error.value.details()


def test_an_unload_right_after_a_use_is_done(client):
    for _ in range(3):
        client.load_model("digits-forest")
        client.unload_model("digits-forest")
        assert not client.is_model_ready("digits-forest")
