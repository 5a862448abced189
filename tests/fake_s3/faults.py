"""Injected faults of the fake S3: which requests they apply to, how often, how likely."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal, get_args

from fake_s3.request import Request

Kind = Literal["error", "reset", "close", "stall", "lost", "flip", "rot", "lag"]
"""
error   the reply is `code`, and the operation is not executed
reset   the connection is reset after `at` of the body, and the operation is not executed
close   the connection is closed after `at` of the body: the client gets less than Content-Length
stall   the transfer pauses for `wait_s` after `at` of the body; 0: until the fault is removed
lost    the operation is executed, and the connection is closed without a reply
flip    one bit of the request's body flips before its checksums are verified, or else of the reply's
rot     one bit of the stored object flips after its checksums were verified
lag     new keys are not listed for `wait_s`
"""
INTERRUPTIONS: Final = ("reset", "close", "stall")


@dataclass(frozen=True)
class Fault:
    """Definition of one injected fault."""

    kind: Kind
    on: str = "*"
    """A pattern of operations such as `PutObject` or `*Part`, or an HTTP method."""
    key: str = "*"
    """A shell pattern of keys."""
    chance: float = 1.0
    """Probability, drawn from seed, operation, key and repetition, independent of thread order."""
    skip: int = 0
    """Number of matching requests to skip first."""
    count: int | None = None
    """Maximum number of triggers; None for no limit."""
    code: str = "SlowDown"
    """Error code; its HTTP status is S3's, unless `status` overrides it."""
    status: int = 0
    wait_s: float = 0.0
    at: float = 0.0
    """Share of the request's body, or of the reply's if it has none; 0 is before the head."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"there is no fault {self.kind!r}; there are {get_args(Kind)}")

    def matches(self, request: Request) -> bool:
        """Whether the fault applies to a request of this kind."""
        return (
            fnmatchcase(request.operation, self.on) or request.method == self.on
        ) and fnmatchcase(request.key, self.key)


@dataclass
class ArmedFault:
    """A registered fault, with its remaining count."""

    number: int
    fault: Fault
    matched: int = 0
    triggered: int = 0
    removed: threading.Event = field(default_factory=threading.Event)
    """Set when the fault is removed; stalled requests continue."""
    repetitions: Counter[tuple[str, str]] = field(default_factory=Counter)

    def is_triggered_by(self, request: Request, seed: int) -> bool:
        """Whether the fault is triggered by this matching request."""
        fault = self.fault
        self.matched += 1
        if self.matched <= fault.skip or (
            fault.count is not None and self.triggered >= fault.count
        ):
            return False
        inputs = (request.operation, request.key)
        self.repetitions[inputs] += 1
        if (
            fault.chance < 1
            and draw(seed, self.number, *inputs, self.repetitions[inputs]) >= fault.chance
        ):
            return False
        self.triggered += 1
        return True


@dataclass(frozen=True)
class TriggeredFaults:
    """The faults that one request triggers."""

    armed: tuple[ArmedFault, ...] = ()

    def first(self, kind: Kind) -> Fault | None:
        """The first fault of this kind; None for none."""
        return next(
            (armed_fault.fault for armed_fault in self.armed if armed_fault.fault.kind == kind),
            None,
        )

    @property
    def interruptions(self) -> list[ArmedFault]:
        """Faults that interrupt the body, in order of position."""
        found = [
            armed_fault for armed_fault in self.armed if armed_fault.fault.kind in INTERRUPTIONS
        ]
        return sorted(found, key=lambda armed_fault: armed_fault.fault.at)


class Faults:
    """All registered faults."""

    def __init__(self) -> None:
        self._armed: dict[int, ArmedFault] = {}
        self._made = 0
        self._changed = threading.Condition()

    def arm(self, fault: Fault) -> int:
        """Register a fault and return its number."""
        with self._changed:
            self._made += 1
            self._armed[self._made] = ArmedFault(self._made, fault)
            return self._made

    def disarm(self, number: int | None = None) -> None:
        """Remove one fault, or all of them."""
        with self._changed:
            for armed_fault in [number] if number is not None else list(self._armed):
                if (armed := self._armed.pop(armed_fault, None)) is not None:
                    armed.removed.set()
            self._changed.notify_all()

    def trigger(self, request: Request, seed: int) -> TriggeredFaults:
        """Return the faults that a request triggers."""
        if not self._armed:
            return TriggeredFaults()
        with self._changed:
            triggered = [armed_fault for armed_fault in self._armed.values() if armed_fault.fault.matches(request) and armed_fault.is_triggered_by(request, seed)]  # fmt: skip
            if triggered:
                self._changed.notify_all()
        return TriggeredFaults(tuple(triggered))

    def wait_triggered(self, number: int, times: int, timeout_s: float) -> bool:
        """Whether a fault was triggered `times` times before the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.triggered(number) >= times, timeout_s)

    def triggered(self, number: int) -> int:
        """How often a fault was triggered; 0 after its removal."""
        armed = self._armed.get(number)
        return armed.triggered if armed else 0


def draw(*inputs: object) -> float:
    """A number in [0, 1), determined by the arguments."""
    digest = hashlib.blake2b(repr(inputs).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def flip_bit(view: memoryview, *inputs: object) -> None:
    """Flip one bit, determined by the arguments."""
    if view:
        position = int(draw("flip", *inputs) * len(view) * 8)
        view[position // 8] ^= 1 << position % 8


def flipped(views: list[memoryview], *inputs: object) -> list[memoryview]:
    """The bytes with one bit flipped; only the changed byte is copied."""
    size = sum(len(view) for view in views)
    position = int(draw("flip", *inputs) * size * 8)
    byte, result = position // 8, []
    for view in views:
        if 0 <= byte < len(view):
            changed = memoryview(bytes([view[byte] ^ 1 << position % 8]))
            result += [view[:byte], changed, view[byte + 1 :]]
        else:
            result.append(view)
        byte -= len(view)
    return result
