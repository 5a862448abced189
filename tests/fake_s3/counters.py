"""What has come and gone at the stand-in, counted."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Final

from fake_s3.request import Request

REMEMBERED: Final = 100_000
"""How many requests the log holds; some 20 MB."""


@dataclass
class Entry:
    """One request and its end."""

    operation: str
    method: str
    bucket: str
    key: str
    status: int = 0
    """What was answered; 0 where nothing was."""
    bytes_in: int = 0
    """Of its body, as it was on the wire."""
    bytes_out: int = 0


@dataclass(kw_only=True)
class Counts:
    """Counts since the last reset."""

    requests: dict[str, int]
    """By operation."""
    methods: dict[str, int]
    statuses: dict[str, int]
    """By what was answered; 0 where nothing was."""
    bytes_in: int = 0
    """Of bodies, as they were on the wire."""
    bytes_out: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    connections: int = 0
    """How many brought a request."""


class Counters:
    """The counts and the log of one stand-in."""

    def __init__(self) -> None:
        self.counts = Counts(requests=Counter(), methods=Counter(), statuses=Counter())
        self._log: deque[Entry] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()

    def flight(self, request: Request) -> Flight:
        """A request that is under way until it lands."""
        with self._lock:
            self.counts.in_flight += 1
            self.counts.most_in_flight = max(self.counts.most_in_flight, self.counts.in_flight)
        entry = Entry(request.operation, request.method, request.bucket, request.key)
        return Flight(self, entry)

    def land(self, entry: Entry) -> None:
        """Count a request that is over."""
        with self._lock:
            self.counts.in_flight -= 1
            self.counts.requests[entry.operation] += 1
            self.counts.methods[entry.method] += 1
            self.counts.statuses[f"{entry.status}"] += 1
            self.counts.bytes_in += entry.bytes_in
            self.counts.bytes_out += entry.bytes_out
            self._log.append(entry)

    def met(self) -> None:
        """Count one more connection."""
        with self._lock:
            self.counts.connections += 1

    def reset(self) -> None:
        """Begin again; what is in flight stays so."""
        with self._lock:
            flying = self.counts.in_flight
            self.counts = Counts(requests=Counter(), methods=Counter(), statuses=Counter(), in_flight=flying, most_in_flight=flying)  # fmt: skip
            self._log.clear()

    def told(self) -> dict[str, Any]:
        """The counts, for JSON."""
        with self._lock:
            return {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(self.counts).items()}  # fmt: skip

    def log(self) -> list[Entry]:
        """Every request that is over, in the order of their ends."""
        with self._lock:
            return list(self._log)


class Flight:
    """One request that is under way. It lands once: before its client has the whole reply, who may look at the counts."""

    def __init__(self, tally: Counters, entry: Entry) -> None:
        self._tally = tally
        self.entry = entry
        self.has_landed = False

    def land(self) -> None:
        """Be counted, if that is not done."""
        if not self.has_landed:
            self.has_landed = True
            self._tally.land(self.entry)
