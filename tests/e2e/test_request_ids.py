"""Every request has an id: the client's own, or one that is made."""

from __future__ import annotations

import json
import re

import grpc
import pytest

from harness.examples import IRIS

MADE = re.compile(r"[0-9a-f]{16}")
LONGEST = "x" * 128

PLACES = [("http", "/v2"), ("http", "/v2/models/iris"), ("http", "/v2/models/nobody"), ("api", "/v1/deployments"), ("api", "/v1/deployments/nobody"), ("api", "/healthz"), ("api", "/nowhere")]


def asked(server, address: str, path: str, sent: list[str]) -> tuple[str, dict | None]:
    """The id in the answer, and the body of an error."""
    headers = {"x-request-id": sent[0]} if sent else {}
    status, headers, body = server._call(getattr(server, address), "GET", path, None, headers)
    return headers["x-request-id"], json.loads(body) if status >= 400 else None


@pytest.mark.parametrize(("address", "path"), PLACES)
def test_answers_and_errors_have_the_id(shared, address, path):
    for mine in ("mine", "7f3e-\"q\"", LONGEST):
        told, error = asked(shared, address, path, [mine])
        assert told == mine
        if error:
            assert (error["request_id"] if address == "http" else error["error"]["requestId"]) == mine
    seen = set()
    for insane in ([], [""], ["two words"], [LONGEST + "x"]):
        told, _ = asked(shared, address, path, insane)
        assert MADE.fullmatch(told), told
        seen.add(told)
    assert len(seen) == 4


def test_the_protocols_own_id_is_another(shared):
    status, headers, body = shared.post("/v2/models/iris/infer", IRIS | {"id": "theirs"}, {"x-request-id": "mine"})
    assert (status, headers["x-request-id"], json.loads(body)["id"]) == (200, "mine", "theirs")


def test_metadata_of_grpc(shared):
    with grpc.insecure_channel(shared.http) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        _, live = call.with_call(b"", metadata=[("x-request-id", "mine")])
        assert dict(live.initial_metadata())["x-request-id"] == "mine"
        _, live = call.with_call(b"")
        assert MADE.fullmatch(dict(live.initial_metadata())["x-request-id"])
        with pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"", metadata=[("x-request-id", "mine")])
        told = dict(failed.value.initial_metadata() or ()) | dict(failed.value.trailing_metadata() or ())
        assert told["x-request-id"] == "mine"


def test_the_log_of_the_control_api_has_it(berth):
    berth.start("--auth", "tokens", "--log-format", "json")
    secret = (berth.data / "admin.token").read_text().strip()
    headers = {"authorization": f"Bearer {secret}", "x-request-id": "mine"}
    assert berth.control("/v1/tokens", "POST", json.dumps({"spec": {"role": "viewer"}}), headers)[0] == 201
    made = [line for line in map(json.loads, berth.logged_lines()) if line["event"] == "token_created"]
    assert [line["context"]["request_id"] for line in made] == ["mine"]
