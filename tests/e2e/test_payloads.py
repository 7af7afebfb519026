"""Payload processors: what a service that takes requests and answers is posted, and what the log says."""

from __future__ import annotations

import base64
import json
import threading

import pytest

from harness.examples import IRIS, manifest
from harness.http_server import Answer, HttpServer, Request
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import PATIENCE, until

grpc = pytest.importorskip("grpc")

PREDICT = "/any.Service/predict"


class Sink(HttpServer):
    """Takes payloads."""

    def __init__(self):
        self.posted: list[dict] = []
        self.failing = False
        self.open = threading.Event()
        self.open.set()
        super().__init__()

    def answer(self, request: Request) -> Answer:
        assert request.method == "POST" and request.headers["content-type"] == "application/json"
        self.open.wait(PATIENCE)
        if self.failing:
            return Answer(500)
        self.posted.append(json.loads(request.body))
        return Answer(200)

    def of(self, model: str) -> tuple[dict, dict]:
        """Request and answer of the one exchange with a model."""
        until(f"request and answer of {model}", lambda: len([one for one in self.posted if one["modelid"] == model]) == 2)
        both = {one["kind"]: one for one in self.posted if one["modelid"] == model}
        assert both["request"]["id"] == both["response"]["id"]
        return both["request"], both["response"]


@pytest.fixture
def sink():
    server = Sink()
    yield server
    server.open.set()
    server.close()


@pytest.fixture
def spi(berth, tmp_path):
    """The flag for a runtime that answers any gRPC method with its own messages."""
    port, process = free_port(), Process("runtime", tmp_path)
    process.spawn(BERTH, "testing", "runtime", "--listen", f"127.0.0.1:{port}", "--any-method")
    declared = {"apiVersion": "berth.dev/v1", "kind": "Runtime", "metadata": {"name": "scripted"}, "spec": {"protocol": "spi", "address": port, "formats": ["any"]}}
    path = tmp_path / "runtime.yaml"
    path.write_text(json.dumps(declared))
    yield f"--runtime={path}"
    process.close()


def data(payload: dict) -> bytes:
    return base64.b64decode(payload["data"])


def any_model(name: str, path: str = "SIZE_1000") -> dict:
    spec = {"replicas": {"min": 0}, "model": {"format": "any", "uri": f"runtime:{path}?type=T"}}
    return {"apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": name}, "spec": spec}


def test_any_grpc_method_is_told_with_its_alias_and_without_credentials(berth, sink, spi):
    berth.start(spi, f"--payload-processor={sink.url}/consumer/kserve/v2")
    alias = {"apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": {"name": "live"}, "spec": {"targets": [{"deployment": "echo", "weight": 100}]}}
    berth.apply(any_model("echo"), any_model("broken", "FAIL_no such bucket"), alias)
    with grpc.insecure_channel(berth.http) as channel:
        call = channel.unary_unary(PREDICT)
        metadata = [("mm-vmodel-id", "live"), ("authorization", "Bearer secret"), ("some-bin", b"\x00\x01")]
        assert call(b"some bytes", metadata=metadata, timeout=PATIENCE) == b"some bytes"
        asked, answered = sink.of("echo")
        assert (data(asked), asked["vModelId"], asked["status"]) == (b"some bytes", "live", "")
        assert asked["metadata"]["mm-vmodel-id"] == "live" and asked["metadata"]["some-bin"] == "AAE="
        assert "authorization" not in asked["metadata"]
        assert (data(answered), answered["status"]) == (b"some bytes", "OK")
        with pytest.raises(grpc.RpcError):
            call(b"x", metadata=[("mm-model-id", "broken")], timeout=PATIENCE)
        asked, answered = sink.of("broken")
        assert (data(asked), data(answered)) == (b"", b""), "nobody read it, for want of a model"
        assert asked["metadata"]["mm-model-id"] == "broken" and answered["status"] not in ("", "OK"), answered


def test_a_stream_is_told_with_its_first_messages_and_its_last_status(berth, sink, spi):
    berth.start(spi, f"--payload-processor={sink.url}")
    berth.apply(any_model("echo"))
    with grpc.insecure_channel(berth.http) as channel:
        call = channel.stream_stream("/any.Service/chat")
        told = call(iter([b"first", b"second"]), metadata=[("mm-model-id", "echo")], timeout=PATIENCE)
        assert list(told) == [b"first", b"second"]
    asked, answered = sink.of("echo")
    assert (data(asked), data(answered), answered["status"]) == (b"first", b"first", "OK")


def test_rest_is_told_as_it_came_and_filters_choose(berth, sink):
    berth.start(f"--payload-processor={sink.url}?iris#infer", "--payload-processor=logger://*?other", "--log-format=json")
    berth.apply(manifest("iris"), manifest("other"))
    berth.available("iris", "other")
    assert berth.infer("other")[0] == 200 and berth.infer("iris", headers={"cookie": "secret"})[0] == 200
    asked, answered = sink.of("iris")
    assert json.loads(data(asked)) == IRIS and "cookie" not in asked["metadata"]
    assert (json.loads(data(answered))["model_name"], answered["status"]) == ("iris", "OK")
    assert {one["modelid"] for one in sink.posted} == {"iris"}
    lines = [json.loads(line) for line in berth.logged_lines() if '"payload"' in line]
    logged = [line["context"] for line in lines if line["event"] == "payload"]
    assert [(one["model"], one["kind"]) for one in logged] == [("other", "request"), ("other", "response")]
    assert logged[1]["status"] == "OK" and logged[0]["bytes"] > 0


def test_a_service_that_is_slow_or_fails_holds_up_no_request_and_is_counted(berth, sink):
    address = sink.url.removeprefix("http://")
    berth.start(f"--payload-processor={sink.url}", "--payload-memory=64KiB")
    berth.apply(manifest("iris"))
    berth.available("iris")
    sink.open.clear()
    for _ in range(100):
        assert berth.infer("iris")[0] == 200
    of = {"processor": f"http://{address}"}
    assert berth.metric("berth_payloads_total", result="dropped", **of) > 0
    assert berth.metric("berth_payloads_total", result="delivered", **of) == 0
    sink.failing = True
    sink.open.set()
    until("failures to be counted", lambda: berth.metric("berth_payloads_total", result="failed", **of) > 0)
