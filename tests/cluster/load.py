"""Clients under constant load, as a process of their own: `load.py GATEWAYS MODELS SECONDS RECORD [CALLERS] [RATE]`.

Every caller asks one gateway over one kept connection. A gateway that refuses the connection or breaks it is left for the
next one and the request is sent again, as a load balancer in front of the gateways would; an answer that says "not now"
(503 with Retry-After) is not: that is the system's own to avoid. RECORD gets one line of JSON for every request: what it
was, every attempt with what became of it, and whether it was answered rightly. A number on standard
input is answered with a line once so many more requests are over; the load ends with an empty line, or when SECONDS are over.
"""

from __future__ import annotations

import http.client
import json
import random
import select
import sys
import threading
import time

# What each model must answer: the class of a flower (`examples/models`), the same for every version of it.
FLOWERS = {0: [5.1, 3.5, 1.4, 0.2], 1: [6.0, 2.9, 4.5, 1.5], 2: [6.9, 3.1, 5.4, 2.1]}
# Seconds that a request may take before it is lost: a busy machine needs up to half of it to find a new place for a model.
PATIENCE = 60.0
# A gateway that says nothing for so long is given up: its machine may be gone without a word.
ATTEMPT = 5.0


class Caller(threading.Thread):
    def __init__(self, number: int, gateways: list[str], models: list[str], pause: float, stop: threading.Event):
        super().__init__(daemon=True)
        self.random = random.Random(number)
        self.gateways = gateways[number % len(gateways) :] + gateways[: number % len(gateways)]
        self.models = models
        self.pause = pause
        self.stop = stop
        self.number = number
        self.records: list[dict] = []
        self.connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        count = 0
        while not self.stop.is_set():
            count += 1
            self.records.append(self.ask(f"{self.number}-{count}"))
            if self.pause:
                self.stop.wait(self.pause)

    def ask(self, id: str) -> dict:
        model = self.random.choice(self.models)
        flower = self.random.choice(list(FLOWERS))
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": FLOWERS[flower]}
        body = json.dumps({"id": id, "inputs": [tensor]})
        record = {"id": id, "model": model, "sent": time.time(), "attempts": [], "answered": False}
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            attempt = {"gateway": self.gateways[0], "at": time.time()}
            record["attempts"].append(attempt)
            try:
                status, text = self.send(model, body, end)
            except (OSError, http.client.HTTPException) as error:
                attempt["error"] = repr(error)
                self.leave()
                continue
            attempt["status"] = status
            record["answered"] = status == 200 and self.right(text, id, flower)
            if not record["answered"]:
                attempt["text"] = text[:500]
            break
        record["ended"] = time.time()
        return record

    def send(self, model: str, body: str, end: float) -> tuple[int, str]:
        if self.connection is None:
            host, port = self.gateways[0].split(":")
            self.connection = http.client.HTTPConnection(host, int(port), timeout=ATTEMPT)
        headers = {"content-type": "application/json"}
        self.connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        response = self.connection.getresponse()
        text = response.read().decode(errors="replace")
        if response.will_close:
            self.connection.close()
            self.connection = None
        return response.status, text

    def leave(self) -> None:
        """To the next gateway."""
        if self.connection:
            self.connection.close()
            self.connection = None
        self.gateways = self.gateways[1:] + self.gateways[:1]
        time.sleep(0.02)

    @staticmethod
    def right(text: str, id: str, flower: int) -> bool:
        try:
            answer = json.loads(text)
            labels = next((out["data"] for out in answer["outputs"] if out["name"] == "label"), None)
        except (ValueError, KeyError, TypeError):
            return False
        return answer.get("id") == id and labels == [flower]


def asked(end: float) -> int:
    """The next number on standard input; 0 when the load is to end."""
    readable, _, _ = select.select([sys.stdin], [], [], max(0.0, end - time.monotonic()))
    return int(sys.stdin.readline().strip() or 0) if readable else 0


def main() -> None:
    gateways, models, seconds, record = sys.argv[1].split(","), sys.argv[2].split(","), float(sys.argv[3]), sys.argv[4]
    callers = int(sys.argv[5]) if len(sys.argv) > 5 else 6
    rate = float(sys.argv[6]) if len(sys.argv) > 6 else 0.0
    stop = threading.Event()
    pause = callers / rate if rate else 0.0
    running = [Caller(number, gateways, models, pause, stop) for number in range(callers)]
    for caller in running:
        caller.start()
    end = time.monotonic() + seconds
    while more := asked(end):
        count = lambda: sum(len(caller.records) for caller in running)
        enough = count() + more
        while count() < enough and time.monotonic() < end:
            time.sleep(0.01)
        print(more, flush=True)
    stop.set()
    for caller in running:
        caller.join(PATIENCE * 2)
    with open(record, "w") as out:
        for caller in running:
            for line in caller.records:
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
