"""`berth modelmesh` as ModelMesh's launcher starts it: two instances that know nothing but their store, a runtime beside each."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import PATIENCE, until
from test_modelmesh import varint

grpc = pytest.importorskip("grpc")

pytestmark = pytest.mark.skipif(shutil.which("etcd") is None, reason="there is no etcd on this machine")

PREDICT = "/any.Service/predict"
METRICS = {
    "Instance_0": "per_model_metrics=true",
    "Instance_1": "scheme=http;fq_names=true",
}
NAMED = "/any.Service/named"


def named(model: str, payload: bytes = b"") -> bytes:
    """A message with the model in field 1 and something in field 2."""
    return b"\x0a" + bytes([len(model)]) + model.encode() + b"\x12" + bytes([len(payload)]) + payload


def probe(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


class Instance:
    def __init__(self, folder, store: str, name: str):
        self.name, self.port, self.probe, self.spi = name, free_port(), free_port(), free_port()
        self.metrics = free_port()
        self.runtime = Process(f"runtime-{name}", folder)
        self.process = Process(f"instance-{name}", folder)
        self.termination = folder / f"termination-{name}"
        self.listens, self.runtime_flags = f"127.0.0.1:{self.spi}", []
        rpcs = {NAMED[1:]: {"idExtractionPath": [1], "vModelId": True}}
        self.env = {
            "KV_STORE": store,
            "MM_SVC_GRPC_PORT": str(self.port),
            "INTERNAL_GRPC_PORT": str(self.spi),
            "MM_PRESTOP_WAIT_PORT": str(self.probe),
            "MM_DATAPLANE_CONFIG": json.dumps({"rpcConfigs": rpcs, "allowOtherRpcs": True}),
            "MM_METRICS": f"prometheus:port={self.metrics};{METRICS.get(name, '')}",
            "MM_MULTI_PARALLELISM": "4",
            "LL_TERMINATION_MSG_PATH": str(self.termination),
        }

    def start(self) -> Instance:
        runtime = ["--listen", self.listens, "--method", f"{NAMED[1:]}=1", "--any-method", *self.runtime_flags]
        self.runtime.spawn(BERTH, "testing", "runtime", *runtime)
        self.process.spawn(BERTH, "modelmesh", "-n", "svc", "-v", "1", "-i", self.name, "-h", str(self.probe), env=self.env)
        return self

    def ready(self) -> bool:
        assert self.process.runs(), self.process.logged()
        return probe(self.probe, "/ready") == 200

    def api(self) -> str:
        lines = (json.loads(line) for line in self.process.logged_lines() if '"started"' in line)
        return next(line["context"]["api"] for line in lines if line["event"] == "started")

    def channel(self):
        return grpc.insecure_channel(f"127.0.0.1:{self.port}")

    def call(self, method: str, body: bytes, *metadata: tuple[str, str]):
        """The answer and the model that gave it, or the code of the error."""
        with self.channel() as channel:
            try:
                answer, call = channel.unary_unary(method).with_call(body, metadata=metadata, timeout=PATIENCE)
                return answer, dict(call.initial_metadata()).get("testing-model-id")
            except grpc.RpcError as error:
                return error.code().name

    def close(self):
        self.process.close()
        self.runtime.close()


@pytest.fixture
def store(tmp_path):
    client, peer = free_port(), free_port()
    etcd = Process("etcd", tmp_path)
    urls = f"http://127.0.0.1:{client}"
    etcd.spawn(
        "etcd", "--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", urls, "--advertise-client-urls", urls,
        "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--unsafe-no-fsync",
    )
    until("etcd to be healthy", lambda: probe(client, "/health") == 200)
    yield f"etcd:{urls}"
    etcd.close()


@pytest.fixture
def instances(tmp_path, store):
    pair = [Instance(tmp_path, store, f"Instance_{n}").start() for n in range(2)]
    for one in pair:
        until(f"{one.name} to be ready", one.ready)
    yield pair
    for one in pair:
        one.close()


def apply(one: Instance, name: str, path: str) -> None:
    manifest = {
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {"replicas": {"min": 0}, "model": {"format": "any", "uri": f"runtime:{path}?type=T"}},
    }
    command = [BERTH, "apply", "-f", "-"]
    env = {"BERTH_API": f"http://{one.api()}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, input=json.dumps(manifest), text=True, capture_output=True, env=env, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def knows_another(one: Instance) -> bool:
    return knows_others(one, 1)


def knows_others(one: Instance, number: int) -> bool:
    """The instance reaches so many others, and the leader places models on all of them."""
    return reaches_others(one, number) and workers(one) > number


def reaches_others(one: Instance, number: int) -> bool:
    lines = (line for line in one.process.logged_lines() if '"member_changed"' in line and '"Alive"' in line)
    return len({json.loads(line)["context"]["member"] for line in lines}) >= number


def workers(one: Instance) -> int:
    """The workers that the leader knows; none while there is no leader."""
    try:
        with urllib.request.urlopen(f"http://{one.api()}/v1/workers", timeout=PATIENCE) as answer:
            return len(json.load(answer)["items"])
    except urllib.error.HTTPError as refused:
        assert refused.code == 503, refused.read()
        return 0


def test_two_instances_started_together_are_one_cluster_and_serve_any_method(instances):
    first, second = instances
    apply(first, "myModel", "SIZE_1000_50")
    for one in instances:
        assert one.call(PREDICT, b"hello", ("mm-model-id", "myModel")) == (b"hello", "myModel")
        assert one.call(PREDICT, b"hello", ("mm-model-id", "other")) == "NOT_FOUND"
        assert one.call(PREDICT, b"hello") == "INVALID_ARGUMENT", "no model is named"
        assert one.call("/mmesh.ModelRuntime/unloadModel", b"", ("mm-model-id", "myModel")) == "UNIMPLEMENTED"
        error = one.call(PREDICT, b"x", ("mm-model-id", "myModel"), ("testing", "error=DATA_LOSS:gone"))
        assert error == "DATA_LOSS", "the runtime's own status"
    warnings = [line for line in first.process.logged_lines() if "MM_MULTI_PARALLELISM is not read" in line]
    assert len(warnings) == 1


def settings(one: Instance) -> bytes:
    """The first frame of HTTP/2 of the port for metrics."""
    anybody = ssl._create_unverified_context()
    anybody.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", one.metrics), PATIENCE) as plain, anybody.wrap_socket(plain) as encrypted:
        assert encrypted.selected_alpn_protocol() == "h2"
        encrypted.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        return encrypted.recv(9)


def told(one: Instance, scheme: str) -> dict[str, float]:
    """The samples of the port for metrics, by their series."""
    anybody = ssl._create_unverified_context()
    with urllib.request.urlopen(f"{scheme}://127.0.0.1:{one.metrics}/metrics", timeout=PATIENCE, context=anybody) as answer:
        lines = answer.read().decode().splitlines()
    return {series: float(value) for series, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_metrics_have_modelmeshs_names(instances):
    first, second = instances
    apply(first, "myModel", "SIZE_1000_50")
    assert first.call(PREDICT, b"x" * 20, ("mm-model-id", "myModel")) == (b"x" * 20, "myModel")
    assert first.call(PREDICT, b"x", ("mm-model-id", "nothing")) == "NOT_FOUND"
    # Prometheus and Java's client choose HTTP/2 where it is offered.
    assert settings(first)[3] == 4
    mine = told(first, "https")
    of_model = 'method="predict",code="OK",modelId="myModel",vModelId=""'
    assert mine[f'modelmesh_api_request_milliseconds_bucket{{le="+Inf",{of_model}}}'] == 1
    assert mine[f"modelmesh_request_size_bytes_sum{{{of_model}}}"] == 20
    assert mine[f"modelmesh_response_size_bytes_sum{{{of_model}}}"] == 20
    assert mine['modelmesh_cache_miss_milliseconds_count{modelId="myModel",vModelId=""}'] == 1
    assert mine["modelmesh_instance_capacity_bytes"] > mine["modelmesh_instance_used_bytes"]
    assert not any("nothing" in series for series in mine), "a name that strangers chose is no label"

    assert second.call(PREDICT, b"y", ("mm-model-id", "myModel")) == (b"y", "myModel")
    other = told(second, "http")
    assert other['modelmesh_api_request_milliseconds_count{method="any.Service/predict",code="OK"}'] == 1
    both = [mine, other]
    for name in ("modelmesh_loadmodel_milliseconds_count", "modelmesh_instance_models_total"):
        assert sum(one[name] for one in both) >= 1, name
    # Of the cluster tells the one that leads, as it was at its last look.
    managed = lambda: [one.get("modelmesh_models_managed_total") for one in (told(first, "https"), told(second, "http"))]
    until(lambda: f"one managed model: {managed()}", lambda: sorted(managed(), key=str) == [1, None])


def test_ids_are_taken_from_requests_and_put_into_them(instances):
    first, second = instances
    apply(first, "myModel", "SIZE_1000")
    for one in instances:
        message = named("myModel", b"payload")
        answer, model = one.call(NAMED, message)
        # The runtime's echo has the id once more at the end.
        assert (model, answer) == ("myModel", message + named("myModel")[:9])
        assert one.call(NAMED, named("nobody"), ("mm-model-id", "myModel")) == "NOT_FOUND", "the message counts"
        assert one.call(NAMED, b"\x12\x01x", ("mm-model-id", "myModel"))[1] == "myModel", "it names none"
        # A message whose field stands behind the payload, or that has none, was refused after 64 KiB.
        payload = b"\x12" + varint(1 << 20) + bytes(1 << 20)
        assert one.call(NAMED, payload + named("myModel"))[1] == "myModel"
        assert one.call(NAMED, payload, ("mm-model-id", "myModel"))[1] == "myModel"
        assert one.call(PREDICT, b"x", ("mm-model-id", "")) == "INVALID_ARGUMENT"


def test_several_models_answer_as_one(instances):
    first, second = instances
    apply(first, "a", "SIZE_1000")
    apply(first, "b", "SIZE_1000")
    for one in instances:
        ids = [("mm-model-id", "a"), ("mm-model-id", "b")]
        assert one.call(PREDICT, b"ab", *ids)[0] == b"abab"
        missing = ("mm-model-id", "c")
        assert one.call(PREDICT, b"ab", *ids, missing)[0] == b"abab", "any is ModelMesh's default"
        assert one.call(PREDICT, b"ab", *ids, missing, ("mm-required", "any"))[0] == b"abab"
        assert one.call(PREDICT, b"ab", *ids, missing, ("mm-required", "all")) == "NOT_FOUND"
        assert one.call(PREDICT, b"ab", missing, ("mm-model-id", "d")) == "NOT_FOUND"


def test_a_runtime_that_lost_its_models_is_mended_under_its_callers(instances):
    first, second = instances
    apply(first, "myModel", "SIZE_1000_20")
    assert first.call(PREDICT, b"x", ("mm-model-id", "myModel"))[1] == "myModel"
    outcomes = []

    def caller(one):
        outcomes.extend(one.call(PREDICT, b"x" * 10_000, ("mm-model-id", "myModel"))[1] for _ in range(10))

    for _ in range(3):
        for one in instances:
            one.call(PREDICT, b"x", ("mm-model-id", "myModel"), ("testing", "purge"))
        threads = [threading.Thread(target=caller, args=(instances[n % 2],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outcomes == ["myModel"] * 240


def test_models_move_before_an_instance_stops(instances):
    first, second = instances
    apply(first, "myModel", "SIZE_1000")
    assert first.call(PREDICT, b"x", ("mm-model-id", "myModel"))[1] == "myModel"
    until("both to know each other", lambda: knows_another(second))
    first.process.signal(signal.SIGTERM)
    until("it to be not ready", lambda: probe(first.probe, "/ready") != 200)
    while first.process.runs():
        assert second.call(PREDICT, b"x", ("mm-model-id", "myModel"))[1] == "myModel"
    assert first.process.process.returncode == 0, first.process.logged()


def test_an_instance_without_its_store_ends_and_says_why(tmp_path):
    one = Instance(tmp_path, f"etcd:http://127.0.0.1:{free_port()}", "alone").start()
    try:
        assert one.process.process.wait(PATIENCE) == 1
        assert "does not answer" in one.termination.read_text()
    finally:
        one.close()
