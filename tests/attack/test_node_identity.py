"""Nodes come by join tokens, stay by renewal, and go by revocation."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
from pathlib import Path

import pytest

from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import PATIENCE, until

LIFE = "30s"


class Cluster:
    """A controller with the CA and tokens for its API, over an etcd of one member, on loopback; and nodes that join it."""

    def __init__(self, folder: Path, ca_key: str | None = None, life: str = LIFE):
        self.folder, self.pki, self.life = folder, folder / "pki", life
        self.ca_key = ["--ca-key", ca_key] if ca_key else []
        self.etcd, self.first = Process("etcd", folder), Process("a", folder)
        self.store, self.peer, self.api, self.http, self.gossip = (f"127.0.0.1:{free_port()}" for _ in range(5))
        self.joined: list[Process] = []
        self.ports: dict[str, dict[str, str]] = {}

    def start(self) -> Cluster:
        other = f"http://127.0.0.1:{free_port()}"
        self.etcd.spawn(
            "etcd", "--name", "e", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", f"http://{self.store}",
            "--advertise-client-urls", f"http://{self.store}", "--listen-peer-urls", other, "--initial-advertise-peer-urls", other,
            "--initial-cluster", f"e={other}", "--unsafe-no-fsync", "--log-level", "warn",
        )  # fmt: skip
        self.berth("pki", "init", self.pki, *self.ca_key)
        self.berth("pki", "issue", self.pki, "a", *self.ca_key)
        self.start_first()
        file = self.folder / "a-data" / "admin.token"
        until("the admin's token", file.exists)
        self.admin = ["--api", f"http://{self.api}", "--token-file", str(file)]
        self.until_it_answers()
        return self

    def start_first(self) -> None:
        self.first.spawn(
            BERTH, "node", "--name", "a", "--store", f"etcd://{self.store}", "--pki", str(self.pki / "a"), "--data", str(self.folder / "a-data"),
            "--http", self.http, "--api", self.api, "--peer", self.peer, "--gossip", self.gossip, "--auth", "tokens",
            "--authority", str(self.pki), *self.ca_key, "--certificate-life", self.life, "--log-format", "json",
        )  # fmt: skip

    def until_it_answers(self) -> None:
        until("the control API", lambda: self.run("get", "nodes", *self.admin).returncode == 0)

    @staticmethod
    def run(*words) -> subprocess.CompletedProcess:
        return subprocess.run([BERTH, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE)

    def berth(self, *words, code: int = 0) -> str:
        done = self.run(*words)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def token(self, *words) -> Path:
        file = self.folder / f"token{len(list(self.folder.glob('token*')))}"
        self.berth("join-token", "create", "--roles", "worker", "--out", file, *words, *self.admin)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        return file

    def words(self, name: str, token: Path, *more: str) -> list[str]:
        """The command of a worker that joins. It says nothing of certificates or of other nodes."""
        ports = self.ports[name] = {port: f"127.0.0.1:{free_port()}" for port in ("api", "peer", "gossip")}
        return [
            "node", "--name", name, "--roles", "worker", "--join-token", str(token), "--data", str(self.folder / f"{name}-data"),
            *(word for port, address in ports.items() for word in (f"--{port}", address)), "--memory", "1GiB", "--log-format", "json", *more,
        ]  # fmt: skip

    def join(self, name: str, token: Path, *more: str) -> Process:
        node = Process(name, self.folder)
        node.spawn(BERTH, *self.words(name, token, *more))
        self.joined.append(node)
        until(f"{name} to be ready", lambda: self.state(name) == "Ready")
        return node

    def state(self, name: str) -> str | None:
        nodes = json.loads(self.berth("get", "nodes", "-o", "json", *self.admin))["items"]
        return next((node["status"]["state"] for node in nodes if node["metadata"]["name"] == name), None)

    def certificate(self, name: str) -> dict:
        return json.loads(self.berth("pki", "show", self.folder / f"{name}-data" / "pki" / "node.pem", "-o", "json"))[0]

    def ask(self, folder: Path, peer: str = "", path: str = "/own/figures") -> int:
        """A request at the port for other nodes with this certificate. 0: it did not come to one."""
        done = subprocess.run(
            ["curl", "-sk", "--http2", "--max-time", "10", "--cert", folder / "node.pem", "--key", folder / "node.key", "-o", "/dev/null",
             "-w", "%{http_code}", f"https://{peer or self.peer}{path}"],
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        return int(done.stdout or 0)

    def close(self) -> None:
        for process in [*self.joined, self.first, self.etcd]:
            process.close()


def told(token: Path) -> dict:
    """The parts of a join token."""
    text = token.read_text().strip().removeprefix("berth-join-1.")
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    try:
        yield made.start()
    finally:
        made.close()


def test_a_node_joins_renews_its_certificate_and_is_revoked(cluster):
    token = cluster.token()
    worker = cluster.join("gpu-1", token)
    first = cluster.certificate("gpu-1")
    assert first["roles"] == ["worker"] and first["node"] == "gpu-1"
    pki = cluster.folder / "gpu-1-data" / "pki"
    assert stat.S_IMODE(pki.stat().st_mode) == 0o700
    assert all(stat.S_IMODE((pki / file).stat().st_mode) == 0o600 for file in ("node.key", "gossip.key"))
    # The secret is nowhere but in its file.
    secret = token.read_text().strip()
    assert secret not in worker.logged() + cluster.first.logged() + cluster.berth("join-token", "list", *cluster.admin)

    # It stays beyond the end of its first certificate, over the same connections.
    until("the next certificate", lambda: cluster.certificate("gpu-1")["serial"] != first["serial"])
    assert cluster.state("gpu-1") == "Ready"
    assert '"event":"worker_lost"' not in cluster.first.logged()

    # It was stolen: the cluster takes no copy of its certificate, and cuts the connections it has.
    renewed = cluster.folder / "leaked"
    renewed.mkdir()
    for file in ("node.pem", "node.key"):
        (renewed / file).write_bytes((pki / file).read_bytes())
    assert cluster.ask(renewed) == 403, "it is taken, and a worker asks nothing here"
    cluster.berth("pki", "revoke", "gpu-1", "--reason", "stolen", *cluster.admin)
    assert cluster.ask(renewed) == 0
    until("the worker to be cut off", lambda: cluster.state("gpu-1") != "Ready")
    assert "revoked_connection_cut" in cluster.first.logged()
    assert worker.process.wait(PATIENCE) == 1 and "a refuses it" in worker.logged(), "it ends, and says why"
    listed = json.loads(cluster.berth("pki", "revocations", "-o", "json", *cluster.admin))["items"]
    assert [(item["spec"]["node"], item["spec"]["reason"]) for item in listed] == [("gpu-1", "stolen")]

    # It comes back with another token: what was issued after the revocation is taken.
    worker.close()
    for file in pki.iterdir():
        file.unlink()
    cluster.join("gpu-1", cluster.token("--node", "gpu-1"))
    audit = cluster.berth("audit", "-o", "json", *cluster.admin)
    assert "join-token:" in audit and "POST /certify/join" in audit and "POST /v1/revocations" in audit
    assert secret not in audit


def test_a_node_that_only_works_knows_revocations_and_tokens(cluster):
    cluster.join("gpu-1", cluster.token(), "--auth", "tokens")
    cluster.berth("pki", "issue", cluster.pki, "edge", "--roles", "gateway")
    stolen, worker = cluster.pki / "edge", cluster.ports["gpu-1"]
    assert cluster.ask(stolen, worker["peer"]) != 0, "a gateway may ask a worker"
    cluster.berth("pki", "revoke", "edge", "--reason", "stolen", *cluster.admin)
    until("the worker to refuse it", lambda: cluster.ask(stolen, worker["peer"]) == 0)
    admin = (cluster.folder / "a-data" / "admin.token").read_text().strip()

    def metrics(token: str) -> int:
        ask = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", f"authorization: Bearer {token}", f"http://{worker['api']}/metrics"]
        return int(subprocess.run(ask, capture_output=True, text=True, timeout=PATIENCE).stdout)

    until("the worker to know tokens", lambda: metrics(admin) == 200)
    assert metrics("berth_0000000000_none") == 401
    assert '"event":"node_role_refused"' not in cluster.first.logged()


def test_artifacts_of_functions_are_for_controllers_alone(cluster):
    for name, roles in (("edge", "gateway"), ("gpu-1", "worker"), ("b", "controller")):
        cluster.berth("pki", "issue", cluster.pki, name, "--roles", roles)
    other = f"/functions-artifacts/sha256:{'0' * 64}"
    outside = "/functions-artifacts/..%2F..%2Fadmin.token"
    until("the leader to give its listing", lambda: cluster.ask(cluster.pki / "b", path="/functions-artifacts") == 200)
    assert [cluster.ask(cluster.pki / "b", path=path) for path in (other, f"{other}/lock", f"{other}/x", outside)] == [404] * 4
    for name in ("edge", "gpu-1"):
        assert [cluster.ask(cluster.pki / name, path=path) for path in ("/functions-artifacts", other)] == [403] * 2


def test_a_join_token_is_good_for_what_it_says(cluster, tmp_path):
    one = cluster.token()
    cluster.join("gpu-1", one)
    refused = lambda name, token: cluster.berth(*cluster.words(name, token), code=1)
    assert "used 1 times" in refused("gpu-2", one)
    assert "a node a that answers" in refused("a", cluster.token())
    assert "a node gpu-1 that answers" in refused("node-gpu-1", cluster.token())
    assert "for the node b" in refused("c", cluster.token("--node", "b"))

    revoked = cluster.token()
    cluster.berth("join-token", "revoke", told(revoked)["secret"].split("_")[1], *cluster.admin)
    assert "is not known, has expired, or was revoked" in refused("d", revoked)

    # A controller of another cluster does not see the secret: its CA is another one.
    other = tmp_path / "other"
    other.mkdir()
    stranger = Cluster(other)
    try:
        stranger.start()
        elsewhere = told(cluster.token()) | {"at": [stranger.peer]}
        changed = tmp_path / "changed"
        changed.write_text(f"berth-join-1.{base64.urlsafe_b64encode(json.dumps(elsewhere).encode()).decode().rstrip('=')}")
        said = refused("e", changed)
        assert "another CA" in said, said
        assert "certify" not in stranger.berth("audit", "-o", "json", *stranger.admin)
    finally:
        stranger.close()


def test_the_ca_and_the_key_of_gossip_are_replaced_while_nodes_run(tmp_path):
    """Certificates are valid for an hour, so that nothing is renewed for its age."""
    cluster = Cluster(tmp_path, life="1h")
    try:
        cluster.start()
        cluster.join("gpu-1", cluster.token())
        cluster.berth("pki", "init", tmp_path / "next")
        folders = [cluster.pki / "a", tmp_path / "gpu-1-data" / "pki"]
        old, new = ((folder / "ca.pem").read_text() for folder in (cluster.pki, tmp_path / "next"))
        key = (tmp_path / "next" / "ca.key").read_text()

        # All at once would cut the cluster in two: it is not done, and said.
        (cluster.pki / "ca.key").rename(tmp_path / "old.key")
        replace(cluster.pki / "ca.key", key)
        replace(cluster.pki / "ca.pem", new)
        until("the refusal", lambda: "add the new one first" in cluster.first.logged())
        assert [(folder / "ca.pem").read_text() for folder in folders] == [old, old]
        replace(cluster.pki / "ca.key", (tmp_path / "old.key").read_text())

        replace(cluster.pki / "ca.pem", old + new)
        followed(cluster, folders, "ca.pem", old + new, 1)
        replace(cluster.pki / "ca.key", key)
        replace(cluster.pki / "ca.pem", new + old)
        followed(cluster, folders, "ca.pem", new + old, 2)
        for folder in folders:
            verified = subprocess.run(["openssl", "verify", "-CAfile", tmp_path / "next" / "ca.pem", folder / "node.pem"], capture_output=True, timeout=PATIENCE)
            assert b"OK" in verified.stdout, verified
        replace(cluster.pki / "ca.pem", new)
        followed(cluster, folders, "ca.pem", new, 3)

        before, after = ((folder / "gossip.key").read_text() for folder in (cluster.pki, tmp_path / "next"))
        for steps, keys in enumerate((before + after, after + before, after), 4):
            replace(cluster.pki / "gossip.key", keys)
            followed(cluster, folders, "gossip.key", keys, steps)
        assert cluster.first.runs() and cluster.joined[0].runs() and cluster.state("gpu-1") == "Ready"
        # Neither the old CA nor the old key is known to who comes now.
        cluster.join("gpu-2", cluster.token())
        assert (tmp_path / "gpu-2-data" / "pki" / "ca.pem").read_text() == new
    finally:
        cluster.close()


def test_a_controller_that_missed_a_step_of_the_ca_does_not_cut_itself_off(tmp_path):
    """It was stopped while its CA was replaced at once: it says so, and starts again with the files of before."""
    cluster = Cluster(tmp_path, life="1h")
    try:
        cluster.start()
        cluster.join("gpu-1", cluster.token())
        cluster.first.stop()
        cluster.berth("pki", "init", tmp_path / "next")
        before = {file: (cluster.pki / file).read_text() for file in ("ca.pem", "ca.key")}
        for file in before:
            replace(cluster.pki / file, (tmp_path / "next" / file).read_text())
        cluster.start_first()
        assert cluster.first.process.wait(PATIENCE) == 2
        said = cluster.first.logged()
        assert "its first CA is not in" in said and f"berth pki issue {cluster.pki} a" in said, said
        for file, text in before.items():
            replace(cluster.pki / file, text)
        cluster.start_first()
        cluster.until_it_answers()
        until("gpu-1 to be there again", lambda: cluster.state("gpu-1") == "Ready")
    finally:
        cluster.close()


def replace(file: Path, text: str) -> None:
    """In one step, as whoever rotates should."""
    beside = file.with_name(f"{file.name}.beside")
    beside.write_text(text)
    beside.chmod(0o600)
    beside.rename(file)


def followed(cluster: Cluster, folders: list[Path], file: str, text: str, steps: int) -> None:
    """Both nodes have it, and have taken it into use, as all steps before it."""
    nodes = (cluster.first, cluster.joined[0])
    until(f"{file} to be in use", lambda: all(node.logged().count("authority_followed") >= steps for node in nodes))
    assert all((folder / file).read_text() == text for folder in folders)
    assert cluster.state("gpu-1") == "Ready"


MODULE = "/usr/lib/softhsm/libsofthsm2.so"


@pytest.mark.skipif(not Path(MODULE).exists(), reason="there is no SoftHSM on this machine")
def test_the_key_of_the_ca_stays_in_an_hsm(tmp_path, monkeypatch):
    (tmp_path / "tokens").mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {tmp_path / 'tokens'}\nlog.level = ERROR\n")
    (tmp_path / "pin").write_text("1234\n")
    (tmp_path / "wrong").write_text("98765\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(tmp_path / "softhsm2.conf"))
    run = lambda *words: subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)
    run("softhsm2-util", "--init-token", "--free", "--label", "berth", "--pin", "1234", "--so-pin", "5678")
    for number, (curve, label) in enumerate([("P-256", "ca"), ("P-384", "other")]):
        key = tmp_path / f"{label}.pem"
        run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", f"ec_paramgen_curve:{curve}", "-out", key)
        run("softhsm2-util", "--import", key, "--token", "berth", "--label", label, "--id", f"a{number}", "--pin", "1234")
        key.unlink()
    uri = lambda label, pin: f"pkcs11:token=berth;object={label}?module-path={MODULE}&pin-source={pin}"
    pin = f"file:{tmp_path / 'pin'}"
    for wrong, says in [
        (uri("nothing", pin), "no such private EC key"),
        (uri("other", pin), "of another curve"),
        (uri("ca", "env:NO_PIN"), "NO_PIN, which is not set"),
        (uri("ca", f"file:{tmp_path / 'wrong'}"), "PIN"),
        (uri("ca", pin).replace("token=berth", "token=b"), "there are: berth"),
        (uri("ca", pin).replace(MODULE, "/nowhere.so"), "cannot be loaded"),
        ("file:ca.key", "it begins with pkcs11:"),
    ]:
        done = Cluster.run("pki", "init", tmp_path / "never", "--ca-key", wrong)
        assert done.returncode != 0 and says in done.stderr, (wrong, done.stderr)
        assert "98765" not in done.stderr and not (tmp_path / "never" / "ca.pem").exists()

    cluster = Cluster(tmp_path, uri("ca", pin))
    try:
        cluster.start()
        assert not (cluster.pki / "ca.key").exists()
        assert "--ca-key" in cluster.berth("pki", "issue", cluster.pki, "b", code=1), "the file is not there"
        cluster.join("gpu-1", cluster.token())
        first = cluster.certificate("gpu-1")["serial"]
        until("the next certificate", lambda: cluster.certificate("gpu-1")["serial"] != first)
        verified = run("openssl", "verify", "-CAfile", cluster.pki / "ca.pem", cluster.folder / "gpu-1-data" / "pki" / "node.pem")
        assert b"OK" in verified.stdout
    finally:
        cluster.close()


def test_a_leader_whose_certificate_is_revoked_ends(cluster):
    cluster.berth("pki", "revoke", "a", *cluster.admin)
    assert cluster.first.process.wait(PATIENCE) == 1
    assert "the certificate of this node was revoked" in cluster.first.logged()


def test_strangers_hold_no_places_of_nodes(cluster):
    """A connection that says it joins, and then nothing, or asks for something else."""
    held = [
        subprocess.Popen(
            ["openssl", "s_client", "-connect", cluster.peer, "-servername", "join.berth", "-alpn", "h2", "-quiet"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for _ in range(40)
    ]  # fmt: skip
    try:
        assert cluster.ask(cluster.pki / "a") in (200, 404)
        other = subprocess.run(
            ["curl", "-sk", "--http2", "--max-time", "10", "--connect-to", f"join.berth:443:{cluster.peer}", "-o", "/dev/null",
             "-w", "%{http_code}", "https://join.berth/relay/v1/tokens"],
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert other.stdout in ("404", "000"), other.stdout
    finally:
        for one in held:
            one.kill()
            one.wait()
