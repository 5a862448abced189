"""The instance metadata service of the fake cloud, as its hosts see it: IMDSv2, and which spot notice each was given."""

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
class Card:
    """What one instance may know of itself."""

    id: str
    ip: str
    type: str
    zone: str
    market: str


class Metadata:
    """Answers hosts, which it tells apart by their addresses.

    Like the real one: no answer without a token, and 404 for what is not the case, such as a notice that was not given.
    """

    def __init__(self, look_up: Callable[[str], Card | None]) -> None:
        self._look_up = look_up
        self._notices: dict[str, tuple[datetime, datetime]] = {}
        self._advice: dict[str, datetime] = {}
        self._tokens: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def give_notice(self, ip: str, *, now: datetime, ends_at: datetime) -> None:
        """The instance gets a termination notice for this time."""
        with self._lock:
            self._notices[ip] = (now, ends_at)
            self._advice.setdefault(ip, now)

    def advise_rebalance(self, ip: str, *, now: datetime) -> None:
        """The instance gets a rebalance recommendation, which may have no consequence."""
        with self._lock:
            self._advice[ip] = now

    def forget(self, ip: str) -> None:
        """The instance is gone."""
        with self._lock:
            self._notices.pop(ip, None)
            self._advice.pop(ip, None)

    def new_token(self, ip: str, ttl_s: int) -> str:
        """A token for the host at this address."""
        token = secrets.token_urlsafe(40)
        with self._lock:
            self._tokens[token] = (ip, time.monotonic() + ttl_s)
        return token

    def knows(self, ip: str, token: str) -> bool:
        """Whether the host was given this token, and it is still good."""
        with self._lock:
            owner, ends_s = self._tokens.get(token, ("", 0.0))
        return owner == ip and time.monotonic() < ends_s

    def read(self, ip: str, path: str) -> str | None:
        """What the host finds at `path`; None is a 404."""
        card = self._look_up(ip)
        if card is None:
            return None
        with self._lock:
            notice, advice = self._notices.get(ip), self._advice.get(ip)
        items = {
            "instance-id": card.id,
            "instance-type": card.type,
            "instance-life-cycle": card.market,
            "local-ipv4": card.ip,
            "public-ipv4": card.ip,
            "placement/availability-zone": card.zone,
            "placement/region": card.zone[:-1],
        }
        if notice:
            items["spot/instance-action"] = _json(action="terminate", time=_seconds(notice[1]))
            items["spot/termination-time"] = _seconds(notice[1])
        if advice:
            items["events/recommendations/rebalance"] = _json(noticeTime=_seconds(advice))
        return items.get(path.rstrip("/"))


def serve(metadata: Metadata) -> ThreadingHTTPServer:
    """The service, at the address that every cloud has given it."""

    class Handler(_Handler):
        source = metadata

    server = ThreadingHTTPServer((METADATA, 80), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    source: Metadata

    def do_PUT(self) -> None:
        """Hand out a token."""
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
        """Answer who holds a token."""
        top, _, path = self.path.partition("/meta-data/")
        if not self.source.knows(self._ip, self.headers.get(_TOKEN, "")):
            self._answer(401)
        elif top != "/latest" or (text := self.source.read(self._ip, path)) is None:
            self._answer(404)
        else:
            self._answer(200, text)

    def version_string(self) -> str:
        """What the real one calls itself."""
        return "EC2ws"

    def log_message(self, *_: object) -> None:
        """Nothing: hosts ask every few seconds."""

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
