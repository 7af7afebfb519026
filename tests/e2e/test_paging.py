"""More models in use than fit, asked for by several callers at once, of sizes that nobody declared: what a forest takes in
memory is several times what its file lets one expect. None is refused, and the process keeps to its bound."""

import http.client
import json
import random
import threading
from pathlib import Path

from harness import forests
from harness.examples import manifest
from harness.waiting import PATIENCE

CALLERS = 8
MODELS = 50
REQUESTS = 30
# The program built for tests takes 130 MiB, and must stay below half: one that takes more is not counted in the bound. The models
# together take twice as much.
BOUND = 320 << 20


def peak(berth) -> int:
    """The most that the process has had in memory, as the kernel counts it."""
    status = Path(f"/proc/{berth.process.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


class Caller(threading.Thread):
    """Asks for one model after the other, over one connection."""

    def __init__(self, address: str, models: list[str]):
        super().__init__(daemon=True)
        self.address, self.models, self.failed = address, models, []
        self.start()

    def run(self):
        connection = http.client.HTTPConnection(self.address, timeout=2 * PATIENCE)
        for model in self.models:
            connection.request("POST", f"/v2/models/{model}/infer", json.dumps(forests.REQUEST), {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status != 200:
                self.failed.append((answer.status, text))


def test_callers_of_more_models_than_fit_wait_their_turn(berth, tmp_path):
    files = forests.write(tmp_path / "forests", MODELS, [80, 320])
    berth.start("--memory", f"{BOUND >> 20}MiB")
    demand = {"min": 0, "max": 1}
    berth.apply(*(manifest(file.stem, replicas=demand, model={"uri": f"file:{file}"}, timeout="60s") for file in files))
    # The second time their sizes are known.
    for round in ("predicted", "measured"):
        chance = random.Random(round)
        orders = [[chance.choice(files).stem for _ in range(REQUESTS)] for _ in range(CALLERS)]
        callers = [Caller(berth.http, order) for order in orders]
        for caller in callers:
            caller.join(4 * PATIENCE)
            assert not caller.is_alive(), f"{round}: a caller waits for an answer that does not end"
        failed = [failure for caller in callers for failure in caller.failed]
        assert not failed, f"{round}: {failed[:3]}"
    assert berth.metric("berth_plan_evictions_total") > MODELS
    assert berth.metric("berth_worker_memory_overhead_bytes") > 0
    assert peak(berth) <= BOUND * 1.1, f"{peak(berth) >> 20} MiB in memory, and the bound is {BOUND >> 20} MiB"
    # A prediction that was wrong is no failure of a model.
    reasons = {event["reason"] for event in json.loads(berth.run("get", "events", "-o", "json"))["items"]}
    assert "LoadFailed" not in reasons and "NoCapacity" not in reasons, reasons


def test_what_no_eviction_makes_room_for_is_refused_with_numbers(berth, tmp_path):
    [file] = forests.write(tmp_path / "forests", 1, [40])
    berth.start("--memory", "64MiB")
    demand = {"min": 0, "max": 1}
    berth.apply(
        manifest("resident", resources={"memory": "60MiB"}),
        manifest("guest", replicas=demand, model={"uri": f"file:{file}"}, resources={"memory": "20MiB"}),
    )
    berth.available("resident")
    status, _, body = berth.post("/v2/models/guest/infer", forests.REQUEST)
    answer = json.loads(body)
    assert (status, answer["reason"]) == (503, "no_capacity") and "20MiB" in answer["error"], answer
