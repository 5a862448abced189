"""The instance metadata service of the fake cloud: IMDSv2 with spot notices."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from e2e.fake_aws.paths import METADATA

LONGEST_TTL_S: Final = 21600
_TTL: Final = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN: Final = "X-aws-ec2-metadata-token"


@dataclass(frozen=True, slots=True)
class InstanceMetadata:
    """The metadata of one instance."""

    id: str
    ip: str
    type: str
    zone: str
    market: str


class Metadata:
    """Answers hosts, which are identified by their addresses.

    Like the real service, it requires a token, and responds with 404 for absent values, such as a notice that
    was not given.
    """

    def __init__(self, find_instance: Callable[[str], InstanceMetadata | None]) -> None:
        self._find_instance = find_instance
        self._notices: dict[str, tuple[datetime, datetime]] = {}
        self._advice: dict[str, datetime] = {}
        self._tokens: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def set_notice(self, ip: str, *, now: datetime, ends_at: datetime) -> None:
        """Set the termination notice of an instance."""
        with self._lock:
            self._notices[ip] = (now, ends_at)
            self._advice.setdefault(ip, now)

    def set_rebalance_recommendation(self, ip: str, *, now: datetime) -> None:
        """Set a rebalance recommendation, which need not have consequences."""
        with self._lock:
            self._advice[ip] = now

    def forget(self, ip: str) -> None:
        """Remove all data of a terminated instance."""
        with self._lock:
            self._notices.pop(ip, None)
            self._advice.pop(ip, None)

    def new_token(self, ip: str, ttl_s: int) -> str:
        """Create a token for the host with this address."""
        token = secrets.token_urlsafe(40)
        with self._lock:
            self._tokens[token] = (ip, time.monotonic() + ttl_s)
        return token

    def has_token(self, ip: str, token: str) -> bool:
        """Whether the token belongs to the host and is valid."""
        with self._lock:
            owner, ends_s = self._tokens.get(token, ("", 0.0))
        return owner == ip and time.monotonic() < ends_s

    def read(self, ip: str, path: str) -> str | None:
        """The value at `path` for the host; None is a 404."""
        instance = self._find_instance(ip)
        if instance is None:
            return None
        with self._lock:
            notice, advice = self._notices.get(ip), self._advice.get(ip)
        items = {
            "instance-id": instance.id,
            "instance-type": instance.type,
            "instance-life-cycle": instance.market,
            "local-ipv4": instance.ip,
            "public-ipv4": instance.ip,
            "placement/availability-zone": instance.zone,
            "placement/region": instance.zone[:-1],
        }
        if notice:
            items["spot/instance-action"] = _json(action="terminate", time=_seconds(notice[1]))
            items["spot/termination-time"] = _seconds(notice[1])
        if advice:
            items["events/recommendations/rebalance"] = _json(noticeTime=_seconds(advice))
        return items.get(path.rstrip("/"))


def serve(metadata: Metadata) -> ThreadingHTTPServer:
    """Serve the metadata at the address that all clouds use."""

    class Handler(_Handler):
        source = metadata

    server = ThreadingHTTPServer((METADATA, 80), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    source: Metadata

    def do_PUT(self) -> None:
        """Respond with a token."""
        ttl = self.headers.get(_TTL, "")
        if self.path != "/latest/api/token":
            self._answer(404)
        elif self.headers.get("X-Forwarded-For"):
            self._answer(403)
        elif not ttl.isdecimal() or not 1 <= int(ttl) <= LONGEST_TTL_S:
            self._answer(400)
        else:
            self._answer(200, self.source.new_token(self._ip, int(ttl)), {_TTL: ttl})

    def do_GET(self) -> None:
        """Respond to a host with a valid token."""
        top, _, path = self.path.partition("/meta-data/")
        if not self.source.has_token(self._ip, self.headers.get(_TOKEN, "")):
            self._answer(401)
        elif top != "/latest" or (text := self.source.read(self._ip, path)) is None:
            self._answer(404)
        else:
            self._answer(200, text)

    def version_string(self) -> str:
        """The name of the real service."""
        return "EC2ws"

    def log_message(self, *_: object) -> None:
        """Log nothing: hosts send requests every few seconds."""

    @property
    def _ip(self) -> str:
        return str(self.client_address[0])

    def _answer(self, code: int, text: str = "", headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _json(**items: str) -> str:
    return json.dumps(items)


def _seconds(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
