"""Callers and models that take more than their part: limits on use, and fair shares of what all requests have together."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter

import grpc
import pytest
from conftest import deployment

from harness.examples import IRIS, manifest
from harness.waiting import until

INFER = "/inference.GRPCInferenceService/ModelInfer"


def bearer(secret: str | None) -> dict:
    return {"authorization": f"Bearer {secret}"} if secret else {}


@pytest.fixture
def tokens(berth, monkeypatch):
    """Starts a server that asks for tokens; the commands act for its admin."""

    def start(*arguments: str) -> None:
        berth.start("--auth", "tokens", *arguments)
        file = berth.data / "admin.token"
        until("the admin's token", file.exists)
        monkeypatch.setenv("BERTH_TOKEN_FILE", str(file))
        until("the token to be known", lambda: berth.control("/v1/tokens", headers=bearer(file.read_text().strip()))[0] == 200)

    return start


def made(berth, *arguments: str) -> str:
    return berth.run("token", "create", "--role", "caller", *arguments, "-o", "name").strip()


def serve(berth, *names: str, secret: str | None = None) -> None:
    """Declares a model under these names and waits until it answers. The limits come last: readiness does not count."""
    for name in names:
        berth.apply(manifest(name))
    for name in names:
        berth.run("wait", f"deployment/{name}", "--for=Available", "--timeout=120s")
        until(f"{name} to answer", lambda name=name: ask(berth, name, secret)[0] == 200)


def ask(berth, name: str, secret: str | None = None) -> tuple[int, dict, dict]:
    status, headers, body = berth.post(f"/v2/models/{name}/infer", IRIS, bearer(secret))
    return status, headers, json.loads(body)


def until_refused(berth, name: str, secret: str | None = None) -> tuple[int, dict, dict]:
    """Asks without a pause until it is not answered."""
    for _ in range(200):
        answer = ask(berth, name, secret)
        if answer[0] != 200:
            return answer
    raise AssertionError("200 requests were answered")


def begun(berth, name: str, secret: str | None = None) -> socket.socket:
    """A request of which the body does not come: it is inside, and runs nowhere."""
    host, port = berth.http.split(":")
    caller = socket.create_connection((host, int(port)), timeout=30)
    token = f"authorization: Bearer {secret}\r\n" if secret else ""
    head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nhost: x\r\n{token}content-type: application/json\r\ncontent-length: 100\r\n\r\n"
    caller.sendall(head.encode() + b"{")
    return caller


def test_a_token_is_limited_and_no_other(berth, tokens):
    tokens()
    limited, other = made(berth, "--rate", "1", "--burst", "3"), made(berth)
    serve(berth, "iris", secret=other)
    status, headers, answer = until_refused(berth, "iris", limited)
    assert (status, answer["reason"]) == (429, "rate_limit"), answer
    assert int(headers["retry-after"]) >= 1
    assert "token:" in answer["error"] and "1 request per second" in answer["error"], answer
    assert [ask(berth, "iris", other)[0] for _ in range(20)] == [200] * 20
    assert "1/s (burst 3)" in berth.run("token", "list")
    admin = bearer((berth.data / "admin.token").read_text().strip())
    counted = [line for line in berth.control("/metrics", headers=admin)[2].decode().splitlines() if "berth_gateway_limited_total" in line]
    assert any('scope="principal"' in line and 'limit="rate_limit"' in line and not line.endswith(" 0") for line in counted), counted


def test_grpc_has_the_same_limits(berth, tokens):
    tokens("--principal-rate", "1", "--principal-burst", "2")
    free = made(berth, "--unlimited")
    serve(berth, "iris", secret=free)
    secret = made(berth)
    with grpc.insecure_channel(berth.http) as channel:
        call = channel.unary_unary(INFER)
        refused = []

        def calls() -> bool:
            try:
                call(b"\x0a\x04iris", metadata=[("authorization", f"Bearer {secret}")], timeout=30)
            except grpc.RpcError as error:
                refused.append(error)
            return refused[-1].code() == grpc.StatusCode.RESOURCE_EXHAUSTED

        until("the limit", calls)
    told = dict(refused[-1].trailing_metadata())
    assert told["berth-reason"] == "rate_limit" and int(told["retry-after"]) >= 1, told
    assert [ask(berth, "iris", free)[0] for _ in range(10)] == [200] * 10


def test_a_model_is_limited_until_its_manifest_says_otherwise(berth):
    berth.start()
    serve(berth, "iris", "other")
    revision = berth.status("iris")["revision"]
    limited = manifest("iris")
    limited["spec"]["limits"] = {"rate": 1, "burst": 2}
    berth.apply(limited)
    status, headers, answer = until_refused(berth, "iris")
    assert (status, answer["reason"]) == (429, "rate_limit") and 'model "iris"' in answer["error"], answer
    assert headers["retry-after"]
    assert [ask(berth, "other")[0] for _ in range(20)] == [200] * 20
    limited["spec"]["limits"] = {"bytesPerSecond": "1KiB"}
    berth.apply(limited)
    assert until_refused(berth, "iris")[2]["reason"] == "bytes_limit"
    berth.apply(manifest("iris"))
    assert [ask(berth, "iris")[0] for _ in range(20)] == [200] * 20
    assert berth.status("iris")["revision"] == revision, "limits make no revision"


def test_requests_at_once_are_those_that_have_not_ended(berth):
    berth.start()
    serve(berth, "iris")
    limited = manifest("iris")
    limited["spec"]["limits"] = {"inFlight": 1}
    berth.apply(limited)
    held = begun(berth, "iris")
    until("the request to be inside", lambda: berth.metric("berth_gateway_requests_inside") == 1)
    assert ask(berth, "iris")[2]["reason"] == "in_flight_limit"
    held.close()
    until("its end", lambda: ask(berth, "iris")[0] == 200)


@pytest.mark.parametrize("knows", [False, True])
def test_a_storm_starves_nobody(berth, tokens, knows):
    if knows:
        tokens("--max-requests", "64")
        storm, quiet = made(berth), made(berth)
    else:
        berth.start("--max-requests", "64")
        storm = quiet = None
    serve(berth, "busy", "calm", secret=quiet)
    held = [begun(berth, "busy", storm) for _ in range(200)]
    # As many as there are places wait for their bodies; the others were refused.
    refused = until_refused(berth, "busy", storm)
    assert (refused[0], refused[2]["reason"]) == (503, "queue_full"), refused
    answers = [ask(berth, "calm", quiet) for _ in range(50)]
    assert [answer[0] for answer in answers] == [200] * 50, answers[-1]
    if knows:
        assert ask(berth, "busy", quiet)[0] == 200, "another caller of the same model"
    for caller in held:
        caller.close()
    until("the storm to be over", lambda: ask(berth, "busy", storm)[0] == 200)


def test_eight_clients_of_one_principal_leave_the_others_alone(berth, tokens):
    """They do not slow down at a refusal. Each of those says when to come back; another tenant is answered meanwhile, in time."""
    tokens()
    storm, quiet = made(berth, "--rate", "20", "--burst", "20", "--in-flight", "4"), made(berth)
    serve(berth, "iris", secret=quiet)
    end, answers = time.monotonic() + 4, []

    def client() -> None:
        while time.monotonic() < end:
            status, headers, answer = ask(berth, "iris", storm)
            answers.append((status, headers.get("retry-after"), answer.get("reason")))

    clients = [threading.Thread(target=client) for _ in range(8)]
    for one in clients:
        one.start()
    took = []
    while any(one.is_alive() for one in clients):
        began = time.monotonic()
        assert ask(berth, "iris", quiet)[0] == 200
        took.append(time.monotonic() - began)
    for one in clients:
        one.join()
    by = Counter(status for status, _, _ in answers)
    assert set(by) == {200, 429} and by[429] > by[200], by
    assert by[200] <= 20 + 20 * 5, by
    refused = [(after, reason) for status, after, reason in answers if status == 429]
    assert all(after and 1 <= int(after) <= 60 and reason in ("rate_limit", "in_flight_limit") for after, reason in refused), refused[:5]
    took.sort()
    assert took[len(took) // 2] < 1, (len(took), took[-3:])
    until("the storm to be over", lambda: ask(berth, "iris", storm)[0] == 200)
    assert len([line for line in berth.logged_lines() if "rate_limit" in line]) < 10, "refusals are counted, not told one by one"


def test_a_storm_of_bodies_leaves_memory_for_others(berth):
    berth.start("--request-memory", "256MiB")
    serve(berth, "busy", "calm")
    host, port = berth.http.split(":")
    held = []
    for _ in range(24):
        caller = socket.create_connection((host, int(port)), timeout=30)
        head = f"POST /v2/models/busy/infer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {48 << 20}\r\n\r\n"
        try:
            caller.sendall(head.encode())
            caller.sendall(b" " * (20 << 20))
        except OSError:
            pass  # refused, and cut off
        held.append(caller)
    assert berth.metric("berth_gateway_shed_total", reason="no_memory") > 0
    row = "[5.1,3.5,1.4,0.2]"
    large = '{"inputs":[{"name":"X","datatype":"FP32","shape":[2000,4],"data":[' + ",".join([row] * 2_000) + "]}]}"
    answers = [berth.post("/v2/models/calm/infer", large.encode()) for _ in range(20)]
    assert [answer[0] for answer in answers] == [200] * 20, answers[-1]
    for caller in held:
        caller.close()
