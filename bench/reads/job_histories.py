"""Histories of jobs of a month on spot nodes, with preemptions, denials and failures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.domain.events import (
    Cause,
    CheckpointsRemoved,
    Event,
    NodesReady,
    Outcome,
    Removal,
    Submitted,
)
from holdfast.domain.events.values import StoreCounts
from support.events import at, denied, finished, launched, lost, ready, restoring, saved, training
from support.events import submitted as new_submission

ZONES = ("us-east-2a", "us-east-2b", "us-east-2c", "us-west-2a", "eu-west-1b")
KINDS = ("p4d.24xlarge", "p5.48xlarge", "g5.12xlarge")
OWNERS = ("ada", "bob", "cyd", "dee", "eve")
PROJECTS = ("default", "nlp", "vision")
TEAMS = ("a", "b", "c", "d")
STEP_S = 2.0
KEPT = 0.1
"""Fraction of checkpoints that stay in the store, also after the end of the job."""


def story(number: int, events: int, now: datetime, *, is_live: bool, store: str) -> list[Event]:
    """Return about this many events of one job, the last of them in the last two months.

    The events of a live job end now, in a training attempt. All checkpoints are in `store`.
    """
    ago_s = 60.0 if is_live else random.Random(number).uniform(600, 60 * 86_400)
    whole = _story(number, events, 0.0, is_live=is_live, store=store)
    begin_s = (now - whole[-1].at).total_seconds() - ago_s
    return _story(number, events, begin_s, is_live=is_live, store=store)


def _story(number: int, events: int, begin_s: float, *, is_live: bool, store: str) -> list[Event]:
    rng = random.Random(number)
    facts = [_submitted(rng, number, begin_s, store), launched(begin_s + 1)]
    now_s, step, attempt = begin_s + 60.0, 0, 0
    while len(facts) < events - 2:
        attempt += 1
        room = events - len(facts)
        reported, now_s, step = _attempt(rng, attempt, now_s, step, room)
        facts += reported
    if is_live:
        return facts[:-1] if type(facts[-1]).__name__ == "CapacityLost" else facts
    outcome = rng.choice([Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED])
    return [*facts, finished(now_s + 5, outcome, exit_code=0 if outcome == "succeeded" else 1)]


def _submitted(rng: random.Random, number: int, seconds: float, store: str) -> Submitted:
    tags = {"team": rng.choice(TEAMS), "kind": f"sweep-{number % 7}"}
    checkpoint = {"store": store, "every": "auto"}
    name = f"train-{number:04d}"
    event = new_submission(seconds, name=name, infra="aws", checkpoint=checkpoint, tags=tags)
    return replace(event, by=rng.choice(OWNERS), project=rng.choice(PROJECTS))


def _attempt(
    rng: random.Random, attempt: int, now_s: float, step: int, room: int
) -> tuple[list[Event], float, int]:
    """Return one placement from its denials to its loss, its end, and the step of the next one."""
    zone, facts = rng.choice(ZONES), list[Event]()
    for _ in range(rng.choice((0, 0, 1, 2))):
        facts.append(denied(now_s, zone=rng.choice(ZONES)))
        now_s += 30
    now_s += rng.uniform(60, 900)
    facts.append(_ready(rng, now_s, attempt, zone))
    facts.append(replace(restoring(now_s + 90, attempt=attempt), store_place="aws/us-east-2"))
    facts.append(training(now_s + 120, attempt=attempt, step=step, total=100_000))
    now_s, safe, puts = now_s + 120, step, 0
    for _ in range(min(rng.randrange(3, 30), max(1, room - len(facts) - 2))):
        interval_s = rng.uniform(300, 900)
        now_s, safe = now_s + interval_s, safe + int(interval_s / STEP_S)
        puts += 900
        usage = StoreCounts(puts=puts, lists=puts // 100, uploaded_bytes=puts * 2**24)
        made = {"size_bytes": 900 * 2**24, "store_usage": usage}
        facts.append(
            saved(now_s, attempt=attempt, step=safe, stall_ms=300, durable_s=now_s + 9, **made)
        )
        if rng.random() < KEPT:
            continue
        name = facts[-1].checkpoint  # type: ignore[attr-defined]
        gone = CheckpointsRemoved(
            at=at(now_s + 60), checkpoints=(name,), removal=Removal.SUPERSEDED, size_bytes=1
        )
        facts.append(gone)
    cause = rng.choice((Cause.PREEMPTED, Cause.PREEMPTED, Cause.NODE_FAILED))
    now_s += rng.uniform(10, 400)
    return [*facts, lost(now_s, attempt=attempt, cause=cause)], now_s, safe


def _ready(rng: random.Random, seconds: float, attempt: int, zone: str) -> NodesReady:
    event = ready(seconds, attempt=attempt, zone=zone, micros=rng.randrange(9_000_000, 20_000_000))
    return replace(
        event,
        cloud="aws",
        nodes=2,
        instance_type=rng.choice(KINDS),
        on_demand_micros_per_hour=32_770_000,
    )


def points(facts: list[Event], most: int) -> Iterator[dict[str, Any]]:
    """Rows of `metric_points` without their job: this many of each attempt that trained."""
    for fact in facts:
        if type(fact).__name__ != "TrainingStarted":
            continue
        reported: Any = fact
        for n in range(1, most + 1):
            values = {"loss": 2.0 / n, "lr": 3e-4, "samples_per_s": 812.5}
            when = reported.at + timedelta(seconds=n)
            row = {"attempt": reported.attempt, "n": n, "at": when, "step": reported.step + n}
            yield {**row, "values": values}


__all__ = ["at", "points", "story"]
