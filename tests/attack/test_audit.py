"""Who did what is in the audit log, and nobody can keep it from being written, or fill the disk with it."""

from __future__ import annotations

import json
import shutil
import stat

import grpc
from conftest import deployment
from test_access import SERVICE, admin, bearer, called, declare, made  # noqa: F401  `admin` is a fixture

from harness.waiting import until


def records(berth) -> list[dict]:
    return [json.loads(line) for line in (berth.data / "audit.log").read_text().splitlines()]


def written(berth, says: str, found) -> dict:
    """The first record of which `found` is true."""
    return until(says, lambda: next((record for record in records(berth) if found(record)), None))


def test_changes_are_recorded_with_who_and_what(berth, admin):  # noqa: F811
    assert stat.S_IMODE((berth.data / "audit.log").stat().st_mode) == 0o600
    declare(berth, admin, "one")
    id = admin.split("_")[1]
    record = written(berth, "the declaration", lambda record: record["operation"] == "POST /v1/apply")
    assert (record["principal"], record["address"], record["port"], record["action"]) == (f"token:{id}", "127.0.0.1", "api", "declare")
    assert record["resources"] == [{"kind": "ModelDeployment", "namespace": "default", "name": "one"}]
    assert record["outcome"] == {"status": 200} and len(record["requestId"]) == 16
    secret = made(berth, admin, "operator")
    token = written(berth, "the token", lambda record: record["operation"] == "POST /v1/tokens")
    assert token["resources"] == [{"kind": "Token", "name": secret.split("_")[1]}]
    mine = bearer(secret) | {"x-request-id": "mine"}
    assert berth.control("/v1/nodes/none/drain", "POST", headers=mine)[0] == 404
    failed = written(berth, "the drain", lambda record: record.get("requestId") == "mine")
    assert (failed["outcome"], failed["operation"]) == ({"status": 404, "reason": "NotFound"}, "POST /v1/nodes/{name}/drain")
    assert failed["resources"] == [{"kind": "Node", "name": "none"}]
    # Dry runs, previews and questions change nothing.
    manifest = json.dumps(deployment("two", "add"))
    for path in ("/v1/apply?dryRun=true", "/v1/plan", "/v1/validate"):
        assert berth.control(path, "POST", manifest, bearer(admin))[0] == 200
    assert berth.control("/v1/deployments/one", "DELETE", headers=bearer(admin))[0] == 200
    written(berth, "the deletion", lambda record: record["operation"] == "DELETE /v1/deployments/{name}")
    assert not [record for record in records(berth) if "two" in json.dumps(record)]
    text = (berth.data / "audit.log").read_text()
    assert secret.split("_")[2] not in text and admin.split("_")[2] not in text


def test_loads_and_management_calls_are_recorded(berth, admin):  # noqa: F811
    manifest = deployment("one", "add", replicas={"min": 0})
    assert berth.control("/v1/apply", "POST", json.dumps(manifest), bearer(admin))[0] == 200
    until("the load", lambda: berth.post("/v2/repository/models/one/load", {}, bearer(admin) | {"x-request-id": "rest"})[0] == 200)
    load = written(berth, "the load", lambda record: record.get("requestId") == "rest" and record["outcome"]["status"] == 200)
    assert (load["port"], load["operation"], load["action"], load["address"]) == ("inference", "load", "load-models", "127.0.0.1")
    assert load["resources"] == [{"kind": "Model", "namespace": "default", "name": "one"}]
    with grpc.insecure_channel(berth.http) as channel:
        message = b"\x12\x03one"  # model_name
        metadata = [("authorization", f"Bearer {admin}"), ("x-request-id", "grpc")]
        channel.unary_unary(SERVICE + "RepositoryModelUnload")(message, metadata=metadata, timeout=30)
    unload = written(berth, "the unload", lambda record: record.get("requestId") == "grpc")
    assert (unload["operation"], unload["address"], unload["resources"][0]["name"]) == ("unload", "127.0.0.1", "one")
    assert called(berth, "/mmesh.ModelMesh/registerModel", admin) == grpc.StatusCode.INVALID_ARGUMENT
    call = written(berth, "the call", lambda record: "mmesh" in record["operation"])
    assert (call["port"], call["operation"]) == ("inference", "POST /mmesh.ModelMesh/registerModel")
    assert call["outcome"]["status"] == 400


def test_refusals_are_counted_and_strangers_fill_no_disk(berth, admin):  # noqa: F811
    viewer = made(berth, admin, "viewer")
    for _ in range(300):
        assert berth.control("/v1/nodes")[0] == 401
        assert berth._call(berth.http, "POST", "/v2/models/x/infer", "{}")[0] == 401
        assert berth.control("/v1/tokens", headers=bearer(viewer))[0] == 403
        assert berth._call(berth.http, "POST", "/v2/repository/models/x/load", "{}", bearer(viewer))[0] == 403
    caller = made(berth, admin, "caller", models=["a-*"])
    for _ in range(300):
        assert berth._call(berth.http, "POST", "/v2/models/b/infer", "{}", bearer(caller))[0] == 404
    assert berth.stop() == 0
    refused = [record for record in records(berth) if record["outcome"]["status"] in (401, 403)]
    assert len(refused) <= 30, "one, and one that counts the rest, per kind and minute"
    by = {}
    for record in refused:
        key = (record["principal"], record["action"], record["outcome"]["status"])
        by[key] = by.get(key, 0) + record.get("count", 1)
    name, other = viewer.split("_")[1], caller.split("_")[1]
    assert by[("nobody", "read-fleet", 401)] >= 300 and by[("nobody", "infer", 401)] == 300
    assert by[(f"token:{name}", "manage-tokens", 403)] == 300 and by[(f"token:{name}", "load-models", 403)] == 300
    assert by[(f"token:{other}", "infer", 403)] == 300


def test_files_are_bounded(berth):
    berth.start("--audit-size", "64KiB", "--audit-keep", "2")
    # Failed changes are recorded as well: some 300 bytes each.
    for at in range(1_000):
        assert berth.control(f"/v1/deployments/none-{at:04}", "DELETE")[0] == 404
    assert berth.stop() == 0
    files = sorted(file.name for file in berth.data.glob("audit.log*"))
    assert files == ["audit.log", "audit.log.1", "audit.log.2"]
    for file in files:
        place = berth.data / file
        assert place.stat().st_size <= 64 << 10 and stat.S_IMODE(place.stat().st_mode) == 0o600
    assert "none-0999" in (berth.data / "audit.log").read_text(), "the latest is there"


def test_a_disk_that_takes_nothing(berth, tmp_path):
    place = tmp_path / "log"
    place.mkdir()
    berth.start("--audit-log", str(place / "audit.log"), "--audit-required", "--audit-size", "64KiB")

    def deleted() -> int:
        return berth.control(f"/v1/deployments/{'x' * 60}", "DELETE")[0]

    assert deleted() == 404
    shutil.rmtree(place)
    # The file that is open goes on until it is full.
    until("changes to be refused", lambda: deleted() == 503)
    status, _, body = berth.control("/v1/deployments/x", "DELETE")
    assert status == 503 and b"--audit-required" in body
    assert berth.control("/v1/deployments")[0] == 200, "questions are answered"
    assert "audit_unwritable" in berth.logged()
    place.mkdir()
    until("changes to be made again", lambda: deleted() == 404)
    assert (place / "audit.log").exists()


def test_the_command_reads_and_filters(berth, admin):  # noqa: F811
    viewer = made(berth, admin, "viewer")
    assert berth.control("/v1/tokens", headers=bearer(viewer))[0] == 403
    token = str(berth.data / "admin.token")

    def audit(*arguments: str) -> list[dict]:
        return [json.loads(line) for line in berth.run("audit", "-o", "json", "--token-file", token, *arguments).splitlines()]

    name = viewer.split("_")[1]
    assert [record["outcome"]["status"] for record in audit("--principal", f"token:{name}")] == [403]
    assert {record["operation"] for record in audit("--since", "1h")} >= {"POST /v1/tokens", "GET /v1/tokens"}
    assert berth.control("/v1/audit", headers=bearer(viewer))[0] == 403
    before = len(audit())
    berth.stop()
    berth.start("--auth", "tokens")
    until("the token to be known again", lambda: berth.control("/v1/tokens", headers=bearer(admin))[0] == 200)
    assert len(audit()) >= before, "they outlive the process"
