"""Fault schedules: the attempts of a run and their crash points, drawn from a seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, Final

from fault_injection.crash_points import (
    EXIT_ON_NOTICE,
    OPERATIONS,
    CrashPoint,
    FaultAction,
    RankOperation,
)

GRACE_S: Final = 30.0
"""Time for ranks to exit by themselves after one has failed or exited, as with torchrun."""
SHORT_GRACE_S: Final = 0.3
"""The same time if the machine is lost or a launcher kills the remaining ranks at once."""


@dataclass(frozen=True)
class AttemptPlan:
    """One attempt of the job."""

    ranks: int
    points: tuple[tuple[int, CrashPoint], ...] = ()
    """Crash points with their ranks."""
    grace_s: float = GRACE_S
    """Time for the remaining ranks to exit."""
    store_faults: tuple[dict[str, Any], ...] = ()
    """Faults of the store."""
    waits_for_saves: bool = False
    """Whether ranks wait for each save, so that no save is skipped."""

    def points_of(self, rank: int) -> tuple[CrashPoint, ...]:
        """The crash points of a rank."""
        return tuple(point for owner, point in self.points if owner == rank)

    def at_first_runs(self) -> AttemptPlan:
        """The same attempt with each crash point in the first run of its operation."""
        points = tuple((rank, replace(point, time=1)) for rank, point in self.points)
        return replace(self, points=points, waits_for_saves=True)

    def __str__(self) -> str:
        """Describe the attempt for messages."""
        points = "; ".join(f"rank {rank}: {point}" for rank, point in self.points)
        return f"{self.ranks} ranks, {points or 'no faults'}, {self.grace_s} s, {list(self.store_faults)}"


@dataclass(frozen=True)
class FaultSchedule:
    """The faults of one job up to its undisturbed last attempt."""

    kind: str
    on_s3: bool
    """Whether the store is S3 rather than a directory."""
    attempts: tuple[AttemptPlan, ...]
    last: AttemptPlan

    @property
    def ranks(self) -> int | None:
        """The number of ranks; None if it changes."""
        sizes = {attempt.ranks for attempt in (*self.attempts, self.last)}
        return sizes.pop() if len(sizes) == 1 else None

    def at_first_runs(self) -> FaultSchedule:
        """The same schedule with crash points in the first run of each operation.

        Ranks wait for each save; otherwise a slow store means fewer saves.
        """
        return replace(self, attempts=tuple(attempt.at_first_runs() for attempt in self.attempts))

    def __str__(self) -> str:
        """Describe the schedule for messages."""
        attempts = "\n  ".join(map(str, (*self.attempts, self.last)))
        return f"{self.kind} over {'S3' if self.on_s3 else 'a directory'}:\n  {attempts}"


def draw(seed: int) -> FaultSchedule:
    """Return the schedule of a seed."""
    rng = random.Random(seed)
    kind = rng.choices(["ddp", "fsdp"], [9, 1])[0]
    on_s3 = rng.random() < 0.4
    # Sharded state takes ten times the CPU time; with one rank, nothing is sharded.
    sizes = [1, 2, 4] if kind == "ddp" else [2, 2, 4]
    sizes = sizes if rng.random() < 0.3 else [rng.choice(sizes)]
    count = rng.choices([1, 2, 3], [5, 3, 2])[0]
    attempts: list[AttemptPlan] = []
    for _ in range(count):
        has_checkpoint = any(_leaves_a_checkpoint(attempt) for attempt in attempts)
        attempts.append(
            _attempt_plan(rng, rng.choice(sizes), on_s3=on_s3, has_checkpoint=has_checkpoint)
        )
    return FaultSchedule(kind, on_s3, tuple(attempts), AttemptPlan(rng.choice(sizes)))


def _leaves_a_checkpoint(attempt: AttemptPlan) -> bool:
    """Whether the attempt started a second save, which waits for the end of the first one."""
    return any(
        OPERATIONS[point.operation].is_in_every_save and point.time > 1
        for _, point in attempt.points[:1]
    )


def _attempt_plan(
    rng: random.Random, ranks: int, *, on_s3: bool, has_checkpoint: bool
) -> AttemptPlan:
    draw_points = rng.choices([_crash, _notice, _notice_and_crash], [6, 1, 3])[0]
    operations = {n: d for n, d in OPERATIONS.items() if has_checkpoint or not d.needs_checkpoint}
    name = rng.choices([*operations], [operation.weight for operation in operations.values()])[0]
    rank = 0 if operations[name].is_on_first_rank else rng.randrange(ranks)
    points = draw_points(rng, name, operations[name])
    return AttemptPlan(
        ranks,
        tuple((rank, point) for point in points),
        grace_s=rng.choices([SHORT_GRACE_S, GRACE_S], [7, 1])[0],
        store_faults=tuple(_store_faults(rng)) if on_s3 and rng.random() < 0.6 else (),
    )


def _crash(rng: random.Random, name: str, operation: RankOperation) -> list[CrashPoint]:
    """Kill one rank or all ranks."""
    action = rng.choice([FaultAction.KILL, FaultAction.KILL_ALL])
    delay_ms = rng.choice([0.0, 0.0, rng.uniform(0.0, 5.0)])
    return [CrashPoint(name, _time(rng, operation), _line(rng, operation), action, delay_ms)]


def _notice(rng: random.Random, name: str, operation: RankOperation) -> list[CrashPoint]:
    """Send a termination notice."""
    action = rng.choice([FaultAction.NOTICE, FaultAction.NOTICE_ALL])
    left_s = rng.choice([None, 0.0, 120.0, 120.0])
    return [CrashPoint(name, _time(rng, operation), _line(rng, operation), action, left_s=left_s)]


def _notice_and_crash(rng: random.Random, name: str, operation: RankOperation) -> list[CrashPoint]:
    """Send a termination notice, and kill the rank before its exit is complete."""
    [noticed] = _notice(rng, name, operation)
    action = rng.choice([FaultAction.KILL, FaultAction.KILL_ALL])
    if rng.random() < 0.5:
        delay_ms = rng.uniform(1.0, 60.0)
        return [
            noticed,
            CrashPoint(noticed.operation, noticed.time, noticed.line, action, delay_ms),
        ]
    return [noticed, CrashPoint("leave", 1, _line(rng, EXIT_ON_NOTICE), action)]


def _time(rng: random.Random, operation: RankOperation) -> int:
    return rng.randint(1, operation.times)


def _line(rng: random.Random, operation: RankOperation) -> int:
    """Draw a line. Operations with many lines crash in an early one as often as in any."""
    return rng.choice(
        [
            rng.randint(1, operation.lines),
            round(math.exp(rng.uniform(0, math.log(operation.lines)))),
        ]
    )


def _store_faults(rng: random.Random) -> list[dict[str, Any]]:
    """Faults of S3: lost responses, truncated bodies, errors; none changes stored objects."""
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
