"""Graphs whose engine crashes, hangs or takes all memory, in a process of its own: they cost their replica and nothing else."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest

from conftest import deployment
from harness.engines import busy, engines, fields
from harness.examples import IRIS, manifest
from harness.waiting import PATIENCE, until

LEVELS = ["process", "sandbox"]
ENDLESS = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [9_000_000_000_000]}]}
QUICK = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [3]}]}


def apart(name: str, level: str, **spec) -> dict:
    return manifest(name, runtime={"isolation": level}, **spec)


def engine(berth) -> int:
    found = engines(berth)
    assert len(found) == 1, found
    return found[0]


def deaths(berth, name: str) -> float:
    return berth.metric("worker_model_process_deaths_total", model=name)


@pytest.mark.parametrize("level", LEVELS)
def test_an_engine_that_aborts_under_load_costs_its_replica_alone(berth, level):
    berth.start()
    berth.apply(manifest("here"), apart("apart", level))
    berth.available("here", "apart")
    expected = berth.infer("here")[1]["outputs"]
    assert berth.infer("apart")[1]["outputs"] == expected, "the same answers as in the worker"
    before, answers, over = engine(berth), {"here": [], "apart": []}, threading.Event()

    def load(name: str) -> None:
        while not over.is_set():
            answers[name].append(berth.infer(name))

    threads = [threading.Thread(target=load, args=(name,)) for name in answers for _ in range(4)]
    for thread in threads:
        thread.start()
    until("requests to both", lambda: all(len(said) > 50 for said in answers.values()))
    os.kill(before, signal.SIGABRT)
    until("another engine", lambda: (found := engines(berth)) and found != [before])
    until("it answers again", lambda: berth.infer("apart")[0] == 200)
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert {status for status, _ in answers["here"]} == {200}, "others notice nothing"
    assert {status for status, _ in answers["apart"]} <= {200, 500, 503}
    assert deaths(berth, "apart") == 1
    assert berth.get("/v2/health/live")[0] == 200 and berth.control("/healthz")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
def test_a_request_in_flight_is_told_how_its_engine_ended(berth, number):
    berth.start()
    berth.apply(deployment("turns", "turns", timeout="1h", runtime={"isolation": "process"}))
    berth.available("turns")
    answers = []
    caller = threading.Thread(target=lambda: answers.append(berth.infer("turns", ENDLESS)))
    pid = engine(berth)
    idle = busy(pid)
    caller.start()
    until("the run to begin", lambda: busy(pid) > idle + 10)
    # The first SIGSEGV that no fault raised only ends the handler of stack overflows.
    until("the engine to end", lambda: pid not in engines(berth) or os.kill(pid, number))
    caller.join(PATIENCE)
    status, body = answers[0]
    assert status == 500 and f"signal {number.value}" in json.dumps(body), body
    until("it answers again", lambda: berth.infer("turns", QUICK)[0] == 200)
    assert f"signal {number.value}" in berth.run("describe", "deployment/turns")


def test_a_request_that_takes_all_memory_takes_its_own_engine(berth):
    """A real crash: the kernel ends the process whose tensor is larger than it may be."""
    berth.start()
    long = deployment("long", "range", resources={"memory": "16Mi"}, runtime={"isolation": "process"})
    berth.apply(manifest("here"), long)
    berth.available("here", "long")
    before = engine(berth)
    numbers = lambda count: {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [count]}]}  # noqa: E731
    status, body = berth.infer("long", numbers(200_000_000))
    assert status == 500, body
    until("it to answer again", lambda: berth.infer("long", numbers(2))[0] == 200)
    assert berth.infer("here")[0] == 200
    # Where control groups bound memory the process is ended; elsewhere the allocation fails.
    if engine(berth) != before:
        assert "ran out of memory" in berth.run("describe", "deployment/long")


def test_runs_end_at_their_time_and_the_engine_stays(berth):
    berth.start()
    berth.apply(deployment("turns", "turns", timeout="2s", runtime={"isolation": "sandbox"}))
    berth.available("turns")
    pid = engine(berth)
    assert berth.infer("turns", ENDLESS)[0] == 504
    until("the lane to be free", lambda: berth.infer("turns", QUICK)[0] == 200)
    assert engine(berth) == pid and deaths(berth, "turns") == 0


def test_an_engine_that_hangs_holds_up_nobody_and_is_ended(berth):
    berth.start()
    berth.apply(manifest("here"), apart("apart", "process", timeout="1s"))
    berth.available("here", "apart")
    pid = engine(berth)
    os.kill(pid, signal.SIGSTOP)
    statuses = []
    callers = [threading.Thread(target=lambda: statuses.append(berth.infer("apart")[0])) for _ in range(8)]
    for caller in callers:
        caller.start()
    while any(caller.is_alive() for caller in callers):
        assert berth.infer("here")[0] == 200
        time.sleep(0.02)
    assert set(statuses) <= {504, 429, 503}, statuses
    until("the engine to be replaced", lambda: (found := engines(berth)) and pid not in found, patience=120)
    until("it answers again", lambda: berth.infer("apart")[0] == 200)
    assert deaths(berth, "apart") == 1


def test_a_delete_ends_the_engine_and_so_does_the_end_of_the_server(berth):
    berth.start()
    berth.apply(apart("one", "sandbox"), apart("two", "process"))
    berth.available("one", "two")
    assert len(engines(berth)) == 2, "each replica has its own"
    berth.run("delete", "deployment/one")
    until("one of them to end", lambda: len(engines(berth)) == 1)
    left = engines(berth)
    berth.kill()
    until("the other to end", lambda: not [pid for pid in left if fields(pid)])


def test_an_engine_is_confined(berth):
    berth.start("--onnx-isolation", "sandbox")
    berth.apply(manifest("iris"))
    berth.available("iris")
    status = fields(engine(berth))
    assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapEff"], 16)) == ("1", "2", 0)
    if os.geteuid() == 0:
        assert status["Uid"].split()[0] != "0"
    assert "isolation: sandbox" in berth.run("get", "replicas", "-o", "json")


def test_a_graph_that_cannot_be_loaded_says_the_same_as_in_the_worker(berth, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph at all")
    berth.start()
    here = {"apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "here"}, "spec": {"model": {"format": "onnx", "uri": f"file:{broken}"}, "replicas": 1}}
    berth.apply(here, here | {"metadata": {"name": "apart"}, "spec": here["spec"] | {"runtime": {"isolation": "sandbox"}}})
    message = "it is not an ONNX file, or is cut short"
    for name in ("here", "apart"):
        until(f"{name} to fail", lambda: message in json.dumps(berth.status(name)))


def test_text_and_batches_go_to_another_process_and_back(berth):
    berth.start()
    berth.apply(manifest("here"), apart("apart", "process"), deployment("words", "strings", runtime={"isolation": "sandbox"}))
    berth.available("here", "apart", "words")
    rows = {"inputs": [IRIS["inputs"][0] | {"shape": [500, 4], "data": [float(n % 7) for n in range(2000)]}]}
    assert berth.infer("apart", rows)[1]["outputs"] == berth.infer("here", rows)[1]["outputs"]
    for path in ("/v2/models/{}", "/v2/models/{}/config"):
        here, there = (json.loads(berth.get(path.format(name))[2]) for name in ("here", "apart"))
        assert here.get("inputs") == there.get("inputs")
    spec = json.loads(berth.get("/v2/models/words")[2])["inputs"][0]
    request = {"inputs": [{"name": spec["name"], "datatype": "BYTES", "shape": [1, 2], "data": ["ä", ""]}]}
    status, body = berth.infer("words", request)
    assert status == 200 and body["outputs"][0]["data"] == ["ä", ""], body
