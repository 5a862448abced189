"""A service on loopback that musters placements and takes reports as the real one does: once, and in order."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from holdfast_worker.protocol.reports import MAX_BODY_BYTES

REPLACED = {
    "type": "/docs/errors#fenced",
    "title": "Another worker took over.",
    "status": 409,
    "detail": "another worker has mustered since",
}
FORGOTTEN = {"type": "/docs/errors#not-mustered", "title": "Muster first.", "status": 409}
NO_ANSWER = 0
"""Stands for a status code: the request is taken, and the connection closed."""


@dataclass
class ReportServer:
    """A service that keeps what it is told, once, and says no as often as it is made to."""

    refusals: list[int] = field(default_factory=list)
    """Status codes of the next answers, before it begins to accept."""
    is_behind_a_proxy: bool = False
    """Whether it is the proxy that refuses, in words of its own."""
    told: dict[int, list[int]] = field(default_factory=dict)
    """Numbers of the reports of each attempt, in the order in which they came."""
    roll: dict[str, int] = field(default_factory=dict)
    """The attempt of each incarnation that mustered."""
    musters: list[Any] = field(default_factory=list)
    """What was said to muster, each time."""
    replaced: set[str] = field(default_factory=set)
    """Incarnations that are fenced; `*` is all of them."""
    forgotten: set[str] = field(default_factory=set)
    """Incarnations that have to muster again."""
    leave_within_s: float | None = None
    """How long the job may stay; None: as long as it likes."""
    knows_oldest: bool = True
    """Whether it continues at the oldest report that a worker has, unlike a service of an earlier version."""
    oldest: list[int] = field(default_factory=list)
    """What workers named as the oldest report that they have, each time."""
    steps: list[int] = field(default_factory=list)
    """Steps of the points that were reported."""
    largest: int = 0
    tokens: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    heard: threading.Condition = field(default_factory=threading.Condition)

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and content of the answer to a POST."""
        code = self.refusals.pop(0) if self.refusals else 200
        is_muster = path.endswith("/muster")
        if code not in {200, NO_ANSWER}:
            found = {"type": "/docs/errors#refused", "detail": "not now, and not later"}
            return code, {"message": "default backend"} if self.is_behind_a_proxy else found
        who = body.get("incarnation")
        if self.replaced & {who, "*"}:
            return 409, REPLACED
        if who in self.forgotten and not is_muster:
            return 409, FORGOTTEN
        return code, self.muster(body) if is_muster else self.take(body)

    def muster(self, body: Any) -> dict[str, int]:
        """Number a placement."""
        with self.heard:
            self.musters.append(body)
            self.forgotten.discard(body["incarnation"])
            attempt = self.roll.setdefault(body["incarnation"], len(self.roll) + 1)
            self.heard.notify_all()
            return {"attempt": attempt, "next": len(self.told.get(attempt, [])) + 1}

    def take(self, body: Any) -> dict[str, Any]:
        """Accept a delivery."""
        with self.heard:
            kept = self.told.setdefault(body["attempt"], [])
            self.largest = max(self.largest, len(body["reports"]))
            if body.get("oldest"):
                self.oldest.append(body["oldest"])
            for report in body["reports"]:
                wanted = kept[-1] + 1 if kept else 1
                is_oldest = self.knows_oldest and report["n"] == body.get("oldest")
                if report["n"] == wanted or (is_oldest and report["n"] > wanted):
                    kept.append(report["n"])
                    if report["kind"] == "progress":
                        self.steps.append(report["body"]["step"])
            self.heard.notify_all()
            return {"next": kept[-1] + 1 if kept else 1, "leave_within_s": self.leave_within_s}

    def wait_for(self, attempt: int, count: int) -> None:
        """Return when so many reports of an attempt are here."""
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.told.get(attempt, [])) >= count, 30)

    @contextmanager
    def opened(self, port: int) -> Iterator[None]:
        """Open on a port of loopback."""
        service = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size_bytes = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(size_bytes))
                assert size_bytes <= MAX_BODY_BYTES, "nothing longer is ever taken"
                service.tokens.add(self.headers["Authorization"])
                service.paths.add(self.path)
                code, content = service.answer(self.path, body)
                if code == NO_ANSWER:
                    self.close_connection = True
                    return
                reply = json.dumps(content).encode()
                self.send_response(code)
                kind = "application/problem+json" if code == 409 else "application/json"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", port), Door)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
