"""TLS on both ports for clients: unmodified clients, certificates of clients, changed files, and who speaks otherwise."""

import json
import os
import socket
import ssl
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from harness.examples import EXAMPLES, IRIS
from harness.processes import BERTH
from harness.server import Berth
from harness.waiting import PATIENCE, until


class Authority:
    """A CA in a folder, by the commands of the docs."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.pem = folder, folder / "ca.pem"
        self.openssl("-days", "30", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")

    def openssl(self, *arguments: str) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *arguments]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def issue(self, name: str, sans: str) -> tuple[Path, Path]:
        self.openssl(
            "-days", "30", "-CA", "ca.pem", "-CAkey", "ca.key", "-subj", f"/CN={name}", "-addext", f"subjectAltName={sans}",
            "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", f"{name}.key", "-out", f"{name}.pem",
        )
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"


class Secured(Berth):
    """A server with TLS, whose own look at itself trusts its CA and shows a certificate where one is asked for."""

    def __init__(self, folder: Path, authority: Authority | None = None):
        super().__init__(folder)
        self.authority = authority
        self.shows: tuple[Path, Path] | None = None

    @property
    def ca(self) -> Path:
        return self.authority.pem if self.authority else self.data / "tls/ca.pem"

    def secure(self, *arguments: str) -> "Secured":
        certificate, key = self.authority.issue("server", "DNS:localhost,IP:127.0.0.1")
        return self.start("--tls-cert", str(certificate), "--tls-key", str(key), *arguments, models=EXAMPLES)

    def curl(self, address: str, path: str, *arguments: str, code: int | None = 0) -> str:
        shown = ["--cert", str(self.shows[0]), "--key", str(self.shows[1])] if self.shows else []
        command = ["curl", "-sS", "--max-time", "30", "--cacert", str(self.ca), *shown, *arguments, f"https://{address}{path}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert code is None or done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        self.stderr = done.stderr
        return done.stdout

    def alive(self) -> bool:
        assert self.runs(), f"berth ended with {self.process.returncode}:\n{self.logged()}"
        if not self.ca.exists():
            return False
        self.curl(self.http, "/v2/health/live", "--fail", code=None)
        ready = self.curl(self.api, "/readyz", "--fail", "-w", "%{http_code}", code=None)
        return ready.endswith("200")

    def run(self, *arguments: str, code: int | None = 0, stdin: str | None = None) -> str:
        """Its command line, with addresses as people write them."""
        env = os.environ | {"BERTH_API": self.api, "BERTH_HTTP": self.http, "BERTH_CA": str(self.ca), "NO_COLOR": "1"}
        if self.shows:
            env |= {"BERTH_CLIENT_CERT": str(self.shows[0]), "BERTH_CLIENT_KEY": str(self.shows[1])}
        done = subprocess.run([BERTH, *arguments], input=stdin, capture_output=True, text=True, env=env, timeout=PATIENCE + 30)
        assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        self.stderr = done.stderr
        return done.stdout

    def answers(self, name: str) -> bool:
        """True if the model answered over both protocols."""
        rest = self.run("infer", name, "-f", "-", stdin=json.dumps(IRIS), code=None)
        grpc = self.run("infer", name, "-f", "-", "--grpc", stdin=json.dumps(IRIS), code=None)
        return "label" in rest and "label" in grpc

    def handshake(self, **how) -> ssl.SSLSocket:
        host, port = self.http.split(":")
        context = ssl.create_default_context(cafile=str(self.ca))
        for name, value in how.items():
            setattr(context, name, value)
        return context.wrap_socket(socket.create_connection((host, int(port)), timeout=PATIENCE), server_hostname="localhost")


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ca")


@pytest.fixture
def secured(tmp_path, authority):
    server = Secured(tmp_path, authority)
    yield server
    server.close()


def flower(module):
    tensor = module.InferInput("X", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array([[5.1, 3.5, 1.4, 0.2]], dtype=np.float32))
    return tensor


def test_unmodified_clients(secured):
    secured.secure()
    until("the model to answer", lambda: secured.answers("iris"))
    for version in ("--http1.1", "--http2"):
        assert '"name"' in secured.curl(secured.http, "/v2/models/iris", version)
        assert "iris" in secured.curl(secured.api, "/v1/deployments", version)
    assert "iris" in secured.run("get", "deployments")
    options = {"ca_certs": str(secured.ca)}
    with triton_http.InferenceServerClient(secured.http, ssl=True, ssl_options=options) as client:
        assert client.infer("iris", [flower(triton_http)]).as_numpy("label").tolist() == [0]
    with triton_grpc.InferenceServerClient(secured.http, ssl=True, root_certificates=str(secured.ca)) as client:
        assert client.infer("iris", [flower(triton_grpc)]).as_numpy("label").tolist() == [0]
    tried = secured.curl(secured.api, "/v1/deployments/iris/try", "-H", "content-type: application/json", "-d", json.dumps(IRIS), code=None)
    assert "does not answer" not in tried, tried


def test_who_speaks_otherwise_is_told(secured, tmp_path):
    secured.secure()
    with pytest.raises(ssl.SSLError):
        secured.handshake(maximum_version=ssl.TLSVersion.TLSv1_2)
    assert secured.handshake().version() == "TLSv1.3"
    plain = subprocess.run(["curl", "-sS", f"http://{secured.api}/v1/deployments"], capture_output=True, text=True)
    assert "This port speaks TLS" in plain.stdout, plain
    secured.run("get", "deployments", "--api", f"http://{secured.api}", code=4)
    assert "https://" in secured.stderr
    other = Authority(tmp_path / "other")
    secured.run("get", "deployments", "--ca", str(other.pem), code=1)
    assert "--ca FILE" in secured.stderr, secured.stderr
    secured.run("infer", "iris", "-f", "-", "--grpc", "--ca", str(other.pem), stdin=json.dumps(IRIS), code=1)
    assert "--ca FILE" in secured.stderr, secured.stderr


def test_old_tls_by_setting(secured):
    secured.secure("--tls-min", "1.2")
    assert secured.handshake(maximum_version=ssl.TLSVersion.TLSv1_2).version() == "TLSv1.2"


def audited(secured: Secured) -> list[dict]:
    """What is in the audit log. Answers do not wait for it."""
    return [json.loads(line) for line in (secured.data / "audit.log").read_text().splitlines()]


def asked_at(secured: Secured) -> set[str]:
    return {record["port"] for record in audited(secured)}


@pytest.mark.parametrize("how", ["optional", "required"])
def test_certificates_of_clients(secured, authority, tmp_path, how):
    ada = secured.shows = authority.issue("ada", "DNS:ada.example.org")
    secured.secure("--tls-client-ca", str(authority.pem), "--tls-clients", how)
    until("the model to answer", lambda: secured.answers("iris"))
    options = {"ca_certs": str(secured.ca), "certfile": str(ada[0]), "keyfile": str(ada[1])}
    with triton_http.InferenceServerClient(secured.http, ssl=True, ssl_options=options) as client:
        assert client.is_model_ready("iris")
    grpc = {"root_certificates": str(secured.ca), "certificate_chain": str(ada[0]), "private_key": str(ada[1])}
    with triton_grpc.InferenceServerClient(secured.http, ssl=True, **grpc) as client:
        assert client.is_model_ready("iris")
    # Nobody is asked for a token; the audit log knows the certificate.
    assert "NotFound" in secured.curl(secured.api, "/v1/deployments/nothing", "-X", "DELETE")
    assert "not_found" in secured.curl(secured.http, "/v2/repository/models/nothing/load", "-X", "POST")
    until("the audit log", lambda: {"api", "inference"} <= asked_at(secured))
    records = audited(secured)
    asked = {(record["port"], record["principal"]) for record in records if record["port"] in ("api", "inference")}
    assert asked == {("api", "certificate:DNS:ada.example.org"), ("inference", "certificate:DNS:ada.example.org")}, records
    secured.run("token", "create", "--role", "viewer")
    assert "certificate:DNS:ada.example.org" in secured.run("token", "list", "-o", "wide")
    secured.shows = Authority(tmp_path / "others").issue("eve", "DNS:ada.example.org")
    secured.run("get", "deployments", code=1)
    assert "--client-cert" in secured.stderr, secured.stderr
    secured.shows = None
    secured.run("get", "deployments", code=0 if how == "optional" else 1)
    assert how == "optional" or "--client-cert" in secured.stderr, secured.stderr


def test_changed_files_are_used_while_requests_run(secured, authority):
    secured.secure()
    until("the model to answer", lambda: secured.answers("iris"))

    def serial() -> bytes:
        with secured.handshake() as connection:
            return connection.getpeercert(binary_form=True)

    options, before = {"ca_certs": str(secured.ca)}, serial()
    with triton_http.InferenceServerClient(secured.http, ssl=True, ssl_options=options) as client:
        authority.issue("server", "DNS:localhost,IP:127.0.0.1")

        def renewed() -> bool:
            assert client.infer("iris", [flower(triton_http)]).as_numpy("label").tolist() == [0]
            return serial() != before

        until("the new certificate", renewed)
        (authority.folder / "server.key").write_text("no key")
        until("a warning", lambda: "tls_unusable" in secured.logged())
        assert client.infer("iris", [flower(triton_http)]).as_numpy("label").tolist() == [0]
    assert serial() != before, "the last good files serve"


def test_who_does_not_shake_hands_is_closed(secured):
    secured.secure()
    for address in (secured.http, secured.api):
        host, port = address.split(":")
        for said in (b"", b"\x16\x03\x01"):
            with socket.create_connection((host, int(port)), timeout=PATIENCE) as stranger:
                stranger.sendall(said)
                while stranger.recv(4096):
                    pass


def test_the_first_day(tmp_path):
    server = Secured(tmp_path)
    try:
        server.start("--tls", "self", models=EXAMPLES)
        assert f"--ca {server.ca}" in server.logged() or '"event":"started"' in server.logged()
        assert (server.data / "tls/server.key").stat().st_mode & 0o777 == 0o600
        assert "iris" in server.run("get", "deployments")
        first = server.ca.read_bytes()
        server.stop()
        server.start("--tls", "self", models=EXAMPLES)
        assert server.ca.read_bytes() == first, "clients need not be told again"
    finally:
        server.close()
