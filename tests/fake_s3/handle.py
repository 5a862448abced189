"""The stand-in as tests and benchmarks see it: a handle, and two ways to have one."""

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

from fake_s3.counters import Counts, Entry
from fake_s3.faults import Fault, Kind
from fake_s3.pace import Link
from fake_s3.server import Server
from fake_s3.state import ServerState, Settings

ANSWERS_WITHIN_S: Final = 60.0
"""How long a command may take; a reserve of gigabytes takes seconds."""


class BadCommand(Exception):
    """The stand-in does not do that; its words say why."""


@dataclass(frozen=True)
class FakeS3:
    """A stand-in that runs. All commands go over HTTP, wherever it runs."""

    port: int

    @property
    def endpoint(self) -> str:
        """Its URL. Any bucket is there, in the path; any credentials will do."""
        return f"http://127.0.0.1:{self.port}"

    # Faults

    def fault(self, kind: Kind, **details: Any) -> int:
        """The number of a fault that waits from now on for requests that fit; `details` are members of `Fault`."""
        return int(self._post("faults", asdict(Fault(kind, **details)))["number"])

    def struck(self, number: int, *, times: int = 0, timeout_s: float = 10.0) -> int:
        """How often a fault has struck, as soon as it has struck so many `times` or the time is over."""
        query = urlencode({"number": number, "times": times, "timeout_s": timeout_s})
        return int(self._json("GET", f"faults?{query}")["struck"])

    def calm(self, number: int | None = None) -> None:
        """Remove one fault or all of them. Stalled requests continue."""
        self._call("DELETE", "faults" if number is None else f"faults?number={number}")

    def link(self, link: Link) -> None:
        """From now on this is what lies between the clients and the stand-in."""
        self._post("link", asdict(link))

    def set(self, **settings: Any) -> None:
        """Change members of `Settings`."""
        self._post("settings", settings)

    # What has happened

    def counts(self) -> Counts:
        """What has come and gone since the last `reset`."""
        return Counts(**self._json("GET", "counts"))

    def cpu_s(self) -> float:
        """What the process of the stand-in has spent, for benchmarks that count a client's share."""
        return float(self._json("GET", "")["cpu_s"])

    def log(self) -> list[Entry]:
        """Every request that is over, in the order of their ends."""
        return [Entry(**entry) for entry in self._json("GET", "log")]

    def reset(self) -> None:
        """Count again."""
        self._call("DELETE", "counts")

    # Objects, past all faults and conditions

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """All keys that begin so."""
        keys: list[str] = self._json("GET", f"keys?{urlencode({'bucket': bucket, 'prefix': prefix})}")  # fmt: skip
        return keys

    def read(self, bucket: str, key: str) -> bytes:
        """The content of an object."""
        return self._call("GET", f"object?{urlencode({'bucket': bucket, 'key': key})}")

    def write(self, bucket: str, key: str, data: bytes) -> None:
        """Let there be an object."""
        self._call("PUT", f"object?{urlencode({'bucket': bucket, 'key': key})}", data)

    def delete(self, bucket: str, key: str) -> None:
        """Lose an object."""
        self._call("DELETE", f"object?{urlencode({'bucket': bucket, 'key': key})}")

    def truncate(self, bucket: str, key: str, size_bytes: int) -> None:
        """Lose the end of an object. ETag and checksums stay as they were, as with all damage but `swap`."""
        self._post("truncate", {"bucket": bucket, "key": key, "size_bytes": size_bytes})

    def corrupt(self, bucket: str, key: str, byte: int | None = None) -> None:
        """Flip the lowest bit of a byte; None for some bit that the seed chooses."""
        self._post("corrupt", {"bucket": bucket, "key": key, "byte": byte})

    def swap(self, bucket: str, key: str, other: str) -> None:
        """Let each of two objects be under the other's key, ETag and all."""
        self._post("swap", {"bucket": bucket, "key": key, "other": other})

    def renew(self) -> None:
        """Be as on the first day, but for the numbers that count up."""
        self.calm()
        self.clear()
        self.link(Link())
        self.set(**asdict(Settings()))
        self.reset()

    def clear(self) -> None:
        """Forget all objects and uploads, and keep their memory for the next ones."""
        self._post("clear", {})

    def reserve(self, count: int, size_bytes: int) -> None:
        """Make memory for so many bodies, so that no benchmark measures the kernel making it."""
        self._post("reserve", {"count": count, "size_bytes": size_bytes})

    def _post(self, command: str, given: dict[str, Any]) -> Any:
        return json.loads(self._call("POST", command, json.dumps(given).encode()))

    def _json(self, method: str, command: str) -> Any:
        return json.loads(self._call(method, command))

    def _call(self, method: str, command: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWERS_WITHIN_S)
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
    """A stand-in in this process: up at once, and its work is counted among ours."""
    server = Server(ServerState(settings or Settings()))
    server.start()
    try:
        yield FakeS3(server.port)
    finally:
        server.close()


@contextmanager
def in_process(settings: Settings | None = None) -> Iterator[FakeS3]:
    """A stand-in in a process of its own, which ends when we do, however that may be."""
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
            process.stdin.close()  # What it waits for.
