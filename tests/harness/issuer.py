"""An issuer of OpenID tokens: discovery, keys that can be rotated, tokens with any claims. Signs as real ones do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from urllib.parse import parse_qsl, quote_plus

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from .http_server import Answer, HttpServer, Request


def b64(data: bytes | dict) -> str:
    if isinstance(data, dict):
        data = json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, length: int | None = None) -> str:
    return b64(value.to_bytes(length or (value.bit_length() + 7) // 8, "big"))


class Key:
    """A key pair for one way of signing."""

    def __init__(self, alg: str):
        self.alg = alg
        self.pair = {
            "RS256": lambda: rsa.generate_private_key(65537, 2048),
            "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate,
        }[alg]()

    @property
    def public_pem(self) -> bytes:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.pair.public_key().public_bytes(serialization.Encoding.PEM, form)

    def jwk(self, kid: str) -> dict:
        jwk = {"kid": kid, "use": "sig", "alg": self.alg}
        if self.alg == "RS256":
            numbers = self.pair.public_key().public_numbers()
            return jwk | {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
        if self.alg == "ES256":
            numbers = self.pair.public_key().public_numbers()
            return jwk | {"kty": "EC", "crv": "P-256", "x": number(numbers.x, 32), "y": number(numbers.y, 32)}
        raw = self.pair.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return jwk | {"kty": "OKP", "crv": "Ed25519", "x": b64(raw)}

    def sign(self, message: bytes) -> bytes:
        if self.alg == "RS256":
            return self.pair.sign(message, padding.PKCS1v15(), hashes.SHA256())
        if self.alg == "ES256":
            r, s = decode_dss_signature(self.pair.sign(message, ec.ECDSA(hashes.SHA256())))
            return r.to_bytes(32, "big") + s.to_bytes(32, "big")
        return self.pair.sign(message)


class Issuer(HttpServer):
    """Its keys by name; `away` makes it answer nothing of use; `asked` counts how often its keys were fetched.

    Devices log in (RFC 8628): `polls` are the answers to their polls, one after the other, and tokens come once there are none
    left. `lasts` and `login` are seconds and claims of the tokens that it gives. Refresh tokens hold once, as with issuers that
    look for theft; `forms` are the requests of clients, and `secret` is the one that they must know.
    """

    def __init__(self, port: int = 0, **keys: Key):
        self.keys, self.away, self.asked = keys, False, 0
        self.polls, self.lasts, self.login, self.secret = [], 600, {}, None
        self.forms, self.refresh, self.lock = [], set(), threading.Lock()
        super().__init__(port)

    def answer(self, request: Request) -> Answer:
        if self.away:
            return Answer(503)
        if request.path == "/.well-known/openid-configuration":
            endpoints = {"token_endpoint": f"{self.url}/token", "device_authorization_endpoint": f"{self.url}/device"}
            return self.told({"issuer": self.url, "jwks_uri": f"{self.url}/keys"} | endpoints)
        if request.path == "/keys":
            self.asked += 1
            return self.told({"keys": [key.jwk(kid) for kid, key in self.keys.items()]})
        if request.method == "POST" and request.path in ("/device", "/token"):
            with self.lock:
                return self.client(request.path, dict(parse_qsl(request.body.decode())), request.headers.get("authorization"))
        return Answer(404)

    def client(self, path: str, form: dict, authorization: str | None) -> Answer:
        self.forms.append(form)
        if form.get("client_id") != "berth":
            return self.told({"error": "invalid_client"}, 401)
        if self.secret and authorization != "Basic " + base64.b64encode(f"berth:{quote_plus(self.secret)}".encode()).decode():
            return self.told({"error": "invalid_client", "error_description": "a secret is needed"}, 401)
        if path == "/device":
            page = f"{self.url}/activate"
            code = {"device_code": "of-a-device", "user_code": "WDJB-MJHT", "expires_in": 600, "interval": 1}
            return self.told(code | {"verification_uri": page, "verification_uri_complete": f"{page}?user_code=WDJB-MJHT"})
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh:
                return self.told({"error": "invalid_grant", "error_description": "it was used before"}, 400)
            self.refresh.remove(form["refresh_token"])
            return self.gives()
        assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:device_code" and form["device_code"] == "of-a-device", form
        if self.polls:
            return self.told({"error": self.polls.pop(0)}, 400)
        return self.gives()

    def gives(self) -> Answer:
        refresh = f"refresh-{secrets.token_hex(16)}"
        self.refresh.add(refresh)
        token = self.token(**self.login, exp=int(time.time()) + self.lasts)
        tokens = {"access_token": f"opaque-{secrets.token_hex(16)}", "id_token": token, "refresh_token": refresh}
        return self.told(tokens | {"token_type": "Bearer", "expires_in": self.lasts})

    def told(self, document: dict, status: int = 200) -> Answer:
        return Answer(status, {"content-type": "application/json", "cache-control": "max-age=3600"}, json.dumps(document).encode())

    def claims(self, **claims) -> dict:
        now = int(time.time())
        claims = {"iss": self.url, "aud": "berth", "sub": "ada", "iat": now, "exp": now + 600} | claims
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, key: Key | None = None, header: dict | None = None, **claims) -> str:
        """A token by one of its keys, or by another that says to be one."""
        kid = next(iter(self.keys))
        key = key or self.keys[kid]
        head = {"alg": key.alg, "kid": kid, "typ": "JWT"} | (header or {})
        signed = f"{b64(head)}.{b64(self.claims(**claims))}"
        return f"{signed}.{b64(key.sign(signed.encode()))}"

    def unsigned(self, **claims) -> str:
        return f"{b64({'alg': 'none', 'kid': next(iter(self.keys))})}.{b64(self.claims(**claims))}."

    def by_public_key(self, **claims) -> str:
        """Signed with a public key as if it were a shared secret: what libraries fell for that trust `alg`."""
        kid, key = next(iter(self.keys.items()))
        signed = f"{b64({'alg': 'HS256', 'kid': kid})}.{b64(self.claims(**claims))}"
        return f"{signed}.{b64(hmac.new(key.public_pem, signed.encode(), hashlib.sha256).digest())}"
