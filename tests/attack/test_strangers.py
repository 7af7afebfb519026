"""Lines of the log that strangers cause, and texts that callers read."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from conftest import GRAPHS, deployment
from test_access import SERVICE, admin, bearer, declare, made  # noqa: F401  `admin` is a fixture

from harness.waiting import until

STORM = 500

# The preface of HTTP/2 with empty settings, and the answer to a PING.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PONG = bytes([0, 0, 8, 6, 1, 0, 0, 0, 0]) + b"no PING!"


def test_refused_webhooks_are_a_line_a_minute(berth, tmp_path):
    """Their port needs no token, so that anybody can send them at any rate; the source is told of none."""
    secret = tmp_path / "secret"
    secret.write_text("the secret of the webhook")
    berth.start("--source", "git=git+https://127.0.0.1:1/x.git", "--source-interval", "1h", "--webhook-secret-file", str(secret), "--auth", "tokens")
    proofs = [{}, {"x-hub-signature-256": "sha256=" + "0" * 64}, {"x-gitlab-token": "guess"}, {"authorization": "Bearer guess"}, {"x-hub-signature": "é" * 9}]

    def send(at: int) -> int:
        headers = {name: value.encode() for name, value in proofs[at % len(proofs)].items()}
        return berth.control("/v1/sources/git/webhook", "POST", b"{" * (at % 100), headers)[0]

    begun = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, range(STORM))) == {403}
        # One that does not exist costs no line at all, and tells no names.
        answers = list(pool.map(lambda at: berth.control(f"/v1/sources/no{at}/webhook", "POST", b"{}"), range(STORM)))
    assert {status for status, _, _ in answers} == {404}
    assert not [body for _, _, body in answers if b"git" in body], answers[0]
    lines = [line for line in berth.logged_lines() if "webhook" in line.lower()]
    minutes = 1 + int(time.monotonic() - begun) // 60
    assert 1 <= len([line for line in lines if "proof" in line]) <= minutes, lines
    assert len(berth.logged_lines()) < 60, "nothing else was written for each of them"
    refused = [line for line in (berth.data / "audit.log").read_text().splitlines() if "webhook" in line]
    assert len(refused) <= 4, "the audit log counts them"
    status, _, body = berth.control("/v1/webhook", "POST", b"{}")
    assert status == 403 and b"git" not in body, "the one for all sources wants the same proof, and tells no names"
    assert berth.control("/healthz")[0] == 200


def test_answers_to_no_question_fill_no_log(berth):
    """The library for HTTP/2 warns of each PING that is answered and was not sent: a client without a token had a hundred megabytes of log
    written in some seconds, and others waited for that."""
    berth.start("--auth", "tokens")
    for address in (berth.http, berth.api):
        host, port = address.split(":")
        for _ in range(3):
            with socket.create_connection((host, int(port)), timeout=30) as stranger:
                stranger.sendall(PREFACE + PONG * 20_000 + bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"question")
                answers = b""
                while b"question" not in answers:
                    piece = stranger.recv(65_536)
                    assert piece, "all of them were read, and the question after them was answered"
                    answers += piece
    assert berth.control("/healthz")[0] == 200 and berth.get("/v2/health/live")[0] == 200
    lines = [line for line in berth.logged_lines() if "PING" in line]
    assert 1 <= len(lines) <= 30, f"{len(lines)} lines"


def test_callers_read_no_paths(berth, admin, tmp_path):  # noqa: F811
    """Files that are no models, files that are gone, and graphs that fail when they run; over REST and gRPC."""
    folder = tmp_path / "a-secret-folder"
    folder.mkdir()
    (folder / "broken.onnx").write_bytes(b"this is no graph")
    (folder / "cut.onnx").write_bytes((GRAPHS / "add.onnx").read_bytes()[:60])
    (folder / "gone.onnx").write_bytes((GRAPHS / "add.onnx").read_bytes())
    names = ["broken", "cut", "gone", "absent"]
    for name in names:
        manifest = deployment(name, "add")
        manifest["spec"]["model"]["uri"] = f"file:{folder}/{name}.onnx"
        if name == "gone":
            manifest["spec"]["replicas"] = {"min": 0, "max": 1}
        status, _, body = berth.control("/v1/apply", "POST", json.dumps(manifest), bearer(admin))
        assert status == 200, body
    # Its digest is known, and its first load finds nothing.
    (folder / "gone.onnx").unlink()
    body = {"inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    assert berth.post("/v2/models/gone/infer", body, bearer(admin))[0] >= 500
    declare(berth, admin, "good")
    for name in names:
        status = lambda name=name: json.loads(berth.control(f"/v1/deployments/{name}", headers=bearer(admin))[2])["status"]
        until(f"{name} to fail", lambda status=status: status()["phase"] == "Failed")
    assert str(folder) in json.dumps(status()), "whoever declares it is told in full"
    until("the good one", lambda: berth._call(berth.http, "GET", "/v2/models/good/ready", headers=bearer(admin))[0] == 200)
    caller = bearer(made(berth, admin, "caller"))
    answers = []
    for name in [*names, "good", "never"]:
        for path in ("", "/ready", "/config", "/stats", "/versions/1/ready"):
            answers.append(berth._call(berth.http, "GET", f"/v2/models/{name}{path}", headers=caller))
        for path in ("infer", "generate", "generate_stream"):
            answers.append(berth.post(f"/v2/models/{name}/{path}", body, caller))
        answers.append(berth.post(f"/v1/models/{name}:predict", {"instances": [[1, 2, 3, 4]]}, caller))
        answers.append(berth.post(f"/v2/repository/models/{name}/load", {}, caller))
    answers += [berth.post("/v2/repository/index", {}, caller), berth._call(berth.http, "GET", "/v2/models/stats", headers=caller)]
    answers += [berth._call(berth.http, "GET", path) for path in ("/v2/health/ready", "/readyz", "/nothing")]
    texts = [json.dumps(headers) + text.decode(errors="replace") for _, headers, text in answers]
    assert any("…/absent.onnx" in text for text in texts), "the reason itself is told"
    with grpc.insecure_channel(berth.http) as channel:
        for name in [*names, "good", "never"]:
            for method in ("ModelInfer", "ModelMetadata", "ModelReady", "RepositoryModelLoad"):
                message = (b"\x12" if method.startswith("Repo") else b"\x0a") + bytes([len(name)]) + name.encode()
                try:
                    texts.append(repr(channel.unary_unary(SERVICE + method)(message, metadata=list(caller.items()), timeout=30)))
                except grpc.RpcError as error:
                    texts.append(f"{error.details()} {error.trailing_metadata()}")
        try:
            texts.append(repr(channel.unary_unary(SERVICE + "RepositoryIndex")(b"", metadata=list(caller.items()), timeout=30)))
        except grpc.RpcError as error:
            texts.append(error.details())
    told = [text for text in texts if any(place in text for place in (str(tmp_path), str(berth.data), str(GRAPHS), "a-secret-folder", "/root/", "/work/"))]
    assert not told, told[:3]
