"""Kills, restarts and graceful stops."""

import json
import threading

from conftest import Berth, Load
from harness.examples import ARTIFACTS, manifest
from harness.waiting import PATIENCE, until


def test_kill_and_restart_bring_everything_back(berth, files):
    files.files["iris.onnx"] = (ARTIFACTS / "iris.onnx").read_bytes()
    berth.start()
    berth.apply(manifest("iris", model={"uri": files.place("iris.onnx")}), manifest("lazy", replicas={"min": 0, "max": 1}))
    berth.available("iris")
    fetched = files.gets
    assert fetched >= 1
    berth.kill()
    berth.start()
    # The server is not ready before what should be resident is.
    until("readiness", lambda: berth.get("/v2/health/ready")[0] == 200)
    assert berth.infer("iris")[0] == 200
    assert files.gets == fetched, "the artifact was fetched again"
    assert berth.infer("lazy")[0] == 200


def test_acknowledged_declarations_survive_kills(berth):
    declared = 0
    for _ in range(3):
        berth.start()
        for _ in range(10):
            berth.apply(manifest(f"m{declared:03}", replicas={"min": 0, "max": 1}))
            declared += 1
        berth.kill()
    berth.start()
    items = json.loads(berth.run("get", "deployments", "-o", "json"))["items"]
    assert [item["metadata"]["name"] for item in items] == [f"m{i:03}" for i in range(declared)]


def test_two_processes_do_not_share_a_data_folder(berth, tmp_path):
    berth.start()
    second = Berth(tmp_path)
    done = second.run("up", "--data", str(berth.data), "--http", second.http, "--api", second.api, code=1)
    assert not done and f"process {berth.process.pid} keeps its state in" in second.stderr, second.stderr


def test_sigterm_finishes_what_is_in_flight(berth):
    berth.start()
    berth.apply(manifest("iris"))
    berth.available("iris")
    with Load(berth, "iris", callers=8) as load:
        load.more(100)
        ended = []
        stopping = threading.Thread(target=lambda: ended.append(berth.stop()))
        stopping.start()
        # Longer than it is waited for there.
        stopping.join(2 * PATIENCE)
    assert ended == [0]
    # Every request was answered, or refused with the reason, or met a closed port; none was cut off half-way.
    for _, status, body in load.records:
        met_a_closed_door = status == 0 and any(word in body for word in ("Refused", "Reset", "BrokenPipe", "RemoteDisconnected"))
        assert status in (200, 503) or met_a_closed_door, (status, body)
    for _, status, body in load.records:
        if status == 503:
            assert json.loads(body)["reason"] == "shutting_down"
    assert "drained" in berth.logged() or "stopped" in berth.logged()
