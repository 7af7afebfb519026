"""Secrets are planted, and looked for in every place that somebody else may read: processes, logs, answers, files."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import deployment
from test_access import admin, bearer, made  # noqa: F401  `admin` is a fixture

from harness.functions import BUILD, ask
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import until
from spy import Spy, below


def canary(name: str) -> str:
    return f"canary-{name}-7f3b91d2c4e8/+=a"


def forms(secret: str) -> list[bytes]:
    """A secret as it is, and as others would write it."""
    plain = secret.encode()
    return [plain, base64.b64encode(plain).rstrip(b"=")[:-1], quote(secret, safe="").encode(), json.dumps(secret)[1:-1].encode(), plain.hex().encode()]


def hits(secrets: dict[str, str], place: str, content: bytes | str) -> list[str]:
    content = content.encode() if isinstance(content, str) else content
    return [f"{name} in {place}" for name, secret in secrets.items() if any(form in content for form in forms(secret))]


def in_processes(secrets: dict[str, str], pids: list[int]) -> list[str]:
    found = []
    for pid in pids:
        for what in ("cmdline", "environ"):
            try:
                found += hits(secrets, f"/proc/{pid}/{what}", Path(f"/proc/{pid}/{what}").read_bytes())
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def in_files(secrets: dict[str, str], folder: Path, *but: str) -> list[str]:
    found = []
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and str(file.relative_to(folder)) not in but:
            found += hits(secrets, str(file), file.read_bytes())
    return found


def leaves_no_core(pid: int) -> bool:
    limits = Path(f"/proc/{pid}/limits").read_text()
    return next(line for line in limits.splitlines() if line.startswith("Max core file size")).split()[4:6] == ["0", "0"]


@pytest.fixture
def spy(tmp_path):
    server = Spy(tmp_path)
    yield server
    server.close()


def test_credentials_of_the_environment(spy):
    """Also while a model fails, raises and crashes: neither it nor anybody else sees them."""
    secrets = {"the key of S3": canary("s3"), "the password of the index": canary("index"), "a token": canary("token")}
    spy.serve(
        env={
            "AWS_ACCESS_KEY_ID": "anybody",
            "AWS_SECRET_ACCESS_KEY": secrets["the key of S3"],
            "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
            "UV_DEFAULT_INDEX": f"https://user:{quote(secrets['the password of the index'], safe='')}@127.0.0.1:1/simple",
            "BERTH_CANARY_TOKEN": secrets["a token"],
        }
    )
    missing = deployment("missing", "add")
    missing["spec"]["model"]["uri"] = "s3://bucket/model.onnx"
    spy.apply(missing)
    until("the load to fail", lambda: "could not fetch s3" in json.dumps(spy.status("missing")))
    said = [spy.post("/v2/models/missing/infer", {}, {"berth-timeout-ms": "100"})[2]]
    for code in ("raise SystemExit(3)", "import os; answer = dict(os.environ)", "x = 1 / 0", "import os; answer = os.listdir('/proc/self/fd')"):
        said.append(spy.post("/v1/spy", {"run": code})[2])
    said.append(spy.post("/v1/spy", {"run": "import os; os._exit(9)"})[2])
    until("the model to be up again", lambda: spy.post("/v1/spy", {"run": "answer = 1"})[0] == 200)
    processes = [spy.process.pid, *spy.processes()]
    assert all(leaves_no_core(pid) for pid in processes)
    found = in_processes(secrets, processes)
    for place in ("/metrics", "/v1/events", "/v1/audit", "/v1/deployments/missing", "/v1/deployments/missing/explain", "/v1/deployments/spy/log", "/v1/nodes", "/v1/secrets"):
        found += hits(secrets, place, spy.control(place)[2])
    found += [hit for answer in said for hit in hits(secrets, "an answer", answer)]
    assert spy.stop() == 0
    found += hits(secrets, "the log", spy.logged()) + in_files(secrets, spy.data)
    assert not found, found


SAYS = """\
import os

def there():
    try:
        return open("/proc/self/environ").read()
    except OSError:
        return ""

def predict(body):
    print(dict(os.environ), there(), flush=True)
    return {"here": dict(os.environ), "there": there()}
"""


@pytest.mark.timeout(600)
def test_builds_and_processes_of_functions(berth, tmp_path):
    """The log of a build, also of one that its index refuses, and the process of a function show nothing of the server's environment."""
    secrets = {"the key of S3": canary("s3"), "the password of the index": canary("index"), "a token": canary("token")}
    berth.start(
        env={
            "AWS_ACCESS_KEY_ID": "anybody",
            "AWS_SECRET_ACCESS_KEY": secrets["the key of S3"],
            "UV_DEFAULT_INDEX": f"https://user:{quote(secrets['the password of the index'], safe='')}@127.0.0.1:1/simple",
            "BERTH_CANARY_TOKEN": secrets["a token"],
        }
    )
    for name, files in {"says": {"handler.py": SAYS}, "lacks": {"handler.py": SAYS, "requirements.txt": "no-such-package==1.0\n"}}.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
        spec = {"type": "python", "sourceUri": f"file:{tmp_path / name}", "entrypoint": "handler.predict", "target": {"platform": "local"}}
        berth.apply({"apiVersion": "berth.dev/v1", "kind": "Function", "metadata": {"name": name}, "spec": spec})

    def settled(name: str, phase: str) -> bool:
        return json.loads(berth.control(f"/v1/functions/{name}")[2]).get("status", {}).get("phase") == phase

    until("the function to be deployed", lambda: settled("says", "Succeeded"), BUILD)
    until("the build to fail", lambda: settled("lacks", "Failed"), BUILD)
    status, answer = ask(berth, "says", {})
    assert status == 200 and "BERTH_FUNCTION" in answer["here"], answer
    found = hits(secrets, "an answer", json.dumps(answer)) + in_processes(secrets, [berth.process.pid, *below(berth.process.pid)])
    until("the output of the process", lambda: b"BERTH_FUNCTION" in berth.control("/v1/functions/says/log")[2])
    places = [f"/v1/functions/{name}{part}" for name in ("says", "lacks") for part in ("", "/log", "/provenance", "/sbom")]
    for place in (*places, "/v1/functions", "/v1/events", "/v1/audit", "/metrics"):
        found += hits(secrets, place, berth.control(place)[2])
    assert berth.stop() == 0
    found += hits(secrets, "the log", berth.logged()) + in_files(secrets, berth.data)
    assert not found, found


def test_tokens_and_webhooks(berth, admin, tmp_path):  # noqa: F811
    """Tokens are in nobody's hands but their holder's; the first admin's is in its file."""
    secrets = {"the admin's token": admin.split("_")[2], "a viewer's token": made(berth, admin, "viewer").split("_")[2]}
    viewer = made(berth, admin, "viewer")
    secrets["another token"] = viewer.split("_")[2]
    berth.control("/v1/tokens", headers=bearer(viewer))
    berth.control(f"/v1/nodes?token={viewer}", headers=bearer(viewer))
    said = []
    for address, path in ((berth.api, "/v1/nodes"), (berth.http, "/v2/models/x/infer")):
        for headers in (bearer(viewer), {"authorization": viewer}, {"authorization": f"Basic {viewer}"}, {"x-request-id": "x", "authorization": f"Bearer {viewer}x"}):
            said += [berth._call(address, method, path, "{}", headers)[2] for method in ("GET", "POST", "DELETE")]
    said.append(berth.control("/v1/apply", "POST", f"kind: {viewer}", bearer(viewer))[2])
    found = [hit for answer in said for hit in hits(secrets, "an answer", answer)]
    for place in ("/metrics", "/v1/events", "/v1/audit", "/v1/tokens", "/v1/nodes"):
        found += hits(secrets, place, berth.control(place, headers=bearer(admin))[2])
    found += in_processes(secrets, [berth.process.pid])
    assert leaves_no_core(berth.process.pid)
    assert berth.stop() == 0
    found += hits(secrets, "the log", berth.logged()) + in_files(secrets, berth.data, "admin.token")
    assert not found, found


def test_keys_of_tls_passwords_of_etcd_and_secrets_of_webhooks(tmp_path):
    secrets = {"the password of etcd": canary("etcd"), "the secret of the webhook": canary("webhook")}
    password, webhook = tmp_path / "password", tmp_path / "webhook"
    password.write_text(secrets["the password of etcd"])
    webhook.write_text(secrets["the secret of the webhook"])
    store, other = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    etcd, node = Process("etcd", tmp_path), Process("node", tmp_path)
    data, pki = tmp_path / "data", tmp_path / "pki"
    api = f"127.0.0.1:{free_port()}"
    try:
        etcd.spawn(
            "etcd", "--name", "e", "--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", f"http://{store}",
            "--advertise-client-urls", f"http://{store}", "--listen-peer-urls", other, "--initial-advertise-peer-urls", other,
            "--initial-cluster", f"e={other}", "--unsafe-no-fsync", "--log-level", "warn",
        )  # fmt: skip
        for command in (("init", str(pki)), ("issue", str(pki), "a")):
            made_pki = Process("pki", tmp_path)
            made_pki.spawn(BERTH, "pki", *command)
            assert made_pki.process.wait(30) == 0, made_pki.logged()
        # etcd knows no users: the password is refused, and that is told again and again.
        node.spawn(
            BERTH, "node", "--name", "a", "--store", f"etcd://{store}", "--store-user", "root", "--store-password-file", str(password),
            "--pki", str(pki / "a"), "--data", str(data), "--tls", "self", "--http", f"127.0.0.1:{free_port()}", "--api", api,
            "--peer", f"127.0.0.1:{free_port()}", "--gossip", f"127.0.0.1:{free_port()}", "--log", "debug",
            "--source", "registry=git+https://127.0.0.1:1/x.git", "--webhook-secret-file", str(webhook),
        )  # fmt: skip
        key = until("the key of TLS", lambda: (data / "tls" / "server.key").exists() and (data / "tls" / "server.key").read_text())
        secrets["the key of TLS"] = max(key.splitlines(), key=len)
        until("the store to be told of", lambda: "store_unreachable" in node.logged() or "leader_elected" in node.logged())
        assert leaves_no_core(node.process.pid)
        found = in_processes(secrets, [node.process.pid])
        assert node.stop() is not None
        found += hits(secrets, "the log", node.logged())
        found += in_files(secrets, data, *[str(Path("tls") / name) for name in os.listdir(data / "tls") if name.endswith(".key")])
        assert not found, found
    finally:
        node.close()
        etcd.close()
