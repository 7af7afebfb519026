"""What people are told, over what they are told by: email with TLS and a password, Slack's form, an answer that is an error."""

from __future__ import annotations

import datetime
import email
import ipaddress
import json
import socket
import ssl
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fleet import Server
from harness.http_server import Answer, HttpServer, Request
from harness.ports import free_port
from harness.processes import BERTH
from harness.waiting import PATIENCE, until


def certificate(folder: Path, names: list[str]) -> Path:
    """A server's key and its certificate, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    made = made.not_valid_after(now + datetime.timedelta(days=1))
    alternatives = [x509.DNSName(name) for name in names] + [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = made.add_extension(x509.SubjectAlternativeName(alternatives), critical=False).sign(key, hashes.SHA256())
    place = folder / "mail.pem"
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    place.write_bytes(key.private_bytes(*plain) + made.public_bytes(serialization.Encoding.PEM))
    return place


class Mail:
    """An SMTP server that wants TLS and one user; `starttls` or TLS from the first byte."""

    def __init__(self, folder: Path, starttls: bool):
        self.host = socket.gethostname() if starttls else "localhost"
        self.port, self.users = free_port(), set()
        # By their ids: who is not sure that one arrived sends it again.
        self.letters: dict[str, tuple] = {}
        self.authority = certificate(folder, [self.host])
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.authority)
        # TLS from the first byte is unknown to the part that looks after AUTH.
        form = {"tls_context": tls, "require_starttls": True} if starttls else {"ssl_context": tls, "auth_require_tls": False}
        self.controller = Controller(
            self, hostname=socket.gethostbyname(self.host), port=self.port, ready_timeout=PATIENCE,
            authenticator=self.knows, auth_required=True, **form,
        )  # fmt: skip
        self.controller.start()

    def knows(self, server, session, envelope, mechanism, who) -> AuthResult:
        good = isinstance(who, LoginPassword) and (who.login, who.password) == (b"berth@example.com", b"p4ss")
        self.users.add(who.login.decode())
        return AuthResult(success=good)

    def about(self, words: str) -> tuple | None:
        """The letter with these words in its subject: to whom, and what."""
        return next((found for found in list(self.letters.values()) if words in found[1]["subject"]), None)

    async def handle_DATA(self, server, session, envelope) -> str:
        letter = email.message_from_bytes(envelope.content)
        self.letters[letter["message-id"]] = (envelope.rcpt_tos, letter)
        return "250 taken"


class Chat(HttpServer):
    """Takes messages; the first one it is sent it cannot take just then."""

    def __init__(self):
        self.attempts = []
        super().__init__()

    def answer(self, request: Request) -> Answer:
        self.attempts.append(json.loads(request.body))
        return Answer(503 if len(self.attempts) == 1 else 200)


@pytest.fixture
def chat():
    server = Chat()
    yield server
    server.close()


@pytest.mark.parametrize("starttls", [False, True], ids=["smtps", "starttls"])
def test_a_bad_commit_is_told_by_mail_and_chat_and_so_is_its_end(world, chat, tmp_path, starttls):
    mail = Mail(tmp_path, starttls)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "mail").write_text("p4ss\n")
    (secrets / "chat").write_text(f"{chat.url}/services/T0/B0/s3cret\n")
    model = world.model("doubler")
    model.release("1.0.0")
    scheme = "smtp" if starttls else "smtps"
    world.registry.write(
        "registry.yaml",
        {"notifications": [
            {"type": "email", "url": f"{scheme}://berth%40example.com@{mail.host}:{mail.port}", "secretRef": "mail",
             "to": ["ops@example.com", "night@example.com"]},
            {"type": "slack", "secretRef": "chat"},
        ]},
    )  # fmt: skip
    world.registry.deploy("doubler", model, "1.0.0")
    world.push("Deploy doubler")
    server = Server("worker-eu-west-1a", tmp_path / "up")
    server.spawn(
        BERTH, "up", "--name", server.name, "--data", str(tmp_path / "up/data"), "--http", server.http, "--api", server.api,
        "--source", f"git={world.registry.url}#main", "--source-interval", "1s", "--local-repositories",
        "--registry-secrets", str(secrets), "--cluster-name", "prod", "--log-format", "json",
        env={"SSL_CERT_FILE": str(mail.authority)},
    )  # fmt: skip
    try:
        until("an answer", lambda: server.ask("/v1/doubler", {"x": 4})[0] == 200)
        manifest = world.registry.read(world.registry.path("doubler"))
        manifest["model_card_ref"]["ref"] = "main"
        world.registry.write(world.registry.path("doubler"), manifest)
        bad = world.push("A branch")
        to, letter = until("a letter", lambda: mail.about("unpinned ref"))
        assert (to, mail.users) == (["ops@example.com", "night@example.com"], {"berth@example.com"})
        assert "prod" in letter["subject"], letter["subject"]
        assert bad in letter.get_payload(decode=True).decode() and letter["message-id"] and letter["date"]
        until("the chat takes it the second time", lambda: len(chat.attempts) >= 2)
        assert chat.attempts[0] == chat.attempts[1]
        assert "unpinned ref" in chat.attempts[0]["text"] and chat.attempts[0]["blocks"][0]["type"] == "header"

        manifest["model_card_ref"]["ref"] = "v1.0.0"
        world.registry.write(world.registry.path("doubler"), manifest)
        world.push("A tag again")
        until("the end of it by mail", lambda: mail.about("resolved"))
        until("the end of it by chat", lambda: any("resolved" in message["text"] for message in list(chat.attempts)))
        assert "s3cret" not in server.logged() and "p4ss" not in server.logged()
        assert server.stop() == 0
    finally:
        server.close()
        mail.controller.stop()
