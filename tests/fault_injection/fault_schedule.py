"""Fault schedules: how often a run is started, and at which crash points it ends, drawn from a seed. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, Final

from fault_injection.crash_points import DOINGS, LEAVING, CrashPoint, Doing, FaultAction

CALM_S: Final = 30.0
"""What torchrun gives ranks to end by themselves, after one of them has fallen or left."""
BRIEF_S: Final = 0.3
"""The same without a grace period: the machine is lost, or a launcher ends the rest at once."""


@dataclass(frozen=True)
class AttemptPlan:
    """One attempt of the job."""

    ranks: int
    points: tuple[tuple[int, CrashPoint], ...] = ()
    """And the ranks that strike them."""
    patience_s: float = CALM_S
    """For ranks that are left to end by themselves."""
    weather: tuple[dict[str, Any], ...] = ()
    """Faults of the store."""
    is_patient: bool = False
    """Whether the ranks stand still until a save is over, so that as many are made as are due."""

    def of(self, rank: int) -> tuple[CrashPoint, ...]:
        """What lies ahead of a rank."""
        return tuple(point for who, point in self.points if who == rank)

    def sooner(self) -> AttemptPlan:
        """See `FaultSchedule`."""
        points = tuple((who, replace(point, time=1)) for who, point in self.points)
        return replace(self, points=points, is_patient=True)

    def __str__(self) -> str:
        """In words, for messages."""
        points = "; ".join(f"rank {rank}: {point}" for rank, point in self.points)
        return f"{self.ranks} ranks, {points or 'calm'}, {self.patience_s} s, {list(self.weather)}"


@dataclass(frozen=True)
class FaultSchedule:
    """What befalls one job, until it is let go to its end."""

    kind: str
    is_far: bool
    """Whether its store is S3 rather than a directory."""
    legs: tuple[AttemptPlan, ...]
    last: AttemptPlan

    @property
    def ranks(self) -> int | None:
        """The number of ranks; None if it changes."""
        sizes = {leg.ranks for leg in (*self.legs, self.last)}
        return sizes.pop() if len(sizes) == 1 else None

    def sooner(self) -> FaultSchedule:
        """The same with every crash point where it is first done, by patient ranks: others make fewer saves if the store is slow."""
        return replace(self, legs=tuple(leg.sooner() for leg in self.legs))

    def __str__(self) -> str:
        """In words, for messages."""
        legs = "\n  ".join(map(str, (*self.legs, self.last)))
        return f"{self.kind} over {'S3' if self.is_far else 'a directory'}:\n  {legs}"


def draw(seed: int) -> FaultSchedule:
    """The schedule of a seed, always the same."""
    rng = random.Random(seed)
    kind = rng.choices(["ddp", "fsdp"], [9, 1])[0]
    is_far = rng.random() < 0.4
    # Sharded state takes ten times the processor time; on one rank there is nothing of it to see.
    sizes = [1, 2, 4] if kind == "ddp" else [2, 2, 4]
    sizes = sizes if rng.random() < 0.3 else [rng.choice(sizes)]
    count = rng.choices([1, 2, 3], [5, 3, 2])[0]
    legs: list[AttemptPlan] = []
    for _ in range(count):
        has_checkpoint = any(_leaves_a_checkpoint(leg) for leg in legs)
        legs.append(_leg(rng, rng.choice(sizes), is_far=is_far, has_checkpoint=has_checkpoint))
    return FaultSchedule(kind, is_far, tuple(legs), AttemptPlan(rng.choice(sizes)))


def _leaves_a_checkpoint(leg: AttemptPlan) -> bool:
    """Whether a second save was begun, which is not done before the first one is over."""
    return any(DOINGS[point.doing].is_of_a_save and point.time > 1 for _, point in leg.points[:1])


def _leg(rng: random.Random, ranks: int, *, is_far: bool, has_checkpoint: bool) -> AttemptPlan:
    story = rng.choices([_crash, _notice, _notice_and_crash], [6, 1, 3])[0]
    doings = {n: d for n, d in DOINGS.items() if has_checkpoint or not d.needs_checkpoint}
    name = rng.choices([*doings], [doing.chance for doing in doings.values()])[0]
    rank = 0 if doings[name].by_first else rng.randrange(ranks)
    points = story(rng, name, doings[name])
    return AttemptPlan(
        ranks,
        tuple((rank, point) for point in points),
        patience_s=rng.choices([BRIEF_S, CALM_S], [7, 1])[0],
        weather=tuple(_weather(rng)) if is_far and rng.random() < 0.6 else (),
    )


def _crash(rng: random.Random, name: str, doing: Doing) -> list[CrashPoint]:
    """One rank is killed, or all are."""
    deed = rng.choice([FaultAction.KILL, FaultAction.KILL_ALL])
    fuse_ms = rng.choice([0.0, 0.0, rng.uniform(0.0, 5.0)])
    return [CrashPoint(name, _time(rng, doing), _line(rng, doing), deed, fuse_ms)]


def _notice(rng: random.Random, name: str, doing: Doing) -> list[CrashPoint]:
    """The node will be taken, sooner or later."""
    deed = rng.choice([FaultAction.NOTICE, FaultAction.NOTICE_ALL])
    left_s = rng.choice([None, 0.0, 120.0, 120.0])
    return [CrashPoint(name, _time(rng, doing), _line(rng, doing), deed, left_s=left_s)]


def _notice_and_crash(rng: random.Random, name: str, doing: Doing) -> list[CrashPoint]:
    """The node will be taken, and it is before all that was to be done is done."""
    [noticed] = _notice(rng, name, doing)
    deed = rng.choice([FaultAction.KILL, FaultAction.KILL_ALL])
    if rng.random() < 0.5:
        fuse_ms = rng.uniform(1.0, 60.0)
        return [noticed, CrashPoint(noticed.doing, noticed.time, noticed.line, deed, fuse_ms)]
    return [noticed, CrashPoint("leave", 1, _line(rng, LEAVING), deed)]


def _time(rng: random.Random, doing: Doing) -> int:
    return rng.randint(1, doing.times)


def _line(rng: random.Random, doing: Doing) -> int:
    """Any line; where there are many, an early one as often as any."""
    return rng.choice(
        [rng.randint(1, doing.lines), round(math.exp(rng.uniform(0, math.log(doing.lines))))]
    )


def _weather(rng: random.Random) -> list[dict[str, Any]]:
    """Faults of S3: answers that are lost, bodies that are cut off, errors; none that changes what is stored."""
    keys = rng.choice(["*", "*/commits/*", "*newest.json", "*/claims/*", "*/step-*"])
    some = {"key": keys, "skip": rng.randrange(3), "count": rng.randint(1, 3)}
    faults = [
        {"kind": "lost", "on": "PutObject", **some},
        {"kind": "error", "code": "InternalError", **some},
        {"kind": "error", "code": "SlowDown", "chance": 0.1},
        {"kind": "close", "on": "GetObject", "at": rng.choice([0.0, 0.5, 0.9]), **some},
        {"kind": "reset", "on": "PutObject", "at": 0.5, **some},
        {"kind": "stall", "wait_s": 0.2, **some},
    ]
    return rng.sample(faults, rng.randint(1, 2))
