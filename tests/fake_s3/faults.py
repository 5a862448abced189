"""What goes wrong at the stand-in, where, how often, and with which chance."""

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
error   nothing is done, and `code` is answered
reset   the connection is reset after `at` of the body, and nothing is done
close   the connection is closed there: after half a reply its reader has less than Content-Length says
stall   nothing moves for `wait_s` after `at` of the body; until the fault is taken back, where that is 0
lost    it is done, and the connection is closed in place of a reply
flip    one bit of the body is another: of the request's before its checksums are looked at, or else of the reply's
rot     one bit of what is stored is another, after the checksums were looked at
lag     what is written is not listed for `wait_s`
"""
INTERRUPTIONS: Final = ("reset", "close", "stall")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: Kind
    on: str = "*"
    """A pattern of operations such as `PutObject` or `*Part`, or an HTTP method."""
    key: str = "*"
    """A pattern of keys, as the shell's."""
    chance: float = 1.0
    """Drawn from the seed, the operation, the key, and how often it was asked for: never from the order of threads."""
    skip: int = 0
    """How many that fit are let go first."""
    count: int | None = None
    """How often it strikes; None for always."""
    code: str = "SlowDown"
    """What an error says; its status is S3's for that code, unless `status` is another."""
    status: int = 0
    wait_s: float = 0.0
    at: float = 0.0
    """After which share of the body: of the request's if it has one, else of the reply's, at 0 before its head."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"there is no fault {self.kind!r}; there are {get_args(Kind)}")

    def fits(self, request: Request) -> bool:
        """Whether it is about such a request."""
        return (
            fnmatchcase(request.operation, self.on) or request.method == self.on
        ) and fnmatchcase(request.key, self.key)


@dataclass
class Armed:
    """A fault that waits for its moment."""

    number: int
    fault: Fault
    fitted: int = 0
    struck: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the fault is removed; stalled requests continue."""
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)

    def strikes(self, request: Request, seed: int) -> bool:
        """Whether it befalls this request, which fits."""
        fault = self.fault
        self.fitted += 1
        if self.fitted <= fault.skip or (fault.count is not None and self.struck >= fault.count):
            return False
        what = (request.operation, request.key)
        self.asked[what] += 1
        if fault.chance < 1 and draw(seed, self.number, *what, self.asked[what]) >= fault.chance:
            return False
        self.struck += 1
        return True


@dataclass(frozen=True)
class Struck:
    """What befalls one request."""

    armed: tuple[Armed, ...] = ()

    def first(self, kind: Kind) -> Fault | None:
        """The first fault of this kind; None for none."""
        return next((one.fault for one in self.armed if one.fault.kind == kind), None)

    @property
    def interruptions(self) -> list[Armed]:
        """What happens on the way through the body, in order."""
        found = [one for one in self.armed if one.fault.kind in INTERRUPTIONS]
        return sorted(found, key=lambda one: one.fault.at)


class Faults:
    """All that is armed."""

    def __init__(self) -> None:
        self._armed: dict[int, Armed] = {}
        self._made = 0
        self._changed = threading.Condition()

    def arm(self, fault: Fault) -> int:
        """The number of a fault that waits for its moment from now on."""
        with self._changed:
            self._made += 1
            self._armed[self._made] = Armed(self._made, fault)
            return self._made

    def disarm(self, number: int | None = None) -> None:
        """Take back one fault, or all of them."""
        with self._changed:
            for one in [number] if number is not None else list(self._armed):
                if (armed := self._armed.pop(one, None)) is not None:
                    armed.over.set()
            self._changed.notify_all()

    def strike(self, request: Request, seed: int) -> Struck:
        """What befalls a request."""
        if not self._armed:
            return Struck()
        with self._changed:
            struck = [one for one in self._armed.values() if one.fault.fits(request) and one.strikes(request, seed)]  # fmt: skip
            if struck:
                self._changed.notify_all()
        return Struck(tuple(struck))

    def wait_struck(self, number: int, times: int, timeout_s: float) -> bool:
        """Whether a fault has struck so often, in this time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.struck(number) >= times, timeout_s)

    def struck(self, number: int) -> int:
        """How often a fault has struck; 0 for one that was taken back."""
        armed = self._armed.get(number)
        return armed.struck if armed else 0


def draw(*what: object) -> float:
    """A number in [0, 1) that is always the same for the same things."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def flip_bit(view: memoryview, *what: object) -> None:
    """Change one bit, always the same one for the same things."""
    if view:
        place = int(draw("flip", *what) * len(view) * 8)
        view[place // 8] ^= 1 << place % 8


def flipped(views: list[memoryview], *what: object) -> list[memoryview]:
    """The same bytes but for one bit; only the byte that holds it is copied."""
    size = sum(len(view) for view in views)
    place = int(draw("flip", *what) * size * 8)
    byte, out = place // 8, []
    for view in views:
        if 0 <= byte < len(view):
            other = memoryview(bytes([view[byte] ^ 1 << place % 8]))
            out += [view[:byte], other, view[byte + 1 :]]
        else:
            out.append(view)
        byte -= len(view)
    return out
