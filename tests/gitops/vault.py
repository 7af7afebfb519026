"""A Vault over HTTP: AppRole, a key-value store, and an engine that makes keys of the S3-compatible server for a few seconds."""

from __future__ import annotations

import json
import secrets
import threading
import time

from harness.http_server import Answer, HttpServer, Request

# A renewal comes after a third at most. A busy machine is in time for it, and tests do not wait long for new keys.
LEASE_TTL, LEASE_MOST = 12, 24
TOKEN_TTL = 600

# Stands in every secret of a run and nowhere else on the machine.
CANARY = f"canary-{secrets.token_hex(8)}"
SECRET_ID = f"{CANARY}-secret-id"


class Vault(HttpServer):
    """Leases end with their time and with the token that they were made with; then the server knows the key no more."""

    def __init__(self, s3):
        self.s3, self.lock, self.asked = s3, threading.Lock(), []
        self.kv: dict[str, dict] = {}
        self.tokens: dict[str, float] = {}
        self.leases: dict[str, dict] = {}
        self.issued: list[tuple[str, str]] = []
        super().__init__()

    def answer(self, request: Request) -> Answer:
        path = request.path.removeprefix("/v1/")
        with self.lock:
            status, document = self.told(request.method, path, request.headers, json.loads(request.body or "{}"))
            self.asked.append((path, request.headers.get("X-Berth-Worker"), status))
        return Answer(status, {}, b"" if document is None else json.dumps(document).encode())

    def living(self) -> int:
        """The number of leases now."""
        with self.lock:
            self.expire()
            return len(self.leases)

    def count(self, path: str) -> int:
        return sum(asked == path and status < 300 for asked, _, status in list(self.asked))

    def expire(self) -> None:
        now = time.monotonic()
        self.tokens = {token: until for token, until in self.tokens.items() if until > now}
        self.leases = {
            id: lease for id, lease in self.leases.items() if lease["until"] > now and lease["token"] in self.tokens
        }
        self.s3.allow(*(lease["key"] for lease in self.leases.values()))

    def told(self, method: str, path: str, headers, body: dict) -> tuple[int, dict | None]:
        self.expire()
        now = time.monotonic()
        if (method, path) == ("POST", "auth/approle/login"):
            if (body.get("role_id"), body.get("secret_id")) != ("berth", SECRET_ID):
                return 400, {"errors": ["invalid role or secret ID"]}
            token = f"hvs.{CANARY}-token-{len(self.asked)}"
            self.tokens[token] = now + TOKEN_TTL
            return 200, {"auth": {"client_token": token, "lease_duration": TOKEN_TTL, "renewable": True}}
        token = headers.get("X-Vault-Token")
        if token not in self.tokens:
            return 403, {"errors": ["permission denied"]}
        if path == "auth/token/revoke-self":
            del self.tokens[token]
            self.expire()
            return 204, None
        if path.startswith("auth/token/"):
            self.tokens[token] = now + TOKEN_TTL
            return 200, {"auth": {"client_token": token, "lease_duration": TOKEN_TTL, "renewable": True}, "data": {}}
        lease = self.leases.get(body.get("lease_id", ""))
        if path == "sys/leases/renew":
            if lease is None:
                return 400, {"errors": ["lease not found"]}
            lease["until"] = min(now + LEASE_TTL, lease["most"])
            return 200, {"lease_id": body["lease_id"], "lease_duration": int(lease["until"] - now), "renewable": True}
        if path == "sys/leases/revoke":
            self.leases.pop(body.get("lease_id", ""), None)
            self.expire()
            return 204, None
        if method == "GET" and path.startswith("secret/data/") and path.removeprefix("secret/data/") in self.kv:
            data = self.kv[path.removeprefix("secret/data/")]
            return 200, {"data": {"data": data, "metadata": {"version": 1}}, "lease_duration": 0}
        if method == "GET" and path.startswith("aws/creds/"):
            key = (f"AKIADYNAMIC{len(self.issued)}", f"{CANARY}-dynamic-{len(self.issued)}")
            self.issued.append(key)
            id = f"{path}/{len(self.issued)}"
            self.leases[id] = {"token": token, "key": key, "until": now + LEASE_TTL, "most": now + LEASE_MOST}
            self.expire()
            data = {"access_key": key[0], "secret_key": key[1], "security_token": None, "arn": "arn:aws:iam::1:user/x"}
            return 200, {"lease_id": id, "lease_duration": LEASE_TTL, "renewable": True, "data": data}
        return 404, {"errors": []}
