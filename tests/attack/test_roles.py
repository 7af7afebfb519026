"""Every route and every role, over REST and gRPC, at both ports, at the node that leads and at one that relays.

roles.json (control API, actions) and inference.json (inference port) are made from the tables in the code, so that a new route, method or
action is here by itself.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import grpc
import pytest
from cluster import Cluster
from conftest import deployment

from harness.waiting import until

ROOT = Path(__file__).parents[2]
TABLE = json.loads((Path(__file__).parent / "roles.json").read_text())
INFERENCE = json.loads((Path(__file__).parent / "inference.json").read_text())
ROLES = ["viewer", "caller", "deployer", "operator", "admin"]

# What names in paths stand for. There is no such thing, so that nothing comes of it where it is allowed.
FILLED = {"{name}": "nothing", "{id}": "nothing", "{namespace}": "nowhere", "{file}": "app.js", "{method}": "registerModel"}
FILLED |= {"{model}": "nothing", "{version}": "1", "{region}": "nothing", "{rest}": "status"}

# Paths of ModelMesh's calls, which are answered at both ports.
MANAGEMENT = "/mmesh.ModelMesh/"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture(scope="module")
def secrets(cluster) -> dict:
    made = {role: cluster.token(role) for role in ROLES}
    for node in cluster.nodes:
        for role, secret in made.items():
            until(f"{node.name} to know the {role}", lambda node=node, secret=secret: node.ask(node.http, "GET", "/v2", headers=cluster.bearer(secret))[0] == 200)
    return made


def allowed(action: str) -> set | None:
    """The roles that may; None: everybody may."""
    roles = TABLE["actions"][action]
    return None if roles is None else set(roles)


def filled(pattern: str) -> str:
    for name, value in FILLED.items():
        pattern = pattern.replace(name, value)
    return pattern


def body_of(method: str, path: str) -> str | None:
    if method in ("GET", "DELETE"):
        return None
    return json.dumps(deployment("nothing", "add", replicas=0)) if path in ("/v1/plan", "/v1/validate") else "{}"


def methods(proto: str, service: str) -> set[str]:
    text = (ROOT / "crates/wire/proto" / proto).read_text()
    return set(re.findall(r"rpc\s+(\w+)", text.split(f"service {service}")[1].split("\n}")[0]))


def test_nothing_is_left_out(cluster):
    status, _, body = cluster.leader.control("/openapi.json", headers=cluster.bearer())
    assert status == 200
    documented = {(method.upper(), path) for path, item in json.loads(body)["paths"].items() for method in item}
    assert documented <= {(method, pattern) for method, pattern, _ in TABLE["control"]}
    status, _, body = cluster.leader.ask(cluster.leader.http, "GET", "/openapi.json", headers=cluster.bearer())
    assert status == 200
    documented = {(method.upper(), path) for path, item in json.loads(body)["paths"].items() for method in item}
    assert documented <= {(method, pattern) for method, pattern, _ in INFERENCE["rest"]}
    called = {path for path, *_ in INFERENCE["grpc"]}
    for proto, service in (("inference", "inference.GRPCInferenceService"), ("model-mesh", "mmesh.ModelMesh")):
        for method in methods(f"{proto}.proto", service.split(".")[-1]):
            assert f"/{service}/{method}" in called, "a gRPC method without an action"
    tested = {action for *_, action in [*TABLE["control"], *INFERENCE["rest"]]} | {action for _, action, _ in INFERENCE["grpc"]}
    # It is asked for in the midst of a declaration: test_access.py.
    assert set(TABLE["actions"]) - tested == {"declare-code"}


@pytest.mark.parametrize("role", [None, *ROLES])
@pytest.mark.parametrize("which", ["leader", "follower"])
def test_rest(cluster, secrets, which, role):
    node = getattr(cluster, which)
    headers = cluster.bearer(secrets[role]) if role else {}
    routes = [(node.api, method, filled(pattern), action) for method, pattern, action in TABLE["control"]]
    routes += [(node.http, method, filled(pattern), action) for method, pattern, action in INFERENCE["rest"]]
    wrong = []
    for address, method, path, action in routes:
        status, told, body = node.ask(address, method, path, body_of(method, path), headers | {"x-request-id": "role-test"})
        roles = allowed(action)
        if roles is None or role in roles:
            good = status not in (401, 403)
        else:
            good = status == (403 if role else 401)
        if not good or (status == 401 and not told["www-authenticate"].startswith("Bearer")) or told.get("x-request-id") != "role-test":
            wrong.append((method, path, action, status, body[:200]))
    assert not wrong, wrong


@pytest.mark.parametrize("role", [None, *ROLES])
@pytest.mark.parametrize("which", ["leader", "follower"])
def test_grpc(cluster, secrets, which, role):
    node = getattr(cluster, which)
    calls = [(node.http, *call) for call in INFERENCE["grpc"]]
    calls += [(node.api, *call) for call in INFERENCE["grpc"] if call[0].startswith(MANAGEMENT)]
    wrong = []
    for address, path, action, streams in calls:
        code, roles = called(address, path, secrets.get(role), streams), allowed(action)
        if roles is None or role in roles:
            good = code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        else:
            good = code == (grpc.StatusCode.PERMISSION_DENIED if role else grpc.StatusCode.UNAUTHENTICATED)
        if not good:
            wrong.append((address, path, action, code))
    assert not wrong, wrong


def test_only_operators_change_settings_of_the_log(cluster, secrets):
    node, wrong = cluster.leader, []
    for level in (1, 0):
        for role in ["admin" if level else "operator", *ROLES]:
            body, headers = json.dumps({"log_verbose_level": level}), cluster.bearer(secrets[role])
            status, _, answer = node.ask(node.http, "POST", "/v2/logging", body, headers)
            # Whoever changes nothing needs no right to.
            if (status, json.loads(answer).get("log_verbose_level")) != (200, level):
                wrong.append((role, level, status, answer))
        body = json.dumps({"log_verbose_level": 2})
        for role in ("viewer", "caller", "deployer"):
            status, _, answer = node.ask(node.http, "POST", "/v2/logging", body, cluster.bearer(secrets[role]))
            if status != 403:
                wrong.append((role, 2, status, answer))
    assert not wrong, wrong


def called(address: str, path: str, secret: str | None, streams: bool) -> grpc.StatusCode:
    """The status of a call; of a stream, whose first message may be followed by no end, that of its beginning."""
    with grpc.insecure_channel(address) as channel:
        metadata = [("authorization", f"Bearer {secret}")] if secret else []
        try:
            if streams:
                call = channel.stream_stream(path)(iter([b""]), metadata=metadata, timeout=30)
                next(call, None)
                call.cancel()
            else:
                channel.unary_unary(path)(b"", metadata=metadata, timeout=30)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_what_a_node_relayed_is_recorded_where_it_was_done(cluster, secrets):
    """One record, at the leader, with the principal, the address and the id that it had at the other node."""
    headers = cluster.bearer(secrets["operator"]) | {"x-request-id": "relayed"}
    status, told, _ = cluster.follower.control("/v1/nodes/nothing/drain", "POST", headers=headers)
    assert (status, told["x-request-id"]) == (404, "relayed")

    def found() -> list:
        status, _, body = cluster.follower.control("/v1/audit?limit=1000", headers=cluster.bearer())
        assert status == 200
        return [record for record in json.loads(body)["items"] if record.get("requestId") == "relayed"]

    until("the record", found)
    [record] = found()
    name = secrets["operator"].split("_")[1]
    assert (record["node"], record["principal"], record["address"]) == (cluster.leader.name, f"token:{name}", "127.0.0.1")
    status, _, body = cluster.follower.control("/v1/audit?limit=1000", headers=cluster.bearer())
    assert {record["node"] for record in json.loads(body)["items"]} >= {cluster.leader.name, cluster.follower.name}

    def joined() -> bool:
        items = json.loads(cluster.follower.control("/v1/audit?limit=1000", headers=cluster.bearer())[2])["items"]
        return {record["principal"] for record in items if record["action"] == "join"} >= others

    # The leader's own worker joins nobody.
    others = {"node:a", "node:b", "node:c"} - {f"node:{cluster.leader.name}"}
    until("every other node to have joined", joined)
