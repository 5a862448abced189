"""Counters and the request log of the fake S3."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Final

from fake_s3.request import Request

LOG_ENTRIES: Final = 100_000
"""Maximum number of requests in the log; some 20 MB."""


@dataclass
class Entry:
    """Log entry of one completed request."""

    operation: str
    method: str
    bucket: str
    key: str
    status: int = 0
    """Status of the reply; 0 without a reply."""
    bytes_in: int = 0
    """Size of the body on the wire."""
    bytes_out: int = 0


@dataclass(kw_only=True)
class Counts:
    """Request and byte counts since the last reset."""

    requests: dict[str, int]
    """By operation."""
    methods: dict[str, int]
    statuses: dict[str, int]
    """By status of the reply; 0 without a reply."""
    bytes_in: int = 0
    """Size of all bodies on the wire."""
    bytes_out: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    connections: int = 0
    """Number of connections with at least one request."""


class Counters:
    """Counts and request log of one server."""

    def __init__(self) -> None:
        self.counts = Counts(requests=Counter(), methods=Counter(), statuses=Counter())
        self._log: deque[Entry] = deque(maxlen=LOG_ENTRIES)
        self._lock = threading.Lock()

    def flight(self, request: Request) -> InFlightRequest:
        """Record the start of a request, which is in flight until `finish`."""
        with self._lock:
            self.counts.in_flight += 1
            self.counts.most_in_flight = max(self.counts.most_in_flight, self.counts.in_flight)
        entry = Entry(request.operation, request.method, request.bucket, request.key)
        return InFlightRequest(self, entry)

    def finish(self, entry: Entry) -> None:
        """Count a completed request."""
        with self._lock:
            self.counts.in_flight -= 1
            self.counts.requests[entry.operation] += 1
            self.counts.methods[entry.method] += 1
            self.counts.statuses[f"{entry.status}"] += 1
            self.counts.bytes_in += entry.bytes_in
            self.counts.bytes_out += entry.bytes_out
            self._log.append(entry)

    def count_connection(self) -> None:
        """Count a new connection."""
        with self._lock:
            self.counts.connections += 1

    def reset(self) -> None:
        """Set all counts to 0, except for requests in flight."""
        with self._lock:
            in_flight = self.counts.in_flight
            self.counts = Counts(requests=Counter(), methods=Counter(), statuses=Counter(), in_flight=in_flight, most_in_flight=in_flight)  # fmt: skip
            self._log.clear()

    def as_json(self) -> dict[str, Any]:
        """The counts as a JSON object."""
        with self._lock:
            return {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(self.counts).items()}  # fmt: skip

    def log(self) -> list[Entry]:
        """All completed requests, in the order of completion."""
        with self._lock:
            return list(self._log)


class InFlightRequest:
    """One request in flight.

    It finishes before its client has the whole reply, as the client may read the counts next.
    """

    def __init__(self, counters: Counters, entry: Entry) -> None:
        self._counters = counters
        self.entry = entry
        self.is_finished = False

    def finish(self) -> None:
        """Count the request once."""
        if not self.is_finished:
            self.is_finished = True
            self._counters.finish(self.entry)
