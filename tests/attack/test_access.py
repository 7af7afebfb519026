"""Whoever may not is kept out, with the real binary. Every route and role: test_roles.py."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from conftest import deployment

from harness.waiting import PATIENCE, until

SERVICE = "/inference.GRPCInferenceService/"

TWO = {"inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


def bearer(secret: str | None) -> dict:
    return {"authorization": f"Bearer {secret}"} if secret else {}


@pytest.fixture
def admin(berth):
    """A server that asks for tokens, and the token of its admin."""
    berth.start("--auth", "tokens")
    file = berth.data / "admin.token"
    until("the admin's token", file.exists)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text().strip()
    until("the token to be known", lambda: berth.control("/v1/tokens", headers=bearer(secret))[0] == 200)
    return secret


def made(berth, admin: str, role: str, expires: int | None = None, **spec) -> str:
    body = {"spec": {"role": role} | spec} | ({"expiresInSeconds": expires} if expires else {})
    status, headers, answer = berth.control("/v1/tokens", "POST", json.dumps(body), bearer(admin))
    assert status == 201, answer
    assert headers["cache-control"] == "no-store"
    return json.loads(answer)["secret"]


def declare(berth, secret: str, *names: str, namespace: str = "default") -> None:
    for name in names:
        manifest = deployment(name, "add")
        manifest["metadata"]["namespace"] = namespace
        status, _, body = berth.control("/v1/apply", "POST", json.dumps(manifest), bearer(secret))
        assert status == 200, body


def called(berth, path: str, secret: str | None) -> grpc.StatusCode:
    with grpc.insecure_channel(berth.http) as channel:
        metadata = [("authorization", f"Bearer {secret}")] if secret else []
        stream = path.endswith("StreamInfer")
        call = (channel.stream_stream if stream else channel.unary_unary)(path)
        try:
            list(call(iter([b""]), metadata=metadata, timeout=30)) if stream else call(b"", metadata=metadata, timeout=30)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_what_needs_no_token(berth, admin):
    for path in ("/healthz", "/readyz", "/dashboard/"):
        assert berth.control(path)[0] == 200, path
    assert berth.get("/v2/health/live")[0] == 200
    assert b"missing" not in berth.get("/v2/health/ready")[2]
    assert called(berth, SERVICE + "ServerLive", None) == grpc.StatusCode.OK
    assert called(berth, "/grpc.health.v1.Health/Check", None) == grpc.StatusCode.OK
    assert called(berth, "/grpc.health.v1.Health/Watch", None) == grpc.StatusCode.UNIMPLEMENTED
    for path in ("/v1/sources/none/webhook", "/v1/webhook"):
        assert berth.control(path, "POST", "{}")[0] == 404, f"{path}: webhooks prove a secret of their own"


def test_a_token_holds_where_it_was_given(berth, admin):
    declare(berth, admin, "fraud-1", "other")
    declare(berth, admin, "fraud-1", namespace="shop")
    caller = bearer(made(berth, admin, "caller", namespaces=["default"], models=["fraud-*"]))

    def asked(path: str) -> tuple[int, str]:
        status, _, body = berth.post(path, TWO, caller | {"x-request-id": "asked"})
        return status, body.decode()

    assert asked("/v2/models/fraud-1/infer")[0] not in (401, 403, 404)
    forbidden, unknown = asked("/v2/models/other/infer"), asked("/v2/models/never/infer")
    assert forbidden[0] == unknown[0] == 404
    assert forbidden[1].replace("other", "never") == unknown[1], "what is forbidden looks as what is unknown"
    assert asked("/namespaces/shop/v2/models/fraud-1/infer")[0] == 404
    assert json.loads(berth._call(berth.http, "GET", "/v2/models", headers=caller)[2]) == {"models": ["fraud-1"]}
    index = json.loads(berth.post("/v2/repository/index", {}, caller)[2])
    assert {row["name"] for row in index} == {"fraud-1"}
    assert berth._call(berth.http, "GET", "/v2/models/other", headers=caller)[0] == 404
    assert berth.post("/functions/none", {}, caller)[0] == 403, "a role for models is none for functions"
    of_shop = bearer(made(berth, admin, "caller", namespaces=["shop"]))
    calls = [berth.post(f"{prefix}/functions/none", {}, of_shop) for prefix in ("/namespaces/shop", "", "/namespaces/team")]
    assert [status for status, _, _ in calls] == [404, 403, 403]

    deployer = bearer(made(berth, admin, "deployer", namespaces=["shop"]))

    def declared(manifest: dict, path: str = "/v1/apply") -> int:
        return berth.control(path, "POST", json.dumps(manifest), deployer)[0]

    elsewhere, inside = deployment("new", "add"), deployment("new", "add")
    inside["metadata"]["namespace"] = "shop"
    assert declared(elsewhere) == 403 and declared(inside) == 200
    for path in ("/v1/plan", "/v1/validate"):
        assert declared(elsewhere, path) == 403 and declared(inside, path) == 200, path
    assert berth.control("/v1/plan?delete=other", "POST", json.dumps(inside), deployer)[0] == 403
    # Settings of workers move the models of everybody.
    assert berth.control("/v1/plan/registry", "POST", json.dumps({"manifests": [inside]}), deployer)[0] == 403
    assert berth.control("/v1/plan/registry", "POST", json.dumps({"manifests": [inside]}), bearer(admin))[0] == 200
    for kind in ("deployments", "functions"):
        assert berth.control(f"/v1/namespaces/shop/{kind}", headers=deployer)[0] == 200
        assert berth.control(f"/v1/namespaces/default/{kind}", headers=deployer)[0] == 403
        assert berth.control(f"/v1/{kind}", headers=deployer)[0] == 403
    assert berth.control("/v1/namespaces/shop/functions/none", headers=deployer)[0] == 404
    assert berth.control("/v1/functions/none", headers=deployer)[0] == 403
    assert berth.control("/v1/deployments/shop%2Ffraud-1", "DELETE", headers=deployer)[0] == 403
    assert berth.control("/v1/tokens", headers=deployer)[0] == 403


def test_a_limited_token_sees_its_own_things_with_the_commands(berth, admin, monkeypatch):
    declare(berth, admin, "fraud-1", "fraud-2", namespace="shop")
    declare(berth, admin, "other")
    targets = [{"deployment": "fraud-1", "weight": 1}]
    alias = {"apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": {"name": "live", "namespace": "shop"}, "spec": {"targets": targets}}
    assert berth.control("/v1/apply", "POST", json.dumps(alias), bearer(admin))[0] == 200

    def asked(*words: str, code: int = 0) -> str:
        return berth.run(*words, code=code) + berth.stderr

    monkeypatch.setenv("BERTH_TOKEN", made(berth, admin, "viewer", namespaces=["shop"]))
    for words in (["-n", "shop"], ["-n", "shop", "-o", "json"], ["shop/fraud-1", "shop/fraud-2"], ["fraud-1", "fraud-2", "-n", "shop"]):
        listed = asked("get", "deployments", *words)
        assert "fraud-1" in listed and "fraud-2" in listed and '"other"' not in listed and "\nother" not in listed
    assert "live" in asked("get", "aliases", "-n", "shop")
    for name in ("fraud-1", "deployment/fraud-1"):
        assert "fraud-1" in asked("get", name, "-n", "shop")
        assert "Declared" in asked("describe", name, "-n", "shop"), "with events"
        asked("logs", name, "-n", "shop")
    assert "events need a role" not in asked("describe", "alias/live", "-n", "shop")
    assert 'did you mean "shop/fraud-' in asked("get", "deployment", "shop/fraud-3", code=3)
    asked("wait", "fraud-1", "-n", "shop", "--for=Available", f"--timeout={PATIENCE:.0f}s")
    for kind in ("replicas", "revisions", "events"):
        listed = asked("get", kind, "-n", "shop", "-o", "json")
        assert "fraud-1" in listed and '"other"' not in listed and "other@" not in listed, (kind, listed)
        assert "fraud-1" in asked("get", kind, "-n", "shop")
    events = json.loads(asked("get", "events", "-n", "shop", "-o", "json"))["items"]
    assert all(event["deployment"].startswith("shop/") for event in events), "none of nodes or of the whole system"
    for path in ("replicas", "revisions", "events", "events?watch=true"):
        assert berth.control(f"/v1/namespaces/default/{path}", headers=bearer(os.environ["BERTH_TOKEN"]))[0] == 403, path
        assert berth.control(f"/v1/{path}", headers=bearer(os.environ["BERTH_TOKEN"]))[0] == 403, path

    # What stays out of reach says so, and where refusals are.
    refused = asked("describe", "never", "-n", "shop", code=1)
    assert 'nothing of the name "never" among what you may see' in refused and "berth audit" in refused
    for words in (["get", "deployments"], ["get", "deployments", "-A"], ["get", "events"], ["get", "replicas", "-A"], ["get", "other"]):
        refused = asked(*words, code=1)
        assert "this needs the role" in refused and "the logs of the server" not in refused, words

    # A role that is limited to models knows them by their names.
    monkeypatch.setenv("BERTH_TOKEN", made(berth, admin, "viewer", namespaces=["shop"], models=["fraud-1"]))
    assert "fraud-1" in asked("get", "fraud-1", "-n", "shop") and "fraud-1" in asked("describe", "fraud-1", "-n", "shop")
    asked("logs", "fraud-1", "-n", "shop")
    asked("get", "fraud-2", "-n", "shop", code=1)
    assert "events need a role on the whole namespace" in asked("describe", "fraud-1", "-n", "shop")
    for kind in ("replicas", "revisions", "events"):
        asked("get", kind, "-n", "shop", code=1)

    # An empty variable is none.
    monkeypatch.setenv("BERTH_TOKEN", "")
    monkeypatch.setenv("BERTH_CONTEXT", "")
    assert "a token is needed" in asked("get", "fraud-1", "-n", "shop", code=1)


def test_a_token_is_kept_in_a_file_that_nobody_else_reads(berth, admin, monkeypatch, tmp_path):
    monkeypatch.setenv("BERTH_TOKEN", admin)
    file = tmp_path / "service.token"
    said = berth.run("token", "create", "--role", "viewer", "--out", str(file))
    secret = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and secret not in said and str(file) in said
    assert berth.control("/v1/deployments", headers=bearer(secret))[0] == 200
    tokens = berth.run("token", "list", "-o", "name")
    berth.run("token", "create", "--role", "viewer", "--out", str(file), code=1)
    assert "is there already" in berth.stderr and file.read_text().strip() == secret
    assert berth.run("token", "list", "-o", "name") == tokens, "no token was made that nobody has"


def test_a_server_that_asks_nobody_says_so_of_its_tokens(berth):
    berth.start()
    berth.run("token", "create", "--role", "viewer")
    assert "(--auth off)" in berth.stderr, "that the token counts for nothing here"
    [token] = [line for line in berth.run("token", "list", "-o", "wide").splitlines() if "viewer" in line]
    assert "unknown (--auth off)" in token
    [kept] = json.loads(berth.control("/v1/tokens")[2])["items"]
    assert kept["status"]["createdBy"] == "anybody", "as in the audit log"


CARD = {
    "schemaVersion": "3.1.0",
    "metadata": {"name": "code", "version": "0.1.0", "description": "Runs what it likes", "owner": "a@example.com", "tags": []},
    "runtime": {"framework": "custom", "framework_version": "1.0", "python_version": "3.11", "dependencies": []},
    "artifacts": {"storage_type": "s3", "model_path": "s3://models/code/v0.1.0/model.bin"},
    "code": {"repository": "https://git.example.com/code.git", "path": "src/", "ref": "v0.1.0", "entrypoint": "src.model"},
    "preprocessing": {"module": "src.preprocessing", "function": "prepare"},
    "postprocessing": {"module": "src.postprocessing", "function": "finish"},
    "interface": {"input_schema": {"type": "object"}, "output_schema": {"type": "object"}},
    "resources": {"cpu": 0.5, "memory": "512Mi"},
}


def test_code_comes_from_admins_alone(berth, admin):
    pinned = {"card": CARD, "repository": "https://git.example.com/code.git", "ref": "v0.1.0", "commit": "a" * 40, "codeCommit": "b" * 40}
    manifest = deployment("code", "add")
    manifest["spec"]["model"] = {"format": "python", "card": pinned}

    def declared(secret: str) -> tuple[int, bytes]:
        status, _, body = berth.control("/v1/apply?dryRun=true", "POST", json.dumps(manifest), bearer(secret))
        return status, body

    status, body = declared(admin)
    assert status == 200, body
    status, body = declared(made(berth, admin, "deployer"))
    assert status == 403, body
    said = json.loads(body)["error"]["message"]
    assert all(word in said for word in ("code has a model card", "spec.model.card", "the role admin", "Git registry")), said

    # Packages are built where they are installed, and a pickle is code: with an environment, both are of the declarer's choice.
    manifest["spec"]["model"] = {"format": "sklearn", "uri": "s3://models/m.joblib", "environment": {}}
    assert declared(admin)[0] == 200
    status, body = declared(made(berth, admin, "deployer"))
    said = json.loads(body)["error"]["message"]
    assert status == 403 and "spec.model.environment" in said and "the role admin" in said, said
    # A model server that an operator runs decides by itself what it does with the file.
    del manifest["spec"]["model"]["environment"]
    assert declared(made(berth, admin, "deployer"))[0] == 200


def test_revoked_and_expired_tokens_open_nothing(berth, admin):
    secret = made(berth, admin, "viewer")
    name = secret.split("_")[1]
    assert berth.control("/v1/nodes", headers=bearer(secret))[0] == 200
    listed = json.loads(berth.control("/v1/tokens", headers=bearer(admin))[2])["items"]
    one = next(token for token in listed if token["metadata"]["name"] == name)
    assert "lastUsedAt" in one["status"] and secret not in json.dumps(listed)
    assert berth.control(f"/v1/tokens/{name}", "DELETE", headers=bearer(admin))[0] == 200
    until("the revocation at the API", lambda: berth.control("/v1/nodes", headers=bearer(secret))[0] == 401)
    until("the revocation at the gateway", lambda: berth._call(berth.http, "GET", "/v2/models", headers=bearer(secret))[0] == 401)
    short = made(berth, admin, "viewer", expires=1)
    until("the token to expire", lambda: berth.control("/v1/nodes", headers=bearer(short))[0] == 401)


def test_tokens_outlive_the_server_and_are_nowhere_in_clear(berth, admin, tmp_path):
    secret = made(berth, admin, "viewer")
    assert berth.stop() == 0
    needle = secret.split("_")[2].encode()
    for file in berth.data.rglob("*"):
        if file.is_file():
            assert needle not in file.read_bytes(), file
    assert needle.decode() not in berth.logged()
    berth.start("--auth", "tokens")
    until("the token to be known again", lambda: berth.control("/v1/nodes", headers=bearer(secret))[0] == 200)
    assert (berth.data / "admin.token").read_text().strip() == admin, "no second one is made"


def test_what_is_no_token_opens_nothing(berth, admin):
    for header in ("", "Bearer", "Bearer ", "Basic YTpi", "Bearer berth_aaaaaaaaaa_" + "a" * 52, "bearer x", "Bearer " + "é" * 20):
        for address, path in ((berth.api, "/v1/nodes"), (berth.http, "/v2/models")):
            status, _, _ = berth._call(address, "GET", path, headers={"authorization": header.encode("utf-8")})
            assert status == 401, (header, address, status)


def test_a_megabyte_of_token_costs_nothing(berth, admin):
    for address, path in ((berth.api, "/v1/nodes"), (berth.http, "/v2/models")):
        try:
            status = berth._call(address, "GET", path, headers={"authorization": "Bearer " + "x" * (1 << 20)})[0]
        except OSError:
            status = 431  # It hung up before all of it was sent.
        assert status in (400, 401, 431), status
        assert berth._call(address, "GET", path, headers=bearer(admin))[0] == 200


def test_a_client_cannot_say_who_it_is(berth, admin):
    forged = {"berth-principal": json.dumps({"name": "token:x", "grants": [{"role": "admin"}]})}
    assert berth.control("/v1/nodes", headers=forged)[0] == 401
    viewer = made(berth, admin, "viewer")
    assert berth.control("/v1/tokens", headers=forged | bearer(viewer))[0] == 403


def test_eight_callers_at_once(berth, admin):
    declare(berth, admin, "one")
    secrets = [made(berth, admin, "viewer") for _ in range(8)]
    revoked = secrets[::2]

    def work(secret: str) -> list[int]:
        return [berth.control("/v1/deployments/one", headers=bearer(secret))[0] for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        assert all(set(statuses) == {200} for statuses in pool.map(work, secrets))
        ended = pool.map(lambda secret: berth.control(f"/v1/tokens/{secret.split('_')[1]}", "DELETE", headers=bearer(admin))[0], revoked)
        assert set(ended) == {200}
        for secret, statuses in zip(secrets, pool.map(work, secrets), strict=True):
            assert statuses[-1] == (401 if secret in revoked else 200)
