"""A faulty proxy between Holdfast and SkyPilot: launch requests are lost or sent twice."""

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
FAULTS: Final = (
    "pass",
    "pass",
    "pass",
    "lose the response",
    "send twice",
    "lose",
    "respond 503 after",
)


class FaultyProxy:
    """Draws the faults of launch requests.

    Equal seeds draw equal faults in the order of requests.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.faults: Counter[str] = Counter()

    def draw_fault(self, path: str) -> str:
        """Draw the fault of the next request."""
        if path != LAUNCH:
            return "pass"
        with self._lock:
            fault = self._random.choice(FAULTS)
            self.faults[fault] += 1
        return fault


class ProxyHandler(BaseHTTPRequestHandler):
    """One connection through the proxy."""

    def do_GET(self) -> None:
        """Forward a request that reads."""
        self._handle()

    def do_POST(self) -> None:
        """Forward a request that may change something."""
        self._handle()

    def log_message(self, *words: object) -> None:
        """Log nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        assert isinstance(self.server, _Server)
        fault = self.server.proxy.draw_fault(self.path)
        if fault == "lose":
            self.close_connection = True
            return
        status, headers, answer = self._forward(body)
        if fault == "send twice":
            status, headers, answer = self._forward(body)
        if fault == "lose the response":
            self.close_connection = True
            return
        with suppress(ConnectionError):  # The client may have been killed.
            self._respond(503 if fault == "respond 503 after" else status, headers, answer)

    def _respond(self, status: int, headers: list[tuple[str, str]], answer: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in {"transfer-encoding", "content-length", "connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", API_PORT, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
        try:
            connection.request(self.command, self.path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.getheaders(), reply.read()
        except (OSError, http.client.HTTPException):
            return 502, [], b"{}"
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    def __init__(self, proxy: FaultyProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", PORT), ProxyHandler)


@contextmanager
def faulty_proxy(seed: int) -> Iterator[FaultyProxy]:
    """Run a proxy in front of the API server, at `PORT`."""
    proxy = FaultyProxy(seed)
    with _Server(proxy) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
