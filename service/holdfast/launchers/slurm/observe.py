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
from holdfast.domain.pricing.slurm_prices import SlurmPrices
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
    zone = _zone(state, fact.get("cluster", ""), fact.get("partition", ""))
    nodes, price = len(fact["nodes"].split()), _prices(state).micros_per_node_hour(zone)
    return Placement(
        ready_at=at(fact),
        zone=zone,
        nodes=nodes,
        micros_per_hour=nodes * price,
        on_demand_micros_per_hour=nodes * price,
        simulated=True,
        instance_type="slurm",
        is_spot=state.order.get("is_spot"),
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


def _zone(state: LaunchState, cluster: str, partition: str) -> str:
    """Return a partition as job files name it, with the QOS if the job's file does."""
    order = state.order
    parts = ("slurm", order.get("cluster") or cluster, partition, partition and order.get("qos"))
    return "/".join(part for part in parts if part)


def _prices(state: LaunchState) -> SlurmPrices:
    order = state.order
    return SlurmPrices(int(order["micros_per_node_hour"]), order.get("prices") or {})


def _denials(state: LaunchState) -> tuple[Denial, ...]:
    """Return a denial for each reason and each partition that the job waits for."""
    partitions = str(state.order.get("partition") or "").split(",")
    found = [
        Denial(
            at=at(fact),
            zone=_zone(state, "", partition),
            detail=f"waiting in Slurm: {name.partition('.')[2]}",
        )
        for name, fact in state.facts.items()
        if name.startswith("denied.")
        for partition in partitions
    ]
    return tuple(sorted(found, key=lambda denial: (denial.at, denial.detail, denial.zone)))


def _ending(fact: Fact) -> LaunchResult:
    return LaunchResult(
        at=at(fact),
        outcome=Outcome(fact["outcome"]),
        exit_code=int(fact["exit_code"]) if fact["exit_code"] else None,
        detail=fact.get("detail", ""),
    )
