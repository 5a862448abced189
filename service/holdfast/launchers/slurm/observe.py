"""Derives an observation from the records of a launch. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import (
    Denial,
    LaunchResult,
    LaunchStatus,
    NodeChange,
    Observation,
    Placement,
)
from holdfast.launchers.slurm.launch_state import Fact, LaunchState


def observe(state: LaunchState, now: datetime) -> Observation:
    """Return the observation of a launch from its records."""
    if not state.is_known:
        return Observation(status=LaunchStatus.ABSENT, since=now)
    lost = state.numbered("lost")
    trail = tuple(
        _placement(state, number, fact, lost.get(number))
        for number, fact in state.numbered("placed").items()
    )
    status, since, ending = LaunchStatus.WAITING, now, None
    if trail:
        is_up = trail[-1].lost_at is None
        status = LaunchStatus.UP if is_up else LaunchStatus.WAITING
        since = trail[-1].lost_at or trail[-1].ready_at
    if fact := state.facts.get("ended"):
        ending = _ending(fact)
        status, since = LaunchStatus.ENDED, ending.at
    elif fact := state.facts.get("forgotten"):
        status, since = LaunchStatus.FORGOTTEN, at(fact)
    return Observation(
        status=status,
        since=since,
        placements=len(trail),
        recent_placements=trail,
        denials=_denials(state),
        result=ending,
    )


def at(fact: Fact) -> datetime:
    """Return the time of a fact."""
    return datetime.fromtimestamp(round(float(fact["at"]), 3), UTC)


def _placement(state: LaunchState, number: int, fact: Fact, lost: Fact | None) -> Placement:
    nodes, price = len(fact["nodes"].split()), int(state.order["micros_per_node_hour"])
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
        node_changes=tuple(_node_changes(state, number, nodes, price)),
    )


def _node_changes(
    state: LaunchState, placement: int, nodes: int, price: int
) -> Iterator[NodeChange]:
    """Yield the losses of single nodes, of which Slurm replaces none within a job."""
    losses = state.node_losses(placement)
    for standing, (node, fact) in zip(reversed(range(nodes)), losses, strict=False):
        yield NodeChange(
            at=at(fact),
            node=node,
            nodes=standing,
            micros_per_hour=standing * price,
            on_demand_micros_per_hour=standing * price,
            cause=Cause.NODE_FAILED,
            detail=fact.get("detail", ""),
        )


def _zone(cluster: str, partition: str) -> str:
    return "/".join(part for part in ("slurm", cluster, partition) if part)


def _denials(state: LaunchState) -> tuple[Denial, ...]:
    zone = _zone("", str(state.order.get("partition") or ""))
    found = [
        Denial(at=at(fact), zone=zone, detail=f"waiting in Slurm: {name.partition('.')[2]}")
        for name, fact in state.facts.items()
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
