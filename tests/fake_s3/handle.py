"""The handle of a fake S3 for tests and benchmarks, in a thread or a process."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from fake_s3.clouds import AZURE, GOOGLE
from fake_s3.counters import Counts, Entry
from fake_s3.faults import Fault, Kind
from fake_s3.pace import Link
from fake_s3.server import Server
from fake_s3.state import ServerState, Settings

COMMAND_TIMEOUT_S: Final = 60.0
"""Timeout of a command; the reservation of gigabytes takes seconds."""


class BadCommand(Exception):
    """The server refused a command; the message states the reason."""


@dataclass(frozen=True)
class FakeS3:
    """A running fake S3. All commands use HTTP, also to a thread of this process."""

    port: int

    @property
    def endpoint(self) -> str:
        """URL of the server. Buckets exist on first use, in the path; any credentials are valid."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def google(self) -> str:
        """URL of the same server and its objects in the protocol of Google Cloud Storage."""
        return f"{self.endpoint}/{GOOGLE}"

    @property
    def azure(self) -> str:
        """URL of the same server and its objects in the protocol of Azure Blob Storage."""
        return f"{self.endpoint}/{AZURE}"

    # Faults

    def fault(self, kind: Kind, **details: Any) -> int:
        """Inject a fault and return its number; `details` are fields of `Fault`."""
        return int(self._post("faults", asdict(Fault(kind, **details)))["number"])

    def triggered(self, number: int, *, times: int = 0, timeout_s: float = 10.0) -> int:
        """How often a fault was triggered, after waiting for `times` or the timeout."""
        query = urlencode({"number": number, "times": times, "timeout_s": timeout_s})
        return int(self._json("GET", f"faults?{query}")["triggered"])

    def calm(self, number: int | None = None) -> None:
        """Remove one fault or all of them. Stalled requests continue."""
        self._call("DELETE", "faults" if number is None else f"faults?number={number}")

    def link(self, link: Link) -> None:
        """Set latency and bandwidth between the clients and the server."""
        self._post("link", asdict(link))

    def set(self, **settings: Any) -> None:
        """Change fields of `Settings`."""
        self._post("settings", settings)

    # Counters

    def counts(self) -> Counts:
        """Request and byte counts since the last `reset`."""
        return Counts(**self._json("GET", "counts"))

    def cpu_s(self) -> float:
        """CPU time of the server's process, which benchmarks subtract from their own."""
        return float(self._json("GET", "")["cpu_s"])

    def log(self) -> list[Entry]:
        """All completed requests, in the order of completion."""
        return [Entry(**entry) for entry in self._json("GET", "log")]

    def reset(self) -> None:
        """Set all counts to 0."""
        self._call("DELETE", "counts")

    # Objects, without faults and conditions

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """All keys with a prefix."""
        keys: list[str] = self._json("GET", f"keys?{urlencode({'bucket': bucket, 'prefix': prefix})}")  # fmt: skip
        return keys

    def read(self, bucket: str, key: str) -> bytes:
        """The content of an object."""
        return self._call("GET", f"object?{urlencode({'bucket': bucket, 'key': key})}")

    def write(self, bucket: str, key: str, data: bytes) -> None:
        """Store an object."""
        self._call("PUT", f"object?{urlencode({'bucket': bucket, 'key': key})}", data)

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object."""
        self._call("DELETE", f"object?{urlencode({'bucket': bucket, 'key': key})}")

    def truncate(self, bucket: str, key: str, size_bytes: int) -> None:
        """Cut an object off. ETag and checksums stay unchanged, as with all damage except `swap`."""
        self._post("truncate", {"bucket": bucket, "key": key, "size_bytes": size_bytes})

    def corrupt(self, bucket: str, key: str, byte: int | None = None) -> None:
        """Flip the lowest bit of a byte; None for a bit that the seed determines."""
        self._post("corrupt", {"bucket": bucket, "key": key, "byte": byte})

    def swap(self, bucket: str, key: str, other: str) -> None:
        """Exchange two objects, with their ETags."""
        self._post("swap", {"bucket": bucket, "key": key, "other": other})

    def renew(self) -> None:
        """Restore the initial state, except for serial numbers."""
        self.calm()
        self.clear()
        self.link(Link())
        self.set(**asdict(Settings()))
        self.reset()

    def clear(self) -> None:
        """Delete all objects and uploads, and keep their memory for reuse."""
        self._post("clear", {})

    def reserve(self, count: int, size_bytes: int) -> None:
        """Allocate memory for `count` bodies, so that benchmarks do not measure the allocation."""
        self._post("reserve", {"count": count, "size_bytes": size_bytes})

    def _post(self, command: str, arguments: dict[str, Any]) -> Any:
        return json.loads(self._call("POST", command, json.dumps(arguments).encode()))

    def _json(self, method: str, command: str) -> Any:
        return json.loads(self._call(method, command))

    def _call(self, method: str, command: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=COMMAND_TIMEOUT_S)
        try:
            connection.request(method, f"/_stand/{command}", body)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise BadCommand(content.decode())
        return content


@contextmanager
def in_thread(settings: Settings | None = None) -> Iterator[FakeS3]:
    """A fake S3 in a thread: starts at once, and uses the CPU time of this process."""
    server = Server(ServerState(settings or Settings()))
    server.start()
    try:
        yield FakeS3(server.port)
    finally:
        server.close()


@contextmanager
def in_process(settings: Settings | None = None) -> Iterator[FakeS3]:
    """A fake S3 in its own process, which ends with this one, also if that is killed."""
    result = json.dumps(asdict(settings or Settings()))
    command = [
        sys.executable,
        "-m",
        "fake_s3",
        "--port",
        "0",
        "--settings",
        result,
        "--with-parent",
    ]
    paths = [f"{Path(__file__).parents[1]}", *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        try:
            yield FakeS3(int(process.stdout.readline()))
        finally:
            process.stdin.close()  # The server ends on this.
