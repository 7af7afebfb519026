"""What ModelMesh's own tests check of its instances, said again: one instance or two, each with a scripted runtime, nothing but a store."""

from __future__ import annotations

import json
import shutil
import threading

import pytest

from harness.waiting import PATIENCE, until
from test_modelmesh import LOADED, LOADING_FAILED, NOT_FOUND, NOT_LOADED, message, read
from test_modelmesh_instances import PREDICT, Instance, store  # noqa: F401: the fixture

grpc = pytest.importorskip("grpc")

pytestmark = pytest.mark.skipif(shutil.which("etcd") is None, reason="there is no etcd on this machine")

MIB = 1 << 20


class Managed(Instance):
    """An instance with settings of its own, and its management API."""

    def __init__(self, folder, address: str, name: str, env: dict[str, str] | None = None):
        super().__init__(folder, address, name)
        self.env |= env or {}

    def manage(self, method: str, fields: dict, service: str = "mmesh.ModelMesh") -> dict:
        raw = {"request_serializer": bytes, "response_deserializer": bytes}
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call = channel.unary_unary(f"/{service}/{method}", **raw)
            return read(call(message(fields), timeout=PATIENCE))

    def register(self, model: str, path: str = "SIZE_1000", kind: str = "T", sync: bool = True) -> dict:
        return self.manage("registerModel", {1: model, 2: {1: kind, 2: path}, 3: 1, 4: sync})

    def status(self, model: str) -> dict:
        return self.manage("getModelStatus", {1: model})

    def state(self, model: str) -> int:
        return self.status(model).get(1, [NOT_FOUND])[0]

    def told(self, model: str, testing: str) -> tuple[str, str]:
        """Code and text of an error that the runtime was asked for."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            with pytest.raises(grpc.RpcError) as refused:
                metadata = [("mm-model-id", model), ("testing", testing)]
                channel.unary_unary(PREDICT)(b"x", metadata=metadata, timeout=PATIENCE)
            return refused.value.code().name, refused.value.details()


@pytest.fixture
def start(tmp_path, store):  # noqa: F811
    """Starts an instance and waits until it is ready."""
    started = []

    def one(name: str = "one", **settings) -> Managed:
        started.append(Managed(tmp_path, store, name, **settings).start())
        until(f"{name} to be ready", started[-1].ready)
        return started[-1]

    yield one
    for instance in started:
        instance.close()


def test_a_load_that_failed_is_told_and_tried_again_when_it_expires(start):
    one = start(env={"MM_LOAD_FAILURE_EXPIRY_TIME_MS": "3000"})
    failed = one.register("Model", "ONCE_no such bucket")
    assert failed[1] == [LOADING_FAILED] and failed[2] == [b"no such bucket"]
    (copy,) = (read(info) for info in failed[3])
    assert copy[1] == [b"one"] and copy[2] == [LOADING_FAILED] and copy[3][0] > 0
    assert one.state("Model") == LOADING_FAILED
    code, text = one.told("Model", "delay=0")
    assert text.endswith("no such bucket"), (code, text)
    until("the failure to expire", lambda: one.call(PREDICT, b"x", ("mm-model-id", "Model")) == (b"x", "Model"))
    assert one.state("Model") == LOADED


def test_a_type_is_held_where_its_labels_are_and_errors_are_the_same_over_a_hop(start):
    constraints = {"MM_TYPE_CONSTRAINTS": json.dumps({"mt:my-type:1": {"required": ["label-1"]}})}
    first = start("first", env=constraints | {"MM_LABELS": "label-1"})
    second = start("second", env=constraints)
    assert second.register("Model", kind="mt:my-type:1")[1] == [LOADED]
    (copy,) = (read(info) for info in first.status("Model")[3])
    assert copy[1] == [b"first"]
    text = "ModelRuntime UNAVAILABLE: any.Service/predict: UNAVAILABLE: not now"
    for one in (first, second):
        until("it to be known", lambda: one.call(PREDICT, b"x", ("mm-model-id", "Model")) == (b"x", "Model"))
        assert one.told("Model", "error=UNAVAILABLE:not now") == ("INTERNAL", text)
        assert one.told("Model", "error=FAILED_PRECONDITION:no") == ("FAILED_PRECONDITION", "no")


def test_concurrent_registrations_evict_the_least_recently_used_and_no_more(start):
    # 1024 MiB, less the 75 that are kept for unloading: 18 models of 50 MiB.
    one = start()
    path = f"SIZE_{50 * MIB}_0_300"
    for n in range(18):
        assert one.register(f"Model{n}", path)[1] == [LOADED]
    assert [one.state(f"Model{n}") for n in range(18)] == [LOADED] * 18
    outcomes = []
    threads = [threading.Thread(target=lambda n=n: outcomes.append(one.register(f"Model{n}", path)[1])) for n in range(18, 24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [[LOADED]] * 6
    states = [one.state(f"Model{n}") for n in range(24)]
    assert states == [NOT_LOADED] * 6 + [LOADED] * 18


def test_a_model_that_is_used_above_the_threshold_gets_a_second_copy(start):
    first = start("first", env={"MM_SCALEUP_RPM_THRESHOLD": "10"})
    start("second", env={"MM_SCALEUP_RPM_THRESHOLD": "10"})
    first.register("Model")

    def copies() -> int:
        for _ in range(50):
            assert first.call(PREDICT, b"x", ("mm-model-id", "Model"))[1] == "Model"
        return [read(info)[2] for info in first.status("Model")[3]].count([LOADED])

    until("a second copy", lambda: copies() == 2)


def test_old_names_answer_and_a_read_only_instance_takes_no_models(start):
    one = start(env={"MM_DEFAULT_VMODEL_OWNER": "me"})
    old = "com.ibm.watson.tas.proto.TasRuntime"
    assert one.manage("addModel", {1: "Model", 2: {1: "T", 2: "SIZE_1"}, 3: 1, 4: 1}, old)[1] == [LOADED]
    assert one.manage("getModelStatus", {1: "Model"}, old)[1] == [LOADED]
    assert one.manage("setVModel", {1: "live", 2: "Model"})[6] == [b"me"]
    one.manage("deleteVModel", {1: "live"})
    one.manage("deleteModel", {1: "Model"})
    assert one.state("Model") == NOT_FOUND
    one.close()
    again = start("again", env={"KV_READ_ONLY": "true"})
    with pytest.raises(grpc.RpcError) as refused:
        again.register("other")
    assert refused.value.code().name == "UNAVAILABLE"


def test_only_listed_methods_are_served_where_a_configuration_does_not_say_otherwise(start):
    rpcs = {"rpcConfigs": {"any.Service/listed": {}}}
    one = start(env={"MM_DATAPLANE_CONFIG": json.dumps(rpcs)})
    one.register("Model")
    assert one.call("/any.Service/listed", b"x", ("mm-model-id", "Model")) == (b"x", "Model")
    assert one.call(PREDICT, b"x", ("mm-model-id", "Model")) == "UNIMPLEMENTED"
