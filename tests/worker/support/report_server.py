"""A fake service that registers placements and accepts reports like the real one."""

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
"""In place of a status code: the request is processed, and the connection closed."""


@dataclass
class ReportServer:
    """A service that stores each report once, and refuses requests on demand."""

    refusals: list[int] = field(default_factory=list)
    """Status codes of the next responses, before the service accepts requests."""
    is_behind_a_proxy: bool = False
    """Whether a proxy sends the refusals, with its own body."""
    received: dict[int, list[int]] = field(default_factory=dict)
    """Numbers of the reports of each attempt, in order of arrival."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Attempt number of each registered incarnation."""
    registrations: list[Any] = field(default_factory=list)
    """Bodies of all registration requests."""
    replaced: set[str] = field(default_factory=set)
    """Incarnations and groups of nodes that are fenced; `*` for all."""
    forgotten: set[str] = field(default_factory=set)
    """Incarnations that have to register again."""
    leave_within_s: float | None = None
    """Time that the job gets to exit; None for no exit request."""
    stop: str | None = None
    """What becomes of the job, if it stops."""
    remaining: dict[str, float] | None = None
    """Seconds until the expected end of the job, for deliveries that ask for it."""
    drills: list[dict[str, Any]] = field(default_factory=list)
    """Requests to end nodes, which each response repeats."""
    knows_oldest: bool = True
    """Whether a worker's oldest report is accepted as the next one; False for older services."""
    oldest: list[int] = field(default_factory=list)
    """Numbers of the oldest report in all deliveries."""
    steps: list[int] = field(default_factory=list)
    """Steps of the reported points."""
    largest: int = 0
    leaders: list[dict[str, Any]] = field(default_factory=list)
    """Each node 0 of a run with several groups of nodes, in the order of registration."""
    arrived: dict[int, list[str]] = field(default_factory=dict)
    """Incarnations of each node of such a run, in order."""
    sent: dict[tuple[str, int], list[tuple[str, int]]] = field(default_factory=dict)
    """Incarnations of each node that were sent to a leader, with the number of leaders before, in order."""
    tokens: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def respond(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and body of the response to a POST."""
        if "/commands/" in path:  # As a service that runs none.
            return 404, {"type": "/docs/errors#not-found", "detail": "there is no such route"}
        code = self.refusals.pop(0) if self.refusals else 200
        is_registration = path.endswith("/muster")
        if code not in {200, NO_ANSWER}:
            found = {"type": "/docs/errors#refused", "detail": "not now, and not later"}
            return code, {"message": "default backend"} if self.is_behind_a_proxy else found
        if path.endswith("/rendezvous"):
            return self.meet(body)
        who = body.get("incarnation")
        if self.replaced & {who, "*"}:
            return 409, REPLACED
        if who in self.forgotten and not is_registration:
            return 409, FORGOTTEN
        return code, self.register(body) if is_registration else self.accept(body)

    def register(self, body: Any) -> dict[str, int]:
        """Register a placement and return its attempt number."""
        with self.changed:
            self.registrations.append(body)
            self.forgotten.discard(body["incarnation"])
            attempt = self.attempts.setdefault(body["incarnation"], len(self.attempts) + 1)
            self.changed.notify_all()
            return {"attempt": attempt, "next": len(self.received.get(attempt, [])) + 1}

    def meet(self, body: Any) -> tuple[int, dict[str, Any]]:
        """Register node 0 of a run with several groups of nodes, or return it to another node."""
        with self.changed:
            node, name = body["node"], body["incarnation"]
            arrived = self.arrived.setdefault(node, [])
            if name not in arrived:
                arrived.append(name)
                if node == 0:
                    fields = ("group", "incarnation", "addresses", "port")
                    self.leaders.append({field: body[field] for field in fields})
            if arrived[-1] != name or self.replaced & {body["group"], "*"}:
                return 409, REPLACED
            if node == 0 or not self.leaders:
                return 200, {"leader": self.leaders[-1] if self.leaders else None, "start": 0}
            leader = self.leaders[-1]
            sent = self.sent.setdefault((leader["incarnation"], node), [])
            if (name, body["joined"]) not in sent:
                sent.append((name, body["joined"]))
            return 200, {"leader": leader, "start": sent.index((name, body["joined"]))}

    def accept(self, body: Any) -> dict[str, Any]:
        """Accept a delivery of reports."""
        with self.changed:
            kept = self.received.setdefault(body["attempt"], [])
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
            self.changed.notify_all()
            return {
                "next": kept[-1] + 1 if kept else 1,
                "leave_within_s": self.leave_within_s,
                "stop": self.stop,
                "drills": self.drills,
                "remaining": self.remaining if body.get("asks_end") else None,
            }

    def wait_for(self, attempt: int, count: int) -> None:
        """Wait until `count` reports of an attempt have arrived."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.received.get(attempt, [])) >= count, 30)

    @contextmanager
    def opened(self, port: int) -> Iterator[None]:
        """Listen on a port of loopback."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size_bytes = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(size_bytes))
                assert size_bytes <= MAX_BODY_BYTES, "a longer body is always refused"
                if "/commands/" not in self.path:
                    service.tokens.add(self.headers["Authorization"])
                    service.paths.add(self.path)
                code, content = service.respond(self.path, body)
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

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
