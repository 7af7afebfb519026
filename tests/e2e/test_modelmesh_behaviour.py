"""What ModelMesh's own tests check of its instances, said again: one instance or two, each with a scripted runtime, nothing but a store."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.ports import free_port
from harness.processes import Process
from harness.waiting import PATIENCE, until
from test_modelmesh import DEFINED, LOADED, LOADING, LOADING_FAILED, NOT_FOUND, NOT_LOADED, TRANSITIONING, message, read
from test_modelmesh_instances import PREDICT, Instance, knows_another, knows_others, reaches_others, store  # noqa: F401: the fixture
from test_payloads import data, sink  # noqa: F401: the fixture
from test_tls import Authority

grpc = pytest.importorskip("grpc")

pytestmark = pytest.mark.skipif(shutil.which("etcd") is None, reason="there is no etcd on this machine")

MIB = 1 << 20


class Managed(Instance):
    """An instance with settings of its own, and its management API."""

    def __init__(self, folder, address: str, name: str, env: dict[str, str] | None = None, runtime: list[str] | None = None):
        super().__init__(folder, address, name)
        self.env |= env or {}
        self.runtime_flags = runtime or []
        if path := self.env.get("INTERNAL_GRPC_SOCKET_PATH"):
            self.listens = f"unix:{path}"
            del self.env["INTERNAL_GRPC_PORT"]
        if "MM_DATAPLANE_CONFIG_PATH" in self.env:
            del self.env["MM_DATAPLANE_CONFIG"]
        self.certificates: tuple[Path, tuple[Path, Path] | None] | None = None

    def channel(self):
        if self.certificates is None:
            return super().channel()
        ca, own = self.certificates
        certificate, key = (path.read_bytes() for path in own) if own else (None, None)
        credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key, certificate)
        return grpc.secure_channel(f"127.0.0.1:{self.port}", credentials)

    def manage(self, method: str, fields: dict, service: str = "mmesh.ModelMesh") -> dict:
        raw = {"request_serializer": bytes, "response_deserializer": bytes}
        with self.channel() as channel:
            call = channel.unary_unary(f"/{service}/{method}", **raw)
            return read(call(message(fields), timeout=PATIENCE))

    def register(self, model: str, path: str = "SIZE_1000", kind: str = "T", sync: bool = True) -> dict:
        return self.manage("registerModel", {1: model, 2: {1: kind, 2: path}, 3: 1, 4: sync})

    def status(self, model: str) -> dict:
        return self.manage("getModelStatus", {1: model})

    def state(self, model: str) -> int:
        return self.status(model).get(1, [NOT_FOUND])[0]

    def waiting(self) -> int:
        """Requests that wait for a load."""
        with urllib.request.urlopen(f"http://{self.api()}/metrics", timeout=PATIENCE) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("berth_gateway_parked{")]
        return sum(int(float(line.split()[-1])) for line in lines)

    def told(self, model: str, testing: str) -> tuple[str, str]:
        """Code and text of an error that the runtime was asked for."""
        with self.channel() as channel:
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
    # A request that waited goes to the copy at once, before the copy is reported.
    until("the copy to be told", lambda: one.state("Model") == LOADED)


def test_ids_come_to_the_runtime_as_they_were_registered(start):
    one = start()
    for model in ("MyModel", "Team/My Model/1", "/x", "a%2Fb"):
        assert one.register(model)[1] == [LOADED]
        assert one.call(PREDICT, b"x", ("mm-model-id", model)) == (b"x", model)


def test_the_control_api_is_where_its_variable_says(start):
    """The variable had no effect: the port was another one at each start."""
    address = f"127.0.0.1:{free_port()}"
    one = start(env={"BERTH_API_ADDR": address})
    assert one.api() == address


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


def test_a_file_of_type_constraints_is_followed(start, tmp_path):
    path = tmp_path / "constraints.json"

    def constrain(labels: list[str]) -> None:
        # As Kubernetes changes a mounted file: in one step.
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"T": {"required": labels}}))
        new.rename(path)

    constrain(["label-1"])
    read_from = {"MM_TYPE_CONSTRAINTS_PATH": str(path)}
    first = start("first", env=read_from | {"MM_LABELS": "label-1"})
    second = start("second", env=read_from | {"MM_LABELS": "label-2"})
    assert first.register("Model")[1] == [LOADED]
    place = lambda: [read(info)[1] for info in first.status("Model")[3]]
    assert place() == [[b"first"]]
    constrain(["label-2"])

    def moved() -> bool:
        # In use it has a copy all the time, which the new one replaces.
        assert first.call(PREDICT, b"x", ("mm-model-id", "Model")) == (b"x", "Model")
        return place() == [[b"second"]]

    until(lambda: f"the model to move: {place()}", moved)
    path.write_text("{")
    until("the file to be refused", lambda: any('"configuration_refused"' in line for line in second.process.logged_lines()))
    assert second.call(PREDICT, b"x", ("mm-model-id", "Model")) == (b"x", "Model"), "the one before stays"


def test_models_come_up_where_they_can_though_two_of_three_instances_fail_every_load(start):
    fails = ["--refuse", "no such device"]
    first, second = (start(name, runtime=fails) for name in ("first", "second"))
    third = start("third")
    for one in (first, second, third):
        until("all to know each other", lambda: knows_others(one, 2))
    for n in range(5):
        told = (first, second, third)[n % 3].register(f"Model{n}")
        assert told[1] == [LOADED], told
    for n in range(5):
        copies = [read(info) for info in first.status(f"Model{n}")[3]]
        assert [copy[1] for copy in copies if copy[2] == [LOADED]] == [[b"third"]], copies
        for one in (first, second, third):
            until("it to be known", lambda: one.call(PREDICT, b"x", ("mm-model-id", f"Model{n}")) == (b"x", f"Model{n}"))


def test_a_model_is_loaded_elsewhere_when_its_runtime_dies_under_the_load(start):
    first, second = start("first"), start("second")
    until("both to know each other", lambda: knows_another(second))
    first.register("Model", "SIZE_1000_3000", sync=False)
    copies = lambda: [read(info) for info in first.status("Model").get(3, [])]
    (copy,) = until("a load to begin", lambda: [copy for copy in copies() if copy[2] == [LOADING]])
    dying, other = (first, second) if copy[1] == [b"first"] else (second, first)
    dying.runtime.kill()
    assert other.call(PREDICT, b"x", ("mm-model-id", "Model")) == (b"x", "Model")
    # A request that waited goes to the copy at once, before the copy is reported.
    loaded = lambda: [copy[1] for copy in copies() if copy[2] == [LOADED]]
    assert until(lambda: f"the other copy to be told: {copies()}", loaded) == [[other.name.encode()]]


def test_virtual_models_have_owners_and_a_forced_change_waits_for_nothing(start):
    first, second = start("first"), start("second")
    until("both to know each other", lambda: knows_another(second))
    first.register("Model")

    def owner(one: Managed, said: str) -> bytes:
        """The owner that the virtual model has after a change by somebody."""
        return one.manage("setVModel", {1: "live", 2: "Model", 10: said}).get(6, [b""])[0]

    assert owner(first, "owner1") == b"owner1"
    for one in (first, second):
        assert owner(one, "owner1") == b"owner1", "the same again"
        assert owner(one, "") == b"owner1", "whoever names no owner leaves it"
        with pytest.raises(grpc.RpcError) as refused:
            owner(one, "owner2")
        assert refused.value.code().name == "ALREADY_EXISTS"
        assert refused.value.details() == 'vmodel live already exists with different owner "owner1"'
        states = [one.manage("getVModelStatus", {1: "live", 2: of}).get(1, [0]) for of in ("", "owner1", "owner2")]
        assert states == [[DEFINED], [DEFINED], [0]]
        one.manage("deleteVModel", {1: "live", 2: "owner2"})
        assert one.manage("getVModelStatus", {1: "live"})[1] == [DEFINED], "it is another's"

    # The target takes long to load: a change waits for it, and a forced one does not.
    slow = {1: "T", 2: "SIZE_1000_600000"}
    told = second.manage("setVModel", {1: "live", 2: "Slow", 4: slow, 10: "owner1"})
    assert (told[1], told[2], told[3]) == ([TRANSITIONING], [b"Model"], [b"Slow"]), told
    until("it to be known", lambda: second.call(PREDICT, b"x", ("mm-vmodel-id", "live")) == (b"x", "Model"))
    told = first.manage("setVModel", {1: "live", 2: "Slow", 7: 1, 10: "owner1"})
    assert (told[1], told[2]) == ([DEFINED], [b"Slow"]), told
    second.manage("deleteVModel", {1: "live", 2: "owner1"})
    assert first.manage("getVModelStatus", {1: "live"}).get(1, [0]) == [0]


def test_concurrent_registrations_evict_idle_models_and_no_more(start):
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
    # Of those that are idle for about as long, the cheapest to load back leave first.
    assert states[18:] == [LOADED] * 6 and sorted(states[:18]) == [NOT_LOADED] * 6 + [LOADED] * 12


def test_two_instances_hold_as_much_as_both_can_and_evict_for_what_comes(start):
    # 300 MiB, less the 30 that are kept for unloading: each holds five models of 50 MiB, whoever is asked.
    first, second = (start(name, runtime=["--capacity", "300MiB"]) for name in ("first", "second"))
    path, names = f"SIZE_{50 * MIB}", [f"Model{n}" for n in range(10)]
    for n, name in enumerate(names):
        assert (first, second)[n % 2].register(name, path)[1] == [LOADED]
    places = [read(info)[1][0] for name in names for info in first.status(name)[3]]
    assert sorted(places) == [b"first"] * 5 + [b"second"] * 5
    assert first.register("Eleventh", path)[1] == [LOADED]
    states = lambda: {name: first.state(name) for name in [*names, "Eleventh"]}
    (gone,) = [name for name, state in states().items() if state == NOT_LOADED]
    # A request at either instance brings it back, in the place of another.
    assert second.call(PREDICT, b"x", ("mm-model-id", gone)) == (b"x", gone)
    until("its copy to be told", lambda: first.state(gone) == LOADED)
    assert list(states().values()).count(LOADED) == 10


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


def test_only_listed_methods_are_served_where_a_configuration_does_not_say_otherwise(start, tmp_path):
    config = tmp_path / "dataplane.json"
    config.write_text(json.dumps({"rpcConfigs": {"any.Service/listed": {}}}))
    one = start(env={"MM_DATAPLANE_CONFIG_PATH": str(config)})
    one.register("Model")
    assert one.call("/any.Service/listed", b"x", ("mm-model-id", "Model")) == (b"x", "Model")
    assert one.call(PREDICT, b"x", ("mm-model-id", "Model")) == "UNIMPLEMENTED"
    # The file is read again when it changes; what cannot be read changes nothing.
    config.write_text("{")
    until("the file to be refused", lambda: "configuration_refused" in one.process.logged())
    assert one.call("/any.Service/listed", b"x", ("mm-model-id", "Model")) == (b"x", "Model")
    config.write_text(json.dumps({"rpcConfigs": {}, "allowOtherRpcs": True}))
    until("the file to be read", lambda: one.call(PREDICT, b"x", ("mm-model-id", "Model")) == (b"x", "Model"))


def test_a_load_that_a_request_waits_for_goes_before_those_that_wait_for_nobody(start):  # noqa: F811
    one = start(runtime=["--parallel-loads", "1"])
    # These would take longer than anybody here waits.
    one.register("first", "SIZE_1000_600000", sync=False)
    until("it to load", lambda: one.state("first") == LOADING)
    for n in range(3):
        one.register(f"slow{n}", "SIZE_1000_600000", sync=False)
    one.register("wanted", "SIZE_1000", sync=False)
    answers = []
    caller = threading.Thread(target=lambda: answers.append(one.call(PREDICT, b"x", ("mm-model-id", "wanted"))))
    caller.start()
    until("the request to wait", lambda: one.waiting() == 1)
    one.manage("unregisterModel", {1: "first"})
    caller.join(PATIENCE)
    assert answers == [(b"x", "wanted")]
    assert LOADED not in [one.state(f"slow{n}") for n in range(3)]


def test_a_call_waits_for_the_next_leader(start):  # noqa: F811
    first, second = start("first"), start("second")
    for one in (first, second):
        until("it to know the other", lambda one=one: knows_another(one))
    first.process.kill()
    assert second.register("Model")[1] == [LOADED]


def answered(one: Managed, model: str, deadline: float) -> str:
    """`answered`, or the code of the last error. Who is told UNAVAILABLE asks again until the deadline, as clients do."""
    end = time.monotonic() + deadline

    def attempt() -> str | None:
        try:
            left = max(end - time.monotonic(), 0)
            channel.unary_unary(PREDICT)(b"x", metadata=[("mm-model-id", model)], timeout=left)
            return "answered"
        except grpc.RpcError as error:
            again = error.code() is grpc.StatusCode.UNAVAILABLE and time.monotonic() < end
            return None if again else error.code().name

    with one.channel() as channel:
        return until("an answer", attempt)


def test_models_of_a_runtime_that_is_gone_for_good_go_elsewhere_and_their_callers_with_them(start):  # noqa: F811
    first, second = start("first"), start("second")
    for one in (first, second):
        until("both to know each other", lambda one=one: knows_another(one))
    warm, cold = [f"Warm{n}" for n in range(6)], [f"Cold{n}" for n in range(4)]
    for model in warm:
        assert first.register(model)[1] == [LOADED]
    for model in cold:
        assert first.manage("registerModel", {1: model, 2: {1: "T", 2: "SIZE_1000"}})[1] == [NOT_LOADED]

    def place(model: str) -> list[bytes]:
        copies = [read(info) for info in first.status(model).get(3, [])]
        return [copy[1][0] for copy in copies if copy[2] == [LOADED]]

    places = {model: place(model) for model in warm}
    dying, other = (first, second) if [b"first"] in places.values() else (second, first)
    lost = [model for model, place in places.items() if place == [dying.name.encode()]]
    assert lost, places
    dying.runtime.kill()
    calls = [(one, model, 120.0) for one in (first, second) for model in lost + cold for _ in range(2)]
    # Those who do not wait that long are told so, and nothing waits for them.
    calls += [(one, model, 2.0) for one in (first, second) for model in cold]
    with ThreadPoolExecutor(len(calls)) as callers:
        outcomes = list(callers.map(lambda call: (call[1], call[2], answered(*call)), calls))
    assert [outcome for outcome in outcomes if outcome[1] > 2 and outcome[2] != "answered"] == []
    assert {outcome for _, deadline, outcome in outcomes if deadline == 2} <= {"answered", "UNAVAILABLE", "DEADLINE_EXCEEDED"}
    for model in lost + cold:
        until(f"{model} to be elsewhere alone", lambda model=model: place(model) == [other.name.encode()])
    for one in (first, second):
        until("nobody to wait", lambda one=one: one.waiting() == 0)


def test_states_are_told_while_the_store_is_away(start):  # noqa: F811
    both = first, second = start("first"), start("second")
    for one in both:
        until("both to know each other", lambda one=one: knows_another(one))
    assert first.register("Model")[1] == [LOADED]
    for one in both:
        until("it to be known", lambda one=one: one.call(PREDICT, b"x", ("mm-model-id", "Model")) == (b"x", "Model"))
    etcd = next(process for process in Process.started if process.name == "etcd" and process.runs())
    etcd.pause()
    # Nobody knows if there is such a model, which takes longer than a term to find out.
    with pytest.raises(grpc.RpcError) as refused:
        second.status("other")
    assert refused.value.code().name == "UNAVAILABLE"
    for one in both:
        assert one.state("Model") == LOADED


def test_the_folder_of_a_killed_instance_goes_when_the_next_one_starts(start, tmp_path):  # noqa: F811
    within = tmp_path / "tmp"
    within.mkdir()
    folders = lambda: list(within.glob("berth-modelmesh-*"))
    first = start("first", env={"TMPDIR": str(within)})
    (left,) = folders()
    first.process.kill()
    second = start("second", env={"TMPDIR": str(within)})
    until("the folder to go", lambda: not left.exists())
    assert len(folders()) == 1 and second.process.stop() == 0
    assert folders() == []


def registration(model: str, path: str = "SIZE_1000", **more) -> dict:
    return {"modelId": model, "modelInfo": {"type": "T", "path": path}} | more


def test_models_of_the_configuration_are_there_before_it_is_ready(start, tmp_path):  # noqa: F811
    file = tmp_path / "models.json"
    file.write_text(json.dumps([registration("plain")]))
    warm = [registration("warm", "SIZE_1000_500", ensureLoaded=True), registration("target", vModelId="v", ensureLoaded=True)]
    env = {"MM_AUTO_REGISTER_MODEL_PATH": str(file), "MM_AUTO_REGISTER_MODELS": json.dumps(warm)}
    one = start(env=env)
    assert [one.state(model) for model in ("plain", "warm", "target")] == [NOT_LOADED, LOADED, LOADED]
    assert one.call(PREDICT, b"x", ("mm-vmodel-id", "v")) == (b"x", "target")
    one.close()
    again = start("again", env=env)
    assert [again.state(model) for model in ("warm", "target")] == [LOADED, LOADED], "they are registered already"


def test_an_instance_ends_where_a_model_of_its_configuration_cannot_load(tmp_path, store):  # noqa: F811
    broken = [registration("broken", "FAIL_no such bucket", ensureLoaded=True)]
    one = Managed(tmp_path, store, "one", env={"MM_AUTO_REGISTER_MODELS": json.dumps(broken)}).start()
    try:
        assert one.process.process.wait(PATIENCE) == 1
        assert 'model "broken" is not loaded: no such bucket' in one.termination.read_text()
    finally:
        one.close()


def test_metadata_names_the_model_of_an_inference_unless_the_message_is_to(start):  # noqa: F811
    infer, message = "/inference.GRPCInferenceService/ModelInfer", b"\x0a\x05other"
    one = start()
    one.register("Model")
    assert one.call(infer, message, ("mm-model-id", "Model"))[1] == "Model"
    assert one.call(infer, b"", ("mm-model-id", "Model"))[1] == "Model"
    assert one.call(infer, b"\x0a\x05Model")[1] == "Model", "without metadata"
    one.close()
    rpcs = {"rpcConfigs": {infer[1:]: {"idExtractionPath": [1], "vModelId": True}}}
    again = start("again", env={"MM_DATAPLANE_CONFIG": json.dumps(rpcs)})
    assert again.call(infer, message, ("mm-model-id", "Model")) == "NOT_FOUND", "the message counts"
    assert again.call(infer, b"", ("mm-model-id", "Model"))[1] == "Model", "it names none"


def test_a_runtime_beside_an_instance_is_reached_by_a_unix_socket(start, tmp_path):  # noqa: F811
    one = start(env={"INTERNAL_GRPC_SOCKET_PATH": str(tmp_path / "grpc.sock")})
    assert one.register("Model")[1] == [LOADED]
    assert one.call(PREDICT, b"x" * 1_000_000, ("mm-model-id", "Model")) == (b"x" * 1_000_000, "Model")


def test_clients_speak_tls_and_show_certificates_also_where_the_model_is_elsewhere(start, tmp_path):  # noqa: F811
    authority, strangers = Authority(tmp_path / "ca"), Authority(tmp_path / "strangers")
    server, key = authority.issue("server", "DNS:localhost,IP:127.0.0.1")
    constraints = {"MM_TYPE_CONSTRAINTS": json.dumps({"T": {"required": ["label-1"]}})}
    tls = {"MM_TLS_KEY_CERT_PATH": str(server), "MM_TLS_PRIVATE_KEY_PATH": str(key)}
    asks = tls | {"MM_TLS_TRUST_CERT_PATH": str(authority.pem), "MM_TLS_CLIENT_AUTH": "REQUIRE"}
    first = start("first", env=constraints | asks | {"MM_LABELS": "label-1"})
    second = start("second", env=constraints | tls)
    until("both to reach each other", lambda: reaches_others(second, 1))

    first.certificates = (authority.pem, authority.issue("client", "DNS:client"))
    assert first.register("Model")[1] == [LOADED]
    second.certificates = (authority.pem, None)
    for one in (first, second):
        until("it to be known", lambda: one.call(PREDICT, b"x", ("mm-model-id", "Model")) == (b"x", "Model"))
    for shown in (None, strangers.issue("client", "DNS:client")):
        first.certificates = (authority.pem, shown)
        assert first.call(PREDICT, b"x", ("mm-model-id", "Model")) == "UNAVAILABLE", shown
    second.certificates = None
    assert second.call(PREDICT, b"x", ("mm-model-id", "Model")) == "UNAVAILABLE", "without TLS"


def test_payloads_are_posted_with_the_virtual_models_id(start, sink):  # noqa: F811
    one = start(env={"MM_PAYLOAD_PROCESSORS": f"{sink.url}/?*#predict"})
    one.register("Model")
    one.manage("setVModel", {1: "live", 2: "Model"})
    assert one.call(PREDICT, b"hello", ("mm-vmodel-id", "live")) == (b"hello", "Model")
    request, response = sink.of("Model")
    assert (data(request), data(response)) == (b"hello", b"hello")
    assert request["vModelId"] == "live" and response["status"] == "OK"
