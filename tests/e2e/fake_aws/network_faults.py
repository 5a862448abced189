"""A rough road between Holdfast and SkyPilot: launch requests are lost, doubled, and answered falsely."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from e2e.fake_aws.paths import API_PORT

PORT: Final = 8712
LAUNCH: Final = "/jobs/launch"
FATES: Final = ("pass", "pass", "pass", "lose the answer", "send twice", "lose", "say 503 after")


class FaultyProxy:
    """What happened on it. The same seed makes the same weather, as far as requests come in the same order."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._guard = threading.Lock()
        self.fates: Counter[str] = Counter()

    def fate(self, path: str) -> str:
        """What happens to the next request."""
        if path != LAUNCH:
            return "pass"
        with self._guard:
            fate = self._random.choice(FATES)
            self.fates[fate] += 1
        return fate


class Traveller(BaseHTTPRequestHandler):
    """One connection over it."""

    def do_GET(self) -> None:
        """A request that reads."""
        self._go()

    def do_POST(self) -> None:
        """A request that may change something."""
        self._go()

    def log_message(self, *words: object) -> None:
        """Log nothing."""

    def _go(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        assert isinstance(self.server, _Server)
        fate = self.server.road.fate(self.path)
        if fate == "lose":
            self.close_connection = True
            return
        status, headers, answer = self._forward(body)
        if fate == "send twice":
            status, headers, answer = self._forward(body)
        if fate == "lose the answer":
            self.close_connection = True
            return
        with suppress(ConnectionError):  # The caller may have been killed.
            self._answer(503 if fate == "say 503 after" else status, headers, answer)

    def _answer(self, status: int, headers: list[tuple[str, str]], answer: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in {"transfer-encoding", "content-length", "connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        onward = http.client.HTTPConnection("127.0.0.1", API_PORT, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
        try:
            onward.request(self.command, self.path, body, headers)
            reply = onward.getresponse()
            return reply.status, reply.getheaders(), reply.read()
        except (OSError, http.client.HTTPException):
            return 502, [], b"{}"
        finally:
            onward.close()


class _Server(ThreadingHTTPServer):
    def __init__(self, road: FaultyProxy) -> None:
        self.road = road
        super().__init__(("127.0.0.1", PORT), Traveller)


@contextmanager
def faulty_proxy(seed: int) -> Iterator[FaultyProxy]:
    """A proxy before the API server, at `PORT`."""
    road = FaultyProxy(seed)
    with _Server(road) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield road
        finally:
            server.shutdown()
