"""Google Cloud and Azure on loopback: tokens, advice and scores, with requests checked as documented."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

Answer: TypeAlias = tuple[int, Any]
"""Status, and a JSON value or a text."""

TOKEN = "ya29.a-token"
PROJECT = "a-project"
SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
AZURE_ENVIRONMENT = {
    "AZURE_SUBSCRIPTION_ID": SUBSCRIPTION,
    "AZURE_TENANT_ID": "a-tenant",
    "AZURE_CLIENT_ID": "a-client",
    "AZURE_CLIENT_SECRET": "a-secret",
}


@dataclass
class CloudApis:
    """One server for the APIs, sign-in and metadata services of both clouds."""

    url: str = ""
    public_key: RSAPublicKey | None = None
    advice: Answer = (200, {})
    history: Answer = (200, {})
    scores: Answer = (200, {})
    bodies: list[Any] = field(default_factory=list)
    """Questions, oldest first."""
    tokens: int = 0
    """Tokens that were issued."""

    def respond(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to a request; 4xx to one that the documentation does not allow."""
        parts = urlsplit(url)
        if (granted := self._grant(method, parts.path, parts.query, headers, body)) is not None:
            return self._token(granted)
        if parts.path == "/computeMetadata/v1/project/project-id":
            return (200, PROJECT) if headers.get("Metadata-Flavor") == "Google" else (403, "")
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": {"code": 401, "message": "Request had invalid credentials."}}
        self.bodies.append(json.loads(body))
        return self._answer(method, parts.path, parts.query, self.bodies[-1])

    def _answer(self, method: str, path: str, query: str, body: Any) -> Answer:
        google = rf"/compute/beta/projects/{PROJECT}/regions/[a-z0-9-]+/advice/(\w+)"
        azure = (
            rf"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/[a-z0-9]+"
            r"/placementScores/spot/generate"
        )
        if method == "POST" and (found := re.fullmatch(google, path)):
            match found[1]:
                case "capacity" if is_capacity_request(body):
                    return self.advice
                case "capacityHistory" if is_history_request(body):
                    return self.history
            return 400, {"error": {"code": 400, "message": f"Invalid value in {body}."}}
        if method == "POST" and re.fullmatch(azure, path) and query == "api-version=2025-06-05":
            if is_scores_request(body):
                return self.scores
            return 400, {"error": {"code": "InvalidParameter", "message": f"in {body}"}}
        return 404, "not found"

    def _grant(
        self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> bool | None:
        """Whether a request for a token is valid; None: it is another request."""
        match method, path:
            case "POST", "/token":
                return self._is_google_grant(_form(body))
            case "POST", "/a-tenant/oauth2/v2.0/token":
                return _form(body) == {
                    "grant_type": "client_credentials",
                    "client_id": "a-client",
                    "client_secret": "a-secret",
                    "scope": "https://management.azure.com/.default",
                }
            case "GET", "/computeMetadata/v1/instance/service-accounts/default/token":
                return headers.get("Metadata-Flavor") == "Google"
            case "GET", "/metadata/identity/oauth2/token":
                wanted = "api-version=2018-02-01&resource=https://management.azure.com/"
                return headers.get("Metadata") == "true" and query == wanted
        return None

    def _is_google_grant(self, form: Mapping[str, str]) -> bool:
        if form.get("grant_type") == "refresh_token":
            names = ("client_id", "client_secret", "refresh_token")
            return [form.get(name) for name in names] == ["a-client", "a-secret", "a-refresh"]
        if form.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
            return False
        signed, _, signature = form["assertion"].rpartition(".")
        assert self.public_key is not None
        self.public_key.verify(_decoded(signature), signed.encode(), PKCS1v15(), hashes.SHA256())
        header, claims = (json.loads(_decoded(part)) for part in signed.split("."))
        return (
            header == {"alg": "RS256", "typ": "JWT", "kid": "a-key"}
            and claims["iss"] == "holdfast@a-project.iam.gserviceaccount.com"
            and claims["scope"] == "https://www.googleapis.com/auth/compute.readonly"
            and claims["aud"] == f"{self.url}/token"
            and 0 < claims["exp"] - claims["iat"] <= 3600
        )

    def _token(self, is_valid: bool) -> Answer:
        if not is_valid:
            return 400, {"error": "invalid_grant", "error_description": "no such account"}
        self.tokens += 1
        return 200, {"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Serve on a port of loopback."""
        apis = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                status, answer = apis.respond(
                    self.command, self.path, dict(self.headers), self.rfile.read(size)
                )
                content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def is_capacity_request(body: Any) -> bool:
    """Whether a body is that of `advice.capacity`."""
    match body:
        case {
            "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
            "instanceFlexibilityPolicy": {"instanceSelections": dict() as selections},
            "size": int() as size,
            "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE", **policy},
            **other,
        } if not other and size > 0:
            types = [selection.get("machineTypes") for selection in selections.values()]
            zones = policy.pop("zones", [{"zone": "zones/a"}])
            return (
                not policy
                and all(re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) for name in selections)
                and all(isinstance(names, list) and len(names) == 1 for names in types)
                and len(zones) == 1
                and all(re.fullmatch("zones/[a-z0-9-]+", zone["zone"]) for zone in zones)
            )
    return False


def is_history_request(body: Any) -> bool:
    """Whether a body is that of `advice.capacityHistory`."""
    match body:
        case {
            "instanceProperties": {
                "machineType": str(),
                "scheduling": {"provisioningModel": "SPOT"},
            },
            "types": ["PREEMPTION"],
            **other,
        }:
            place = other.pop("locationPolicy", {"location": "zones/a"})["location"]
            return not other and place.startswith("zones/")
    return False


def is_scores_request(body: Any) -> bool:
    """Whether a body is that of Azure's placement scores."""
    match body:
        case {
            "desiredLocations": [str(), *locations],
            "desiredSizes": [{"sku": str()}, *sizes],
            "desiredCount": int() as count,
            "availabilityZones": bool(),
            **other,
        }:
            return not other and count > 0 and len(locations) < 8 and len(sizes) < 5
    return False


def _form(body: bytes) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(body.decode()).items()}


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
