"""Models that are loaded by their first request, within a bound of memory, and make room for others."""

import json
import socket
import threading
import time
from datetime import datetime, timedelta

from conftest import Load
from harness.examples import IRIS, manifest
from harness.waiting import PATIENCE, until

DEMAND = {"min": 0, "max": 1}


def claims(name: str, artifact: str = "iris", memory: str = "100MiB", **spec) -> dict:
    return manifest(name, artifact, replicas=DEMAND, resources={"memory": memory}, **spec)


def test_first_request_waits_for_the_load(berth):
    berth.start()
    berth.apply(manifest("iris", replicas=DEMAND))
    until("it to be known", lambda: berth.status("iris")["phase"] == "ScaledDown")
    # The server is ready: nothing is meant to be resident.
    until("the server to be ready", lambda: berth.get("/v2/health/ready")[0] == 200)
    status, answer = berth.infer("iris")
    assert status == 200 and answer["outputs"][0]["data"] == [0]
    until("the controller to know", lambda: berth.status("iris")["phase"] == "Available")
    assert berth.metric("berth_gateway_misses_total") == 1


def test_many_waiters_one_load(berth):
    berth.start()
    berth.apply(manifest("iris", replicas=DEMAND))
    answers = []
    callers = [threading.Thread(target=lambda: answers.append(berth.infer("iris")[0])) for _ in range(50)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(PATIENCE)
    assert answers == [200] * 50
    until("the controller to know", lambda: berth.status("iris")["phase"] == "Available")
    loaded = [event for event in json.loads(berth.run("get", "events", "-o", "json"))["items"] if event["reason"] == "Loaded"]
    assert len(loaded) == 1


def test_room_is_made_for_the_least_recently_used(berth):
    berth.start("--memory", "250MiB")
    berth.apply(claims("a"), claims("b"), claims("c"))
    for name in ("a", "b"):
        assert berth.infer(name)[0] == 200, name
    used = lambda name: datetime.fromisoformat(berth.status(name)["lastUsed"])
    load = Load(berth, "a", callers=1)
    try:
        # Models that were idle for about as long leave by what it costs to load them back.
        until("b to be idle for much longer than a", lambda: used("a") - used("b") > timedelta(seconds=3))
        assert berth.infer("c")[0] == 200
    finally:
        load.end()
    assert not load.failed, load.failed[:3]
    ready = lambda: {name: berth.get(f"/v2/models/{name}/ready")[0] == 200 for name in "abc"}
    until("b to be gone", lambda: not ready()["b"])
    assert ready() == {"a": True, "b": False, "c": True}
    assert "evict" in berth.run("get", "events").lower()
    # The one that had to go comes back as easily.
    assert berth.infer("b")[0] == 200


def test_priority_beats_recency(berth):
    berth.start("--memory", "250MiB")
    berth.apply(claims("high", priority=90), claims("low", priority=10), claims("other", priority=50))
    for name in ("high", "low", "other"):
        assert berth.infer(name)[0] == 200, name
    until("low to be gone", lambda: berth.get("/v2/models/low/ready")[0] != 200)
    assert berth.get("/v2/models/high/ready")[0] == 200


def test_residents_are_not_evicted_and_the_refusal_has_a_type(berth):
    berth.start("--memory", "250MiB")
    berth.apply(manifest("resident", resources={"memory": "200MiB"}), claims("guest"))
    berth.available("resident")
    status, headers, body = berth.post("/v2/models/guest/infer", IRIS)
    answer = json.loads(body)
    assert status == 503 and answer["reason"] == "no_capacity" and int(headers["retry-after"]) >= 1, answer
    # With numbers: what it needs and what there is.
    assert "100MiB" in answer["error"], answer
    explained = berth.run("explain", "guest")
    assert "100MiB" in explained and "50MiB" in explained, explained
    assert berth.infer("resident")[0] == 200


def test_traffic_over_more_models_than_fit_loses_nothing(berth):
    berth.start("--memory", "350MiB")
    names = [f"m{i}" for i in range(6)]
    berth.apply(*(claims(name) for name in names))
    loads = [Load(berth, name, callers=1) for name in names]
    try:
        for load in loads:
            load.more(3)
    finally:
        for load in loads:
            load.end()
    failures = [failure for load in loads for failure in load.failed]
    assert not failures, failures[:3]
    assert berth.metric("berth_plan_evictions_total") >= 3


def test_idle_models_are_paged_out(berth):
    berth.start()
    berth.apply(manifest("iris", replicas=DEMAND, idleAfter="1s"))
    assert berth.infer("iris")[0] == 200
    until("it to be paged out", lambda: berth.status("iris")["phase"] == "ScaledDown")
    assert berth.infer("iris")[0] == 200


def test_waiters_keep_their_own_deadlines(berth):
    # A server for artifacts that takes connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        berth.start()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}/slow.onnx"
        # Where the caller's deadline were not kept there would be no answer in the time of this test.
        berth.apply(manifest("slow", replicas=DEMAND, model={"uri": uri}, timeout="10m"))
        started = time.monotonic()
        status, headers, body = berth.post("/v2/models/slow/infer", IRIS, {"berth-timeout-ms": "500"})
        answer = json.loads(body)
        assert status in (503, 504) and answer["reason"] in ("loading", "deadline"), answer
        assert time.monotonic() - started > 0.4


def test_a_model_that_cannot_load_says_why(berth, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is not a model")
    berth.start()
    berth.apply(manifest("broken", replicas=DEMAND, model={"uri": f"file:{broken}"}))
    status, _, body = berth.post("/v2/models/broken/infer", IRIS)
    answer = json.loads(body)
    assert status == 503 and answer["reason"] == "load_failed", answer
    status = until("the controller to know", lambda: (seen := berth.status("broken"))["phase"] == "Failed" and seen)
    assert "invalid_model" in json.dumps(status)
    assert "broken" in berth.run("describe", "deployment", "broken")
