"""ModelMesh's management API, with messages written by hand: their field numbers are the contract."""

import json

import pytest

from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import until

grpc = pytest.importorskip("grpc")

NOT_FOUND, NOT_LOADED, LOADING, LOADED, LOADING_FAILED = range(5)
DEFINED, TRANSITIONING, TRANSITION_FAILED = 1, 2, 3


def varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def message(fields: dict) -> bytes:
    encoded = b""
    for number, value in fields.items():
        if isinstance(value, dict):
            value = message(value)
        if isinstance(value, (str, bytes)):
            value = value.encode() if isinstance(value, str) else value
            encoded += varint(number << 3 | 2) + varint(len(value)) + value
        else:
            encoded += varint(number << 3) + varint(int(value))
    return encoded


def read(encoded: bytes) -> dict:
    """The fields by number, each a list of numbers and bytes."""
    fields: dict = {}

    def number() -> int:
        nonlocal encoded
        value = shift = 0
        while True:
            byte, encoded = encoded[0], encoded[1:]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while encoded:
        key = number()
        if key & 7 == 2:
            length = number()
            value, encoded = encoded[:length], encoded[length:]
        else:
            value = number()
        fields.setdefault(key >> 3, []).append(value)
    return fields


class ModelMesh:
    def __init__(self, address: str):
        self.channel = grpc.insecure_channel(address)

    def call(self, method: str, fields: dict) -> dict:
        raw = {"request_serializer": bytes, "response_deserializer": bytes}
        return read(self.channel.unary_unary(f"/mmesh.ModelMesh/{method}", **raw)(message(fields), timeout=60))

    def register(self, model: str, path: str, **flags) -> dict:
        return self.call("registerModel", {1: model, 2: {1: "mt:example", 2: path, 3: "{}"}} | ({3: 1, 4: 1} if flags else {}))

    def status(self, model: str) -> int:
        return self.call("getModelStatus", {1: model}).get(1, [NOT_FOUND])[0]

    def vmodel(self, vmodel: str) -> tuple[int, str]:
        told = self.call("getVModelStatus", {1: vmodel})
        return told.get(1, [0])[0], told.get(2, [b""])[0].decode()

    def refused(self, method: str, fields: dict) -> str:
        with pytest.raises(grpc.RpcError) as refused:
            self.call(method, fields)
        return refused.value.code().name


class Runtime(Process):
    """One that does what the paths of models say."""

    def __init__(self, folder):
        super().__init__("runtime", folder)
        self.address = f"127.0.0.1:{free_port()}"

    def start(self):
        self.spawn(BERTH, "testing", "runtime", "--listen", self.address)


@pytest.fixture
def runtime(tmp_path):
    runtime = Runtime(tmp_path)
    runtime.start()
    yield runtime
    runtime.close()


@pytest.fixture
def mesh(berth, runtime, tmp_path):
    declared = tmp_path / "runtime.yaml"
    declared.write_text(json.dumps({
        "apiVersion": "berth.dev/v1",
        "kind": "Runtime",
        "metadata": {"name": "testing"},
        "spec": {"protocol": "spi", "address": runtime.address, "formats": ["*"]},
    }))
    berth.start("--runtime", str(declared))
    return ModelMesh(berth.http)


def test_models_and_virtual_models(mesh, berth):
    assert mesh.status("myModel") == NOT_FOUND
    assert mesh.register("myModel", "SIZE_1000000")[1] == [NOT_LOADED]
    assert mesh.call("ensureLoaded", {1: "myModel", 4: 1})[1] == [LOADED]
    assert mesh.refused("registerModel", {1: "myModel", 2: {1: "mt:example", 2: "other"}}) == "ALREADY_EXISTS"
    assert mesh.refused("registerModel", {1: "m2", 2: {2: "no type"}}) == "INVALID_ARGUMENT"
    assert mesh.refused("ensureLoaded", {1: "none"}) == "NOT_FOUND"
    bad = mesh.register("bad", "FAIL_no such bucket", load=True)
    assert bad[1] == [LOADING_FAILED] and b"no such bucket" in bad[2][0], bad

    assert mesh.call("setVModel", {1: "live", 2: "myModel", 10: "me"})[1] == [DEFINED]
    assert mesh.refused("setVModel", {1: "live", 2: "bad", 10: "you"}) == "ALREADY_EXISTS"
    assert mesh.refused("unregisterModel", {1: "myModel"}) == "FAILED_PRECONDITION"
    slow = {1: "mt:example", 2: "SIZE_1000000_1500", 3: "{}"}
    assert mesh.call("setVModel", {1: "live", 2: "next", 4: slow, 10: "me"})[1] == [TRANSITIONING]
    assert mesh.vmodel("live") == (TRANSITIONING, "myModel")
    until("the switch", lambda: mesh.vmodel("live") == (DEFINED, "next"))
    mesh.call("unregisterModel", {1: "myModel"})
    until("the model to go", lambda: mesh.status("myModel") == NOT_FOUND)

    # Inference by the virtual model's id, to any method of the runtime.
    raw = {"request_serializer": bytes, "response_deserializer": bytes}
    call = mesh.channel.unary_unary("/any.Service/any", **raw)
    assert call(b"hello", metadata=[("mm-vmodel-id", "live")], timeout=60) == b"hello"
    assert "next 100%" in berth.run("get", "aliases")
    assert "next" in berth.run("get", "deployments")
    assert "live leads to next (100% of its requests)" in berth.run("explain", "live")


def test_a_call_waits_for_a_runtime_that_is_started_again(mesh, runtime):
    raw = {"request_serializer": bytes, "response_deserializer": bytes}
    call = mesh.channel.unary_unary("/any.Service/any", **raw)
    for model in ("warm", "cold"):
        mesh.register(model, "SIZE_1000000")
    assert call(b"hello", metadata=[("mm-model-id", "warm")], timeout=60) == b"hello"
    runtime.kill()
    waits = call.future(b"hello", metadata=[("mm-model-id", "cold")], timeout=60)
    until("the load to begin", lambda: mesh.status("cold") == LOADING)
    assert not waits.done()
    runtime.start()
    assert waits.result() == b"hello"
    # It has forgotten what it held, which its next call mends.
    assert call(b"hello", metadata=[("mm-model-id", "warm")], timeout=60) == b"hello"


def test_modelmeshs_port_answers_as_the_other_does(berth):
    other = f"127.0.0.1:{free_port()}"
    berth.start("--also-http", other)
    also = ModelMesh(other)
    assert also.register("myModel", "SIZE_1000")[1] == [NOT_LOADED]
    for mesh in (also, ModelMesh(berth.http)):
        assert mesh.status("myModel") == NOT_LOADED


def test_a_change_goes_on_after_a_restart(mesh, berth):
    mesh.register("a", "SIZE_1000000", load=True)
    mesh.call("setVModel", {1: "live", 2: "a"})
    slow = {1: "mt:example", 2: "SIZE_1000000_3000", 3: "{}"}
    assert mesh.call("setVModel", {1: "live", 2: "b", 4: slow})[1] == [TRANSITIONING]
    berth.stop()
    berth.start("--runtime", str(berth.folder / "runtime.yaml"))
    again = ModelMesh(berth.http)
    until("the switch", lambda: again.vmodel("live") == (DEFINED, "b"))
