"""A service on loopback that takes reports as the real one does: once, and in order."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Service:
    """A service that keeps what it is told, once, and says no as often as it is made to."""

    refusals: list[int] = field(default_factory=list)
    """Status codes of the next answers, before it begins to accept."""
    told: dict[int, list[int]] = field(default_factory=dict)
    """Numbers of the reports of each attempt, in the order in which they came."""
    largest: int = 0
    tokens: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    heard: threading.Condition = field(default_factory=threading.Condition)

    def take(self, body: Any) -> int:
        """Accept a delivery; the number that is expected next."""
        with self.heard:
            kept = self.told.setdefault(body["attempt"], [])
            self.largest = max(self.largest, len(body["reports"]))
            kept += [r["n"] for r in body["reports"] if r["n"] > len(kept)]
            self.heard.notify_all()
            return len(kept) + 1

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
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.tokens.add(self.headers["Authorization"])
                service.paths.add(self.path)
                code = service.refusals.pop(0) if service.refusals else 200
                reply = json.dumps({"next": service.take(body)} if code == 200 else {}).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", port), Door)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
