"""Google Cloud Storage and Azure Blob Storage as far as a worker reads from them: who one is is verified as they do it.

Both were held against fake-gcs-server and Azurite, which want programs of Go and Node, and of which the first signs nobody in.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.server
import json
import re
import secrets
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa


class Cloud:
    """Buckets that are folders. Every answer is remembered as `METHOD PATH STATUS`."""

    def __init__(self, folder: Path):
        self.root, self.answered = folder / "buckets", []
        (self.root / "models").mkdir(parents=True)
        cloud = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, headers, content = cloud.answer(self, body)
                cloud.answered.append(f"{self.command} {self.path} {status}")
                self.send_response(status)
                for name, value in (headers | {"content-length": str(len(content))}).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_HEAD = do_POST = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def object(self, path: str, wanted: str | None) -> tuple[int, dict, bytes]:
        """An object, or the part of it that `Range` asks for."""
        place = self.root / unquote(path).lstrip("/")
        if not place.is_file():
            return 404, {}, b"<Error><Message>there is no such object</Message></Error>"
        content = place.read_bytes()
        about = {
            "etag": f'"{hashlib.md5(content).hexdigest()}"',
            "last-modified": email.utils.formatdate(place.stat().st_mtime, usegmt=True),
            "accept-ranges": "bytes",
        }
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
        if not part:
            return 200, about, content
        begin, end = int(part[1]), min(int(part[2] or len(content) - 1), len(content) - 1)
        return 206, about | {"content-range": f"bytes {begin}-{end}/{len(content)}"}, content[begin : end + 1]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


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

    def answer(self, request, body: bytes) -> tuple[int, dict, bytes]:
        if not self.is_ours(request.headers.get("authorization", "").removeprefix("Bearer ")):
            return 401, {}, b"<Error><Message>Invalid Credentials</Message></Error>"
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

    def answer(self, request, body: bytes) -> tuple[int, dict, bytes]:
        if not hmac.compare_digest(request.headers.get("authorization", ""), f"SharedKey {self.ACCOUNT}:{self.signature(request)}"):
            return 403, {"x-ms-error-code": "AuthenticationFailed"}, b"<Error><Message>Authentication failed</Message></Error>"
        path = urlsplit(request.path).path.removeprefix(f"/{self.ACCOUNT}")
        status, about, content = self.object(path, request.headers.get("x-ms-range") or request.headers.get("range"))
        return status, about | {"x-ms-blob-type": "BlockBlob"}, content

    def signature(self, request) -> str:
        """What Microsoft's page on authorizing with Shared Key says of version 2009-09-19 and later."""
        url, headers = urlsplit(request.path), {name.lower(): value for name, value in request.headers.items()}
        plain = [
            "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
            "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
        ]  # fmt: skip
        lines = [request.command, *("" if (name, headers.get(name)) == ("content-length", "0") else headers.get(name, "") for name in plain)]
        lines += [f"{name}:{headers[name].strip()}" for name in sorted(headers) if name.startswith("x-ms-")]
        lines.append(f"/{self.ACCOUNT}{url.path}")
        lines += [f"{name}:{','.join(sorted(values))}" for name, values in sorted(parse_qs(url.query).items())]
        digest = hmac.new(base64.b64decode(self.key), "\n".join(lines).encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()
