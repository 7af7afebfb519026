"""A request of a hundred bytes that asks for a run of days."""

from __future__ import annotations

import threading
import time

from conftest import deployment
from harness.examples import manifest
from harness.waiting import PATIENCE, until

# A run of days: the graph turns as often as its input says.
ENDLESS = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [9_000_000_000_000]}]}
QUICK = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [3]}]}


def storm(berth, name: str, callers: int, answers: list) -> list[threading.Thread]:
    """So many callers who want an endless run."""
    run = lambda: answers.append(berth.infer(name, ENDLESS))  # noqa: E731
    threads = [threading.Thread(target=run, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    return threads


def test_endless_runs_hold_up_nobody_and_end_at_their_time(berth):
    berth.start()
    berth.apply(deployment("turns", "turns", timeout="3s"), manifest("iris"))
    berth.available("turns", "iris")
    for _ in range(20):
        assert berth.infer("turns", QUICK)[0] == 200, "runs are short so far"
    answers = []
    threads = storm(berth, "turns", 16, answers)
    while any(thread.is_alive() for thread in threads):
        assert berth.get("/v2/health/live")[0] == 200
        assert berth.infer("iris")[0] == 200
        assert berth.control("/healthz")[0] == 200
        time.sleep(0.05)
    assert {status for status, _ in answers} <= {504, 429, 503}, answers
    assert berth.infer("turns", QUICK)[0] == 200, "its threads are free again"


def test_a_delete_ends_the_runs_of_a_model(berth):
    berth.start()
    berth.apply(deployment("turns", "turns", timeout="1h", rollout={"drainTimeout": "1s"}))
    berth.available("turns")
    answers = []
    threads = storm(berth, "turns", 2, answers)
    until("the runs to begin", lambda: berth.metric("berth_gateway_requests_inside") >= 2)
    berth.run("delete", "deployment/turns")
    for thread in threads:
        thread.join(PATIENCE)
    assert len(answers) == 2 and all(status >= 500 for status, _ in answers), answers


def test_sigterm_ends_a_server_with_endless_runs(berth):
    berth.start("--drain-timeout", "2s")
    berth.apply(deployment("turns", "turns", timeout="1h"))
    berth.available("turns")
    storm(berth, "turns", 4, [])
    until("the runs to begin", lambda: berth.metric("berth_gateway_requests_inside") >= 4)
    began = time.monotonic()
    berth.stop()
    assert time.monotonic() - began < 60
