"""Metadata services of three clouds on loopback, with headers, tokens and status codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Answer: TypeAlias = tuple[int, dict[str, str], str]
"""Status, headers, text."""

NOT_FOUND: Answer = (404, {}, "not found")
LATEST = "/latest/meta-data/"


@dataclass
class Ec2:
    """The metadata service of AWS; without `tokens`, IMDSv1."""

    tokens: bool = True
    action_at: datetime | None = None
    """Time of the termination; None without a notice."""
    rebalance_at: datetime | None = None
    is_advice_garbled: bool = False
    valid: str = ""
    """The accepted token; clear it to expire the issued one."""
    given: int = 0

    def answer(self, method: str, path: str, headers: Any) -> Answer:
        """Response of EC2 to a request."""
        if path == "/latest/api/token":
            return self._token(method, headers)
        token = headers.get("X-aws-ec2-metadata-token")
        if self.tokens and (not token or token != self.valid):
            return 401, {}, ""
        if path == f"{LATEST}instance-id":
            return 200, {}, "i-0123456789abcdef0"
        if path == f"{LATEST}spot/instance-action" and self.action_at:
            at = f"{self.action_at:%Y-%m-%dT%H:%M:%SZ}"
            return 200, {}, json.dumps({"action": "terminate", "time": at})
        if path == f"{LATEST}events/recommendations/rebalance" and self.rebalance_at:
            advice = json.dumps({"noticeTime": f"{self.rebalance_at:%Y-%m-%dT%H:%M:%SZ}"})
            return 200, {}, "<html>" if self.is_advice_garbled else advice
        return NOT_FOUND

    def _token(self, method: str, headers: Any) -> Answer:
        if not self.tokens:
            return NOT_FOUND
        ttl = headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if method != "PUT":
            return 405, {}, ""
        if not ttl.isdecimal() or not 1 <= int(ttl) <= 21600:
            return 400, {}, ""
        self.given += 1
        self.valid = f"AQAEA{self.given}"
        return 200, {}, self.valid


@dataclass
class Gce:
    """The metadata service of GCP."""

    is_preempted: bool = False
    maintenance: str = "NONE"

    def answer(self, method: str, path: str, headers: Any) -> Answer:
        """Response of Compute Engine to a request."""
        flavor = {"Metadata-Flavor": "Google"}
        if not path.startswith("/computeMetadata/v1/"):
            return 404, flavor, ""
        if headers.get("Metadata-Flavor") != "Google" or method != "GET":
            return 403, flavor, ""
        match path.partition("?")[0].removeprefix("/computeMetadata/v1/instance/"):
            case "id":
                return 200, flavor, "4520031799277581759"
            case "preempted":
                return 200, flavor, str(self.is_preempted).upper()
            case "maintenance-event":
                return 200, flavor, self.maintenance
        return 404, flavor, ""


@dataclass
class AzureServer:
    """The metadata service of Azure."""

    name: str = "vm-3"
    events: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, method: str, path: str, headers: Any) -> Answer:
        """Response of Azure to a request."""
        if headers.get("Metadata") != "true" or method != "GET" or "api-version=" not in path:
            return 400, {}, '{"error": "Bad request"}'
        match path.partition("?")[0]:
            case "/metadata/instance":
                return 200, {}, json.dumps({"compute": {"name": self.name, "location": "westus"}})
            case "/metadata/scheduledevents":
                return 200, {}, json.dumps({"DocumentIncarnation": 1, "Events": self.events})
        return NOT_FOUND

    def schedule(self, kind: str, resource: str, at: datetime | None) -> None:
        """Add an event; without a time it has already started."""
        self.events.append(
            {
                "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": [resource],
                "EventStatus": "Scheduled" if at else "Started",
                "NotBefore": format_datetime(at, usegmt=True) if at else "",
                "EventSource": "Platform",
            }
        )


MetadataServer: TypeAlias = Ec2 | Gce | AzureServer


@contextmanager
def serve(metadata: MetadataServer) -> Iterator[str]:
    """Serve a metadata service on loopback and yield its address."""

    class Host(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, text = metadata.answer(self.command, self.path, self.headers)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
