"""Callers that ask again and again."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import NamedTuple

from .waiting import PATIENCE, until


# Seconds between two requests of a caller: many requests in the moments that matter, and cores left for those who answer.
PAUSE = 0.005


class Record(NamedTuple):
    at: float
    # 0: there was no answer, and the text says what there was instead.
    status: int
    text: str


class Load:
    """Each caller asks one of the gateways over one kept connection, in turn. Nothing is sent twice: what fails is recorded."""

    def __init__(self, gateways: list[str], path: str, request: dict, callers: int = 4):
        """`gateways`: `HOST:PORT` of each."""
        self.records: list[Record] = []
        self.ending = threading.Event()
        body = json.dumps(request)
        places = [gateways[number % len(gateways)] for number in range(callers)]
        self.threads = [threading.Thread(target=self._ask, args=(place, path, body), daemon=True) for place in places]
        for thread in self.threads:
            thread.start()

    def _ask(self, gateway: str, path: str, body: str) -> None:
        connection = http.client.HTTPConnection(gateway, timeout=PATIENCE)
        while not self.ending.is_set():
            try:
                connection.request("POST", path, body, {"content-type": "application/json"})
                response = connection.getresponse()
                status, text = response.status, response.read().decode()
            except (OSError, http.client.HTTPException) as error:
                status, text = 0, repr(error)
                connection.close()
            self.records.append(Record(time.monotonic(), status, text))
            self.ending.wait(PAUSE)
        connection.close()

    @property
    def sent(self) -> int:
        return len(self.records)

    @property
    def failed(self) -> list[tuple[int, str]]:
        return [(record.status, record.text[:200]) for record in list(self.records) if record.status != 200]

    def more(self, requests: int) -> None:
        """Waits until so many more were answered, one way or the other."""
        seen = self.sent
        until(f"{requests} more answers", lambda: self.sent >= seen + requests)

    def end(self) -> None:
        """Returns when every caller has its last answer."""
        self.ending.set()
        for thread in self.threads:
            # Longer than a request may take.
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), "a caller waits for an answer that does not end"

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_) -> None:
        self.end()
