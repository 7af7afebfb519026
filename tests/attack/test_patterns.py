"""Schemas and code that a card brings: patterns that never end, code fetched where others can change it."""

from __future__ import annotations

import json
import threading

import pytest
from conftest import deployment
from test_access import CARD

from harness.examples import manifest
from harness.waiting import until
from spy import Spy

# Only steps back can tell that no text of As ends in this; each A doubles them.
ENDLESS = r"^(a+)+(?!a)\1$"


@pytest.fixture
def spy(tmp_path):
    server = Spy(tmp_path)
    card = server.code / "model-card.yaml"
    plain = "run: {type: string, examples:"
    assert plain in card.read_text()
    names = f"names: {{type: array, items: {{type: string, pattern: '{ENDLESS}'}}}}, {plain}"
    card.write_text(card.read_text().replace(plain, names))
    yield server
    server.close()


def test_patterns_that_never_end_are_refused_and_hold_up_nobody(spy):
    spy.serve()
    spy.apply(manifest("iris"))
    spy.available("iris")
    assert spy.post("/v1/spy", {"run": "answer = 1"})[0] == 200
    texts = {"run": "answer = 1", "names": ["a" * 60 + "!"] * 2_000}
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(spy.post("/v1/spy", texts)), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert spy.get("/v2/health/live")[0] == 200
        assert spy.infer("iris")[0] == 200
        assert spy.control("/healthz")[0] == 200
    assert len(answers) == 8
    for status, _, body in answers:
        assert status in (422, 429, 503), (status, body[:300])
        assert status != 422 or json.loads(body)["violations"], body[:300]
    assert spy.post("/v1/spy", {"run": "answer = 1"})[0] == 200


def test_code_over_http_from_another_machine_is_refused(berth):
    berth.start()
    card = json.loads(json.dumps(CARD))
    card["artifacts"] = {"storage_type": "http", "model_path": f"http://{berth.api}/healthz"}
    card["code"]["repository"] = "http://git.example.com/code.git"
    pinned = {"card": card, "repository": "http://git.example.com/code.git", "ref": "v0.1.0", "commit": "a" * 40, "codeCommit": "b" * 40}
    entry = deployment("code", "add")
    entry["spec"]["model"] = {"format": "python", "card": pinned}
    berth.apply(entry)
    said = until("the load to be refused", lambda: "--http-repositories" in (text := json.dumps(berth.status("code"))) and text)
    assert "whoever is between can change the code" in said, said
