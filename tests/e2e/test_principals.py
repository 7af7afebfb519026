"""Who asks: client certificates by name, tokens of an OpenID issuer, and logins that are kept. With the real binary."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from test_tls import Authority, Secured, flower

from harness.examples import EXAMPLES, IRIS
from harness.issuer import Issuer, Key
from harness.ports import free_port
from harness.processes import BERTH
from harness.server import Berth
from harness.waiting import PATIENCE, until

INFER = "/inference.GRPCInferenceService/"


class Asking(Berth):
    """A server that asks for tokens, by the rules of an access file."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.file = folder / "access.yaml"

    def start_with(self, rules: dict, *arguments: str) -> "Asking":
        self.file.write_text(json.dumps(rules))
        return self.start("--auth", "tokens", "--access-file", str(self.file), *arguments, models=EXAMPLES)

    def who(self, token: str) -> tuple[int, dict, dict]:
        status, headers, body = self.control("/v1/whoami", headers={"authorization": f"Bearer {token}"})
        return status, headers, json.loads(body)

    def refusal(self, token: str) -> str:
        status, _, answer = self.who(token)
        assert status == 401, answer
        return answer["error"]["message"]


@pytest.fixture
def asking(tmp_path):
    server = Asking(tmp_path / "server")
    (tmp_path / "server").mkdir()
    yield server
    server.close()


@pytest.fixture
def issuer():
    issuer = Issuer(one=Key("RS256"), two=Key("ES256"), three=Key("EdDSA"))
    yield issuer
    issuer.close()


def rules(issuer: Issuer, **fields) -> dict:
    roles = [
        {"claims": {"groups": "ml"}, "role": "caller", "models": ["iris"]},
        {"claims": {"/realm_access/roles": "ops", "email_verified": True}, "role": "operator"},
        {"claims": {"groups": "admins"}, "role": "admin"},
    ]
    return {"issuers": [{"url": issuer.url, "audiences": ["berth"], "roles": roles} | fields]}


def called(address: str, method: str, token: str) -> grpc.StatusCode:
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(INFER + method)(b"", metadata=[("authorization", f"Bearer {token}")], timeout=30)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_tokens_of_an_issuer(asking, issuer):
    asking.start_with(rules(issuer))
    until("the issuer's keys", lambda: asking.who(issuer.token(groups=["ml"]))[0] == 200)
    for kid, key in issuer.keys.items():
        status, _, me = asking.who(issuer.token(key, {"kid": kid}, groups=["ml", "other"]))
        assert status == 200, me
        assert me["metadata"]["name"] == "oidc:ada"
        assert me["status"]["grants"] == [{"role": "caller", "namespaces": [], "models": ["iris"]}]
        assert "expiresAt" in me["status"]
    token, stranger = issuer.token(groups=["ml"]), issuer.token(groups=["x"])
    bearer = {"authorization": f"Bearer {token}"}
    until("the model to answer", lambda: asking.post("/v2/models/iris/infer", IRIS, bearer)[0] == 200)
    assert asking.post("/v2/models/sentiment/infer", IRIS, bearer)[0] == 404, "out of reach looks like missing"
    assert asking.control("/v1/deployments", headers=bearer)[0] == 403
    assert called(asking.http, "ServerMetadata", token) == grpc.StatusCode.OK
    assert called(asking.http, "RepositoryModelLoad", token) == grpc.StatusCode.PERMISSION_DENIED
    assert called(asking.http, "ServerMetadata", issuer.token(aud="x")) == grpc.StatusCode.UNAUTHENTICATED
    status, _, answer = asking.who(stranger)
    assert status == 403 and "oidc:ada has none" in answer["error"]["message"], answer
    operator = issuer.token(realm_access={"roles": ["ops"]}, email_verified=True)
    assert asking.control("/v1/nodes", headers={"authorization": f"Bearer {operator}"})[0] == 200
    for secret in (token, stranger, operator):
        assert secret not in asking.logged() and secret.rsplit(".", 1)[1] not in asking.logged()


def test_tokens_that_are_refused(asking, issuer):
    asking.start_with(rules(issuer))
    until("the issuer's keys", lambda: asking.who(issuer.token(groups=["ml"]))[0] == 200)
    now, good = int(time.time()), issuer.token(groups=["ml"])
    assert "another audience" in asking.refusal(issuer.token(aud="other"))
    assert "another audience" in asking.refusal(issuer.token(aud=None))
    assert "expired" in asking.refusal(issuer.token(exp=now - 3600))
    assert "expiry" in asking.refusal(issuer.token(exp=None))
    assert "not valid yet" in asking.refusal(issuer.token(nbf=now + 3600))
    assert "names its holder" in asking.refusal(issuer.token(sub=None))
    header, claims, signature = good.split(".")
    _, other, _ = issuer.token(groups=["admins"]).split(".")
    for forged in (
        issuer.unsigned(groups=["admins"]),
        issuer.by_public_key(groups=["admins"]),
        issuer.token(Key("RS256"), groups=["admins"]),
        issuer.token(Key("ES256"), {"kid": "one"}, groups=["admins"]),
        issuer.token(issuer.keys["two"], {"kid": "one", "alg": "ES256"}, groups=["admins"]),
        issuer.token(None, {"crit": ["exp"]}, groups=["admins"]),
        issuer.token(iss="https://elsewhere.example"),
        f"{header}.{other}.{signature}",
        f"{header}.{claims}.{signature[:-4]}",
        f"{header}.{claims}",
        "x" * 20_000,
    ):
        status, _, answer = asking.who(forged)
        assert status == 401 and "admin" not in json.dumps(answer), (forged, answer)


def test_keys_are_rotated_and_storms_of_unknown_ones_are_damped(asking, issuer):
    asking.start_with(rules(issuer))
    until("the issuer's keys", lambda: asking.who(issuer.token(groups=["ml"]))[0] == 200)
    old = issuer.token(groups=["ml"])
    issuer.keys = {"four": Key("ES256")}
    new = issuer.token(groups=["ml"])
    status, headers, answer = asking.who(new)
    assert status == 503 and "retry-after" in headers, answer
    until("the new key", lambda: asking.who(new)[0] == 200)
    until("the old key to be gone", lambda: asking.who(old)[0] == 401)
    began, before = time.monotonic(), issuer.asked
    stranger = Key("ES256")
    with ThreadPoolExecutor(8) as storm:
        tokens = [issuer.token(stranger, {"kid": f"none-{n}"}) for n in range(300)]
        statuses = {status for status, *_ in storm.map(asking.who, tokens)}
    assert statuses <= {401, 503}
    # One fetch for each ten seconds, and the one that may have been on its way.
    assert issuer.asked - before <= 2 + (time.monotonic() - began) / 10, issuer.asked - before
    assert asking.who(new)[0] == 200


def test_an_issuer_that_is_away(asking, issuer):
    issuer.away = True
    asking.start_with(rules(issuer))
    token = issuer.token(groups=["ml"])
    status, headers, answer = asking.who(token)
    assert status == 503 and "retry-after" in headers and "not known here yet" in answer["error"]["message"], answer
    assert called(asking.http, "ServerMetadata", token) == grpc.StatusCode.UNAVAILABLE
    until("a warning", lambda: "issuer_unreadable" in asking.logged() or "keys cannot be fetched" in asking.logged())
    issuer.away = False
    until("the issuer's keys", lambda: asking.who(token)[0] == 200)
    issuer.away = True
    until("the keys to be sought in vain", lambda: asking.who(issuer.token(Key("ES256"), {"kid": "none"}))[0] == 401)
    assert asking.who(token)[0] == 200, "keys that are known go on"
    assert asking.who(issuer.token(groups=["ml"], sub="bob"))[0] == 200


def test_the_access_file_is_read_again(asking, issuer):
    asking.start_with(rules(issuer))
    admin = issuer.token(groups=["admins"])
    bearer = {"authorization": f"Bearer {admin}"}
    until("the issuer's keys", lambda: asking.who(admin)[0] == 200)

    def metric(name: str) -> float:
        lines = asking.control("/metrics", headers=bearer)[2].decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    assert (metric("berth_access_file_usable"), metric("berth_oidc_keys")) == (1, 3)
    assert metric("berth_oidc_fetches_total") >= 1
    asking.file.write_text("issuers:\n  - url: nowhere\n")
    until("a warning", lambda: "access.yaml:2" in asking.logged())
    assert metric("berth_access_file_usable") == 0 and asking.who(admin)[0] == 200, "the rules from before stay"
    asking.file.write_text(json.dumps(rules(issuer, prefix="corp", principal="email")))
    mail = issuer.token(groups=["admins"], email="ada@example.org")
    until("the new rules", lambda: asking.who(mail)[2].get("metadata", {}).get("name") == "corp:ada@example.org")
    assert asking.who(admin)[0] == 401, "without a name"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("certificates:\n  - dns: a\n    role: root\n", "access.yaml:3:"),
        ("certificates:\n  - cn: ada\n    role: admin\n", "access.yaml:2:"),
        ("issuers:\n  - {url: 'http://login.example.org', audiences: [a], roles: [{claims: {}, role: caller}]}\n", "--insecure"),
        ("- a\n", "access.yaml:1:"),
    ],
)
def test_a_bad_access_file_is_refused_at_the_start(tmp_path, text, says):
    file = tmp_path / "access.yaml"
    file.write_text(text)
    command = [BERTH, "up", "--data", str(tmp_path / "data"), "--auth", "tokens", "--access-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 4 and says in done.stderr, done.stderr
    done = subprocess.run([*command[:4], *command[6:]], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2 and "--auth tokens" in done.stderr, done.stderr


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ca")


@pytest.fixture
def secured(tmp_path, authority):
    server = Secured(tmp_path, authority)
    yield server
    server.close()


def test_certificates_have_roles_by_their_names(secured, authority, tmp_path):
    file = tmp_path / "access.yaml"
    grants = [
        {"email": "*@ops.example.org", "role": "admin"},
        {"uri": "spiffe://example.org/billing/*", "role": "caller", "models": ["iris"]},
        {"dns": "viewer.example.org", "role": "viewer"},
    ]
    file.write_text(json.dumps({"certificates": grants}))
    ops = authority.issue("ops", "email:ada@ops.example.org")
    billing = authority.issue("billing", "URI:spiffe://example.org/billing/eu")
    # The subject's name, and names of other kinds, give nothing.
    eve = authority.issue("viewer.example.org", "DNS:eve.example.org,URI:viewer.example.org")
    secured.shows = ops
    secured.secure(
        "--auth", "tokens", "--access-file", str(file), "--tls-client-ca", str(authority.pem), "--tls-clients", "optional"
    )
    until("the model to answer", lambda: secured.answers("iris"))
    assert secured.run("whoami", "-o", "name").strip() == "certificate:email:ada@ops.example.org"
    assert "admin" in secured.run("whoami")
    secured.shows = billing
    assert secured.answers("iris") and "for models iris" in secured.run("whoami")
    secured.run("get", "deployments", code=1)
    assert "certificate:URI:spiffe://example.org/billing/eu has caller" in secured.stderr, secured.stderr
    token = secured.data / "admin.token"
    # A token says more than a certificate.
    until("the admin's token", token.exists)
    assert secured.run("whoami", "-o", "name", "--token-file", str(token)).startswith("token:")
    for shows in (eve, None):
        secured.shows = shows
        secured.run("whoami", code=1)
        assert "a token is needed" in secured.stderr, secured.stderr


def test_unmodified_clients_over_tls_with_a_token(secured, authority):
    secured.secure("--auth", "tokens")
    file = secured.data / "admin.token"
    until("the admin's token", file.exists)
    admin = ["--token-file", str(file)]
    until("the model", lambda: "Available" in secured.run("wait", "deployment/iris", "--for=Available", *admin, code=None) or True)
    token = secured.run("token", "create", "--role", "caller", "--models", "iris", "-o", "name", *admin).strip()
    bearer = {"authorization": f"Bearer {token}"}
    until("the model to answer", lambda: secured.curl(
        secured.http, "/v2/models/iris/ready", "-w", "%{http_code}", "-H", f"authorization: Bearer {token}"
    ).endswith("200"))
    curled = secured.curl(
        secured.http, "/v2/models/iris/infer", "--fail", "-H", f"authorization: Bearer {token}", "-d", json.dumps(IRIS)
    )
    assert "label" in curled
    secured.curl(secured.http, "/v2/models/iris/infer", "--fail", "-d", json.dumps(IRIS), code=22)
    options = {"ca_certs": str(secured.ca)}
    with triton_http.InferenceServerClient(secured.http, ssl=True, ssl_options=options) as client:
        assert client.infer("iris", [flower(triton_http)], headers=dict(bearer)).as_numpy("label").tolist() == [0]
        with pytest.raises(Exception, match="token is needed"):
            client.infer("iris", [flower(triton_http)])
    with triton_grpc.InferenceServerClient(secured.http, ssl=True, root_certificates=str(secured.ca)) as client:
        assert client.infer("iris", [flower(triton_grpc)], headers=dict(bearer)).as_numpy("label").tolist() == [0]
        with pytest.raises(Exception, match="token is needed"):
            client.infer("iris", [flower(triton_grpc)])
    assert of_kserve(secured, token) == [[0], [0]]
    assert reflected(secured, token) == [0]


def of_kserve(server: Secured, token: str) -> list[list[int]]:
    """The answers of KServe's SDK, in a process of its own: it declares the same messages as Triton's client."""
    script = Path(__file__).parent / "kserve_client.py"
    command = [sys.executable, str(script), server.http, str(server.ca), token]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def reflected(server: Secured, token: str) -> list[int]:
    """An inference by a client that knows no message of the service before it asks: as grpcurl does it."""
    trust = grpc.ssl_channel_credentials(server.ca.read_bytes())
    with grpc.secure_channel(server.http, trust) as bare:
        health = health_pb2_grpc.HealthStub(bare)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=30).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refused:
            ProtoReflectionDescriptorDatabase(bare).get_services()
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    both = grpc.composite_channel_credentials(trust, grpc.access_token_call_credentials(token))
    with grpc.secure_channel(server.http, both) as channel:
        known = ProtoReflectionDescriptorDatabase(channel)
        services = known.get_services()
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(services), services
        method = DescriptorPool(known).FindServiceByName("inference.GRPCInferenceService").FindMethodByName("ModelInfer")
        asks, answers = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        request = asks(model_name="iris")
        tensor = request.inputs.add(name="X", datatype="FP32", shape=[1, 4])
        tensor.contents.fp32_contents.extend([5.1, 3.5, 1.4, 0.2])
        call = channel.unary_unary(f"{INFER}ModelInfer", asks.SerializeToString, answers.FromString)
        answer = call(request, timeout=60)
        at = [output.name for output in answer.outputs].index("label")
        raw = answer.raw_output_contents[at] if answer.raw_output_contents else None
        return np.frombuffer(raw, np.int64).tolist() if raw else list(answer.outputs[at].contents.int64_contents)


class Person:
    """Somebody at a shell, whose contexts are kept below a folder."""

    def __init__(self, folder: Path):
        self.config = folder / "of-a-person/config.yaml"
        gone = {name for name in os.environ if name.startswith("BERTH_")}
        self.env = {name: value for name, value in os.environ.items() if name not in gone}
        self.env |= {"BERTH_CLIENT_CONFIG": str(self.config), "NO_COLOR": "1", "COLUMNS": "160"}

    def run(self, *arguments: str, code: int = 0, stdin: str | None = None, **variables: str) -> str:
        env = self.env | variables
        done = subprocess.run([BERTH, *arguments], input=stdin, capture_output=True, text=True, env=env, timeout=PATIENCE)
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        self.stderr = done.stderr
        return done.stdout


def test_logins_are_kept(asking, tmp_path):
    asking.start_with({})
    file = asking.data / "admin.token"
    until("the admin's token", file.exists)
    admin, ada = file.read_text().strip(), Person(tmp_path)
    until("the token to be known", lambda: asking.who(admin)[0] == 200)
    api, http = f"http://{asking.api}", f"http://{asking.http}"
    ada.run("login", api, "--http", http, "--token-file", "-", "--context", "wrong", stdin="berth_nonsense", code=1)
    assert not ada.config.exists(), "what does not work is not kept"
    said = ada.run("login", api, "--token-file", "-", "--context", "prod", stdin=admin)
    assert "gateway http://127.0.0.1:8080 (assumed; --http URL names another)" in said
    said = ada.run("login", api, "--http", http, "--token-file", "-", "--context", "prod", stdin=admin)
    assert "admin" in said and admin not in said and f"gateway {http}\n" in said
    assert {path.stat().st_mode & 0o777 for path in (ada.config, ada.config.parent / "tokens/prod")} == {0o600}
    assert ada.config.parent.stat().st_mode & 0o777 == 0o700
    assert admin not in ada.config.read_text()
    assert "iris" in ada.run("get", "deployments")
    ada.run("wait", "deployment/iris", "--for=Available")
    until("the model to answer", lambda: asking.post("/v2/models/iris/infer", IRIS, {"authorization": f"Bearer {admin}"})[0] == 200)
    assert "label" in ada.run("infer", "iris", "-f", "-", stdin=json.dumps(IRIS))
    viewer = ada.run("token", "create", "--role", "viewer", "-o", "name").strip()
    ada.run("login", api, "--http", http, "--token-file", "-", "--context", "seen", "-n", "team", stdin=viewer)
    assert "viewer" in ada.run("whoami") and "admin" in ada.run("whoami", "--context", "prod")
    assert "admin" in ada.run("whoami", "--context", "prod", BERTH_API=f"http://127.0.0.1:{free_port()}"), "and so does a typed context"
    assert "admin" in ada.run("whoami", BERTH_CONTEXT="prod") and "viewer" in ada.run("whoami", "--context", "seen", BERTH_CONTEXT="prod")
    assert "admin" in ada.run("whoami", BERTH_TOKEN=admin), "a variable comes before the context"
    assert "viewer" in ada.run("whoami", "--context", "prod", "--token-file", "-", stdin=viewer, BERTH_TOKEN=admin), "a flag before a variable"
    assert ada.run("context", "list", "-o", "name").split() == ["prod", "seen"]
    ada.run("get", "nodes", "--api", api, code=1)
    assert "a token is needed" in ada.stderr, "a token does not go where another address is given"
    ada.run("get", "nodes", "--api", f"http://127.0.0.1:{free_port()}", "--context", "prod", code=1)
    assert "nothing answers" in ada.stderr
    ada.run("context", "use", "none", code=3)
    assert "there are prod, seen" in ada.stderr
    ada.run("context", "use", "prod")
    ada.run("context", "rename", "prod", "production")
    assert "admin" in ada.run("whoami") and "production" in ada.run("context", "show")
    ada.run("context", "rename", "seen", "production", code=1)
    ada.run("context", "delete", "production")
    assert not (ada.config.parent / "tokens/production").exists()
    assert "start a server" in (ada.run("get", "nodes", code=1) or ada.stderr)
    words = {"_CLAP_COMPLETE_INDEX": "3", "_CLAP_IFS": "\n", "COMPLETE": "bash"}
    assert ada.run("--", "berth", "context", "use", "s", **words).split() == ["seen"]


def test_logins_at_an_issuer(asking, issuer, tmp_path):
    """By a code for a browser elsewhere; the token is renewed when it ends, once for all who need it."""
    asking.start_with(rules(issuer))
    ada = Person(tmp_path)
    api, http = f"http://{asking.api}", f"http://{asking.http}"
    issuer.login = {"groups": ["admins"]}
    until("the issuer's keys", lambda: asking.who(issuer.token(groups=["ml"]))[0] == 200)
    login = ["login", api, "--http", http, "--oidc", issuer.url, "--context", "prod"]
    for error, says in (("access_denied", "refused at the issuer"), ("expired_token", "has expired"), ("unauthorized_client", "unauthorized_client")):
        issuer.polls = [error]
        ada.run(*login, code=1)
        assert says in ada.stderr and not ada.config.exists(), ada.stderr
    issuer.polls = ["authorization_pending"]
    said = ada.run(*login)
    assert "oidc:ada" in said and "WDJB-MJHT" in ada.stderr and f"{issuer.url}/activate?user_code=WDJB-MJHT" in ada.stderr
    assert issuer.forms[-1]["device_code"] == "of-a-device" and {"scope": "openid offline_access"}.items() <= issuer.forms[0].items()
    tokens = ada.config.parent / "tokens"
    assert {path.stat().st_mode & 0o777 for path in tokens.iterdir()} == {0o600}
    assert "refresh-" not in ada.config.read_text() + ada.run("context", "show")
    asked = len(issuer.forms)
    assert "oidc:ada" in ada.run("whoami") and len(issuer.forms) == asked, "it holds for a while"

    # It ends soon: commands at once renew it once.
    issuer.lasts = 30
    ada.run(*login)
    issuer.lasts, asked = 600, len(issuer.forms)
    with ThreadPoolExecutor(8) as pool:
        assert all("oidc:ada" in said for said in pool.map(lambda _: ada.run("whoami"), range(8)))
    assert [form["grant_type"] for form in issuer.forms[asked:]] == ["refresh_token"]
    ada.run("context", "rename", "prod", "production")

    # The issuer is away: as long as the token holds that is nobody's trouble.
    issuer.lasts = 30
    ada.run(*login)
    issuer.away = True
    assert "oidc:ada" in ada.run("whoami")
    issuer.away, issuer.refresh = False, set()
    assert "oidc:ada" in ada.run("whoami"), "a refusal, too"
    issuer.lasts = -600
    ada.run(*login, code=1)
    assert "expired" in ada.stderr or "a token is needed" in ada.stderr, ada.stderr

    # It has ended, and so has the login.
    file = tokens / ".prod.login"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"ends": 1}))
    ada.run("whoami", code=1)
    assert "has ended" in ada.stderr and "it was used before" in ada.stderr, ada.stderr
    issuer.away = True
    ada.run("whoami", code=1)
    assert "cannot renew it now" in ada.stderr or "503" in ada.stderr, ada.stderr
    issuer.away = False
    assert "oidc:ada" in ada.run("whoami", "--context", "production")
    ada.run("context", "delete", "prod", "production")
    assert list(tokens.iterdir()) == []


def test_a_login_with_the_secret_of_a_client(asking, issuer, tmp_path):
    asking.start_with(rules(issuer))
    ada, file = Person(tmp_path), tmp_path / "client-secret"
    issuer.login, issuer.secret = {"groups": ["admins"]}, "s3cret of/a client"
    file.write_text(issuer.secret + "\n")
    until("the issuer's keys", lambda: asking.who(issuer.token(groups=["ml"]))[0] == 200)
    login = ["login", f"http://{asking.api}", "--oidc", issuer.url]
    ada.run(*login, code=1)
    assert "a secret is needed" in ada.stderr
    wrong = tmp_path / "another-secret"
    wrong.write_text("canary-7f3b91d2\n")
    said = ada.run(*login, "--oidc-client-secret-file", str(wrong), code=1) + ada.stderr
    assert "canary" not in said
    assert "oidc:ada" in ada.run(*login, "--oidc-client-secret-file", str(file))
    kept = "".join(path.read_text() for path in ada.config.parent.rglob("*") if path.is_file())
    assert issuer.secret not in kept and "canary" not in kept and "client-secret" in kept
    ada.run("login", f"http://{asking.api}", "--oidc", "http://login.example.org", code=2)
    assert "https://" in ada.stderr
