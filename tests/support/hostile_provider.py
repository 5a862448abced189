"""An OpenID Connect provider that answers as a test wants: with wrong claims, signatures, addresses and sizes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from holdfast.clock import SystemClock
from joserfc import jwt
from joserfc.jwk import RSAKey
from support.openid_provider import CLIENT_SECRET


def new_key(name: str) -> RSAKey:
    """A new key for signatures."""
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig", "alg": "RS256"})


@cache
def _first_key() -> RSAKey:
    # Once: a new key takes a tenth of a second.
    return new_key("first")


@dataclass
class HostileProvider:
    """A provider whose parts a test replaces."""

    issuer: str = ""
    key: RSAKey = field(default_factory=_first_key)
    keys: list[dict[str, Any]] | None = None
    """Published keys; None: that of `key`."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Fields that replace those of the description."""
    claims: dict[str, Any] = field(default_factory=dict)
    """Claims that replace those of the ID token; None removes one."""
    sign: Callable[[dict[str, Any]], str] | None = None
    user_info: dict[str, Any] | None = None
    """None: there is no such endpoint."""
    token: dict[str, Any] = field(default_factory=dict)
    """Fields that replace those of the token response; None removes one."""
    status: int = 200
    """Of the token response."""
    raw: dict[str, bytes] = field(default_factory=dict)
    """Bodies by path, sent as they are."""
    nonce: str | None = None
    sends_back: bool = False
    """Whether a browser that starts a sign-in is sent back at once, as a person who is signed in."""
    requests: list[str] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, bytes]:
        """The response at a path."""
        self.requests.append(path)
        if path in self.raw:
            return 200, self.raw[path]
        if path == "/.well-known/openid-configuration":
            return 200, json.dumps(self.description()).encode()
        if path == "/jwks":
            return 200, json.dumps(
                {"keys": self.keys or [self.key.as_dict(private=False)]}
            ).encode()
        if path == "/userinfo" and self.user_info is not None:
            return 200, json.dumps(self.user_info).encode()
        if path == "/token":
            return self.status, json.dumps(self.token_response()).encode()
        return 404, b"{}"

    def description(self) -> dict[str, Any]:
        """The description of the provider."""
        names = ("authorization", "token", "device_authorization")
        fields: dict[str, Any] = {f"{name}_endpoint": f"{self.issuer}/{name}" for name in names}
        fields |= {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/jwks"}
        if self.user_info is not None:
            fields["userinfo_endpoint"] = f"{self.issuer}/userinfo"
        return present({**fields, **self.metadata})

    def token_response(self) -> dict[str, Any]:
        """The response of the token endpoint."""
        fields = {"access_token": "access", "refresh_token": "refresh", "token_type": "Bearer"}
        return present({**fields, "id_token": self.id_token(), **self.token})

    def id_token(self) -> str:
        """The ID token."""
        now = int(SystemClock().now().timestamp())
        claims = {
            "iss": self.issuer,
            "sub": "ada",
            "aud": "holdfast",
            "iat": now,
            "exp": now + 3600,
            "nonce": self.nonce,
            "preferred_username": "ada",
            "groups": ["nlp-team"],
        }
        claims = present({**claims, **self.claims})
        if self.sign:
            return self.sign(claims)
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)


def present(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


@contextmanager
def hostile_provider() -> Iterator[HostileProvider]:
    """Run such a provider on loopback."""
    provider = HostileProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if provider.sends_back and parts.path == "/authorization":
                sent = {name: values[0] for name, values in parse_qs(parts.query).items()}
                provider.nonce = sent["nonce"]
                back = urlencode({"code": "code", "state": sent["state"]})
                self.send_response(303)
                self.send_header("Location", f"{sent['redirect_uri']}?{back}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self._send(*provider.answer(urlsplit(self.path).path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            provider.forms.append({**form, "authorization": self.headers["Authorization"] or ""})
            self._send(*provider.answer(urlsplit(self.path).path))

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.issuer = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()


__all__ = ["CLIENT_SECRET", "HostileProvider", "hostile_provider", "new_key"]
