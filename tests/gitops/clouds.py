"""Google Cloud Storage and Azure Blob Storage as far as a worker reads from them: who one is is verified as they do it.

Both were held against fake-gcs-server and Azurite, which want programs of Go and Node, and of which the first signs nobody in.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import json
import secrets
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from harness.http_server import Answer, HttpServer, Request, part_of


class Cloud(HttpServer):
    """Buckets that are folders. Every answer is remembered as `METHOD PATH STATUS`."""

    def __init__(self, folder: Path):
        self.root, self.answered = folder / "buckets", []
        (self.root / "models").mkdir(parents=True)
        super().__init__()

    def answer(self, request: Request) -> Answer:
        answer = self.asked(request)
        self.answered.append(f"{request.method} {request.path} {answer.status}")
        return answer

    def asked(self, request: Request) -> Answer:
        raise NotImplementedError

    def object(self, path: str, wanted: str | None) -> Answer:
        """An object, or the part of it that `Range` asks for."""
        place = self.root / unquote(path).lstrip("/")
        if not place.is_file():
            return Answer(404, {}, b"<Error><Message>there is no such object</Message></Error>")
        content = place.read_bytes()
        modified = email.utils.formatdate(place.stat().st_mtime, usegmt=True)
        return part_of(content, wanted, {"etag": f'"{hashlib.md5(content).hexdigest()}"', "last-modified": modified})


class Gcs(Cloud):
    """Objects for who shows a token that the service account has signed itself, which Google takes like one of its own."""

    WHO = "reader@models.iam.gserviceaccount.com"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @property
    def private_key(self) -> str:
        form = serialization.PrivateFormat.PKCS8
        return self.key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()

    @property
    def account(self) -> str:
        """The document of the service account, as Google hands it out; where the service is stands in it, too."""
        return json.dumps({
            "type": "service_account", "project_id": "models", "private_key_id": "1", "private_key": self.private_key,
            "client_email": self.WHO, "client_id": "1", "gcs_base_url": self.url,
        })  # fmt: skip

    def asked(self, request: Request) -> Answer:
        if not self.is_ours(request.headers.get("authorization", "").removeprefix("Bearer ")):
            return Answer(401, {}, b"<Error><Message>Invalid Credentials</Message></Error>")
        return self.object(urlsplit(request.path).path, request.headers.get("range"))

    def is_ours(self, token: str) -> bool:
        def decoded(part: str) -> bytes:
            return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

        try:
            head, claims, signature = token.split(".")
            self.key.public_key().verify(decoded(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())
        except (ValueError, InvalidSignature):
            return False
        claims = json.loads(decoded(claims))
        return claims["iss"] == claims["sub"] == self.WHO and claims["iat"] - 60 < time.time() < claims["exp"]


class Azure(Cloud):
    """Objects for requests that are signed with the key of the account (SharedKey)."""

    ACCOUNT = "acmemodels"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()

    @property
    def connection(self) -> str:
        return f"AccountName={self.ACCOUNT};AccountKey={self.key};BlobEndpoint={self.url}/{self.ACCOUNT}"

    def asked(self, request: Request) -> Answer:
        if not hmac.compare_digest(request.headers.get("authorization", ""), f"SharedKey {self.ACCOUNT}:{self.signature(request)}"):
            return Answer(403, {"x-ms-error-code": "AuthenticationFailed"}, b"<Error><Message>Authentication failed</Message></Error>")
        path = urlsplit(request.path).path.removeprefix(f"/{self.ACCOUNT}")
        answer = self.object(path, request.headers.get("x-ms-range") or request.headers.get("range"))
        return answer._replace(headers=answer.headers | {"x-ms-blob-type": "BlockBlob"})

    def signature(self, request: Request) -> str:
        """The signature by Shared Key, for version 2009-09-19 and later, as Microsoft's page on authorizing has it."""
        url, headers = urlsplit(request.path), {name.lower(): value for name, value in request.headers.items()}
        plain = [
            "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
            "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
        ]  # fmt: skip
        lines = [request.method, *("" if (name, headers.get(name)) == ("content-length", "0") else headers.get(name, "") for name in plain)]
        lines += [f"{name}:{headers[name].strip()}" for name in sorted(headers) if name.startswith("x-ms-")]
        lines.append(f"/{self.ACCOUNT}{url.path}")
        lines += [f"{name}:{','.join(sorted(values))}" for name, values in sorted(parse_qs(url.query).items())]
        digest = hmac.new(base64.b64decode(self.key), "\n".join(lines).encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()
