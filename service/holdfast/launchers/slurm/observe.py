"""How the books of a launch are seen. Pure: the same books give the same sighting, whoever reads them."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import (
    Denial,
    LaunchResult,
    LaunchStatus,
    Observation,
    Placement,
)
from holdfast.launchers.slurm.launch_state import Fact, LaunchState


def observe(books: LaunchState, now: datetime) -> Observation:
    """The launch as its books tell it."""
    if not books.is_known:
        return Observation(standing=LaunchStatus.ABSENT, since=now)
    lost = books.numbered("lost")
    trail = tuple(
        _placement(books, fact, lost.get(number))
        for number, fact in books.numbered("placed").items()
    )
    standing, since, ending = LaunchStatus.WAITING, now, None
    if trail:
        is_up = trail[-1].lost_at is None
        standing = LaunchStatus.UP if is_up else LaunchStatus.WAITING
        since = trail[-1].lost_at or trail[-1].ready_at
    if fact := books.facts.get("ended"):
        ending = _ending(fact)
        standing, since = LaunchStatus.ENDED, ending.at
    elif fact := books.facts.get("forgotten"):
        standing, since = LaunchStatus.FORGOTTEN, at(fact)
    return Observation(
        standing=standing,
        since=since,
        placements=len(trail),
        trail=trail,
        denials=_denials(books),
        ending=ending,
    )


def at(fact: Fact) -> datetime:
    """When a fact came about."""
    return datetime.fromtimestamp(round(float(fact["at"]), 3), UTC)


def _placement(books: LaunchState, fact: Fact, lost: Fact | None) -> Placement:
    nodes, price = len(fact["nodes"].split()), int(books.order["micros_per_node_hour"])
    return Placement(
        ready_at=at(fact),
        zone=_zone(fact.get("cluster", ""), fact.get("partition", "")),
        nodes=nodes,
        micros_per_hour=nodes * price,
        on_demand_micros_per_hour=nodes * price,
        simulated=True,
        instance_type="slurm",
        lost_at=at(lost) if lost else None,
        cause=Cause(lost["cause"]) if lost else None,
        detail=lost.get("detail", "") if lost else "",
    )


def _zone(cluster: str, partition: str) -> str:
    return "/".join(part for part in ("slurm", cluster, partition) if part)


def _denials(books: LaunchState) -> tuple[Denial, ...]:
    zone = _zone("", str(books.order.get("partition") or ""))
    found = [
        Denial(at=at(fact), zone=zone, detail=f"Slurm lets it wait: {name.partition('.')[2]}")
        for name, fact in books.facts.items()
        if name.startswith("denied.")
    ]
    return tuple(sorted(found, key=lambda denial: (denial.at, denial.detail)))


def _ending(fact: Fact) -> LaunchResult:
    return LaunchResult(
        at=at(fact),
        outcome=Outcome(fact["outcome"]),
        exit_code=int(fact["exit_code"]) if fact["exit_code"] else None,
        detail=fact.get("detail", ""),
    )
