"""Plans and forecasts in sentences. Pure.

Amounts and probabilities have two significant digits, as no forecast supports more. Times are in UTC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.domain.events.planning import CapacityType, PlanForecast, Planned, PlanReason

HOUR_S: Final = 3600
_WEEK: Final = timedelta(days=6)
"""Time within which a day is named by its weekday."""
NAMES: Final = {
    "ours": "with this plan",
    "spot": "spot only",
    "on_demand": "on-demand only",
}
"""Alternatives of a forecast by their names."""
_ON_DEMAND_REASONS: Final = {
    PlanReason.BEHIND_SCHEDULE: "progress is behind schedule",
    PlanReason.LEAST_EXPECTED_COST: "to wait for spot nodes is expected to cost more",
    PlanReason.WITHIN_BUDGET: "they can do all that is left within the budget",
}
"""Reasons for on-demand nodes other than the deadline."""
_SPOT_REASONS: Final = {
    PlanReason.CHEAPER_PLACE: "cheaper than the place before",
    PlanReason.AHEAD_OF_SCHEDULE: "progress is ahead of schedule",
    PlanReason.OVER_BUDGET: "on-demand nodes would exceed the budget",
    PlanReason.ON_DEMAND_DENIED: "no place has on-demand nodes now",
}
WAITS: Final = frozenset(
    {PlanReason.WAIT_FOR_SPOT, PlanReason.OVER_BUDGET, PlanReason.ON_DEMAND_DENIED}
)
"""Reasons for which a job waits for spot nodes that are not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenNodes:
    """A choice of a plan, as its sentence needs it."""

    at: datetime
    """The moment that the sentence describes."""
    since: datetime
    capacity: CapacityType | None
    places: Sequence[str]
    reason: PlanReason
    remaining_s: float
    slack_s: float | None
    """None without a deadline."""
    start_s: float
    """Time from the loss of spot nodes to the first progress on on-demand nodes."""
    has_nodes: bool
    """Whether nodes run; otherwise they are awaited."""
    zone: str | None = None
    """Where they run, if they do."""
    on_demand: bool = True
    """Whether on-demand nodes may be bought."""

    @classmethod
    def of_plan(cls, planned: Planned) -> ChosenNodes:
        """The choice at the moment at which it was made."""
        waits = planned.reason in WAITS
        return cls(
            at=planned.at,
            since=planned.at,
            capacity=planned.capacity,
            places=planned.places,
            reason=planned.reason,
            remaining_s=planned.remaining_s,
            slack_s=planned.slack_s,
            start_s=planned.changeover_s + planned.market.on_demand_wait_s,
            has_nodes=planned.capacity is not None and not waits,
        )

    @property
    def place(self) -> str:
        """Where the nodes are, or are asked for first."""
        return self.zone or (self.places[0].rsplit("/", 1)[-1] if self.places else "any place")

    @property
    def net_at(self) -> datetime | None:
        """When on-demand nodes are requested at the latest; None if they never are."""
        if self.slack_s is None or not self.on_demand:
            return None
        return self.at + timedelta(seconds=self.slack_s)


def choice_sentence(chosen: ChosenNodes, *, since: bool = True) -> str:
    """What a job runs on, or waits for, and why.

    `since`: whether to say since when.
    """
    when = f" since {moment(chosen.since, chosen.at)}" if since else ""
    match chosen.capacity:
        case CapacityType.ON_DEMAND:
            waits = "waiting for " * (not chosen.has_nodes)
            return f"{waits}on-demand{when}: {_on_demand_reason(chosen)}"
        case CapacityType.SPOT if chosen.has_nodes:
            return f"spot in {chosen.place}{when}: {_spot_reason(chosen)}"
        case CapacityType.SPOT:
            count = len(chosen.places)
            where = f"{count} places" if count != 1 else chosen.place
            why = _SPOT_REASONS.get(chosen.reason)
            return (
                f"waiting for spot in {where}{when}: {why + ', ' if why else ''}{_wait_end(chosen)}"
            )
        case None:
            return (
                f"waiting without nodes{when}: spot nodes end too soon there, {_wait_end(chosen)}"
            )


def _on_demand_reason(chosen: ChosenNodes) -> str:
    left = f"{duration(chosen.remaining_s)} of work left"
    known = _ON_DEMAND_REASONS.get(chosen.reason)
    if chosen.slack_s is None:
        return ", ".join(filter(None, (known, left)))
    until_s = chosen.slack_s + chosen.remaining_s + chosen.start_s
    until = f"{duration(until_s)} until the deadline" if until_s >= 0 else "the deadline has passed"
    cost = f"a lost spot node would cost {duration(chosen.start_s)}"
    return ", ".join(filter(None, (known, left, until, None if known else cost)))


def _spot_reason(chosen: ChosenNodes) -> str:
    known = _SPOT_REASONS.get(chosen.reason)
    slack = f"{duration(chosen.remaining_s)} of work left"
    if chosen.slack_s is not None:
        slack = _slack_text(chosen.slack_s)
    return f"{known}, {slack}" if known else slack


def _slack_text(slack_s: float) -> str:
    return f"{duration(slack_s)} of slack" if slack_s > 0 else "no slack"


def _wait_end(chosen: ChosenNodes) -> str:
    if not chosen.on_demand:
        return "on-demand nodes are not allowed"
    if chosen.reason is PlanReason.ON_DEMAND_DENIED:
        return "they are asked for again later"
    if chosen.net_at is None:
        return "without a deadline"
    return f"on-demand at {moment(chosen.net_at, chosen.at)} at the latest"


def next_sentence(chosen: ChosenNodes) -> str:
    """What would change a choice, and when at the latest."""
    if chosen.capacity is CapacityType.ON_DEMAND:
        return _next_after_on_demand(chosen)
    others = "other spot nodes if these are lost"
    if not chosen.has_nodes:
        others = "spot nodes in any of the places"
    if not chosen.on_demand:
        return others
    if chosen.net_at is None:
        return f"{others}; on-demand nodes when they can do all that is left within the budget"
    if chosen.reason is PlanReason.ON_DEMAND_DENIED:
        after = "if these are lost" if chosen.has_nodes else "after the same wait"
        return f"{others}; on-demand nodes are asked for again {after}"
    latest = f"on-demand nodes at {moment(chosen.net_at, chosen.at)} at the latest"
    if chosen.net_at <= chosen.at:
        latest = "on-demand nodes at the next check"
    return (
        f"{latest}, if nothing is saved until then" if chosen.has_nodes else f"{others}; {latest}"
    )


def _next_after_on_demand(chosen: ChosenNodes) -> str:
    if not chosen.has_nodes:
        return "the on-demand nodes are awaited; they are requested until they are there"
    if chosen.slack_s is not None and chosen.slack_s <= 0:
        return "nothing: only on-demand nodes still keep the deadline"
    spare = "" if chosen.slack_s is None else f", with {_slack_text(chosen.slack_s)}"
    return f"spot nodes, once a try costs less than it saves{spare}"


def forecast_sentence(
    forecasts: Mapping[str, PlanForecast], now: datetime, *, has_deadline: bool, has_budget: bool
) -> str:
    """A forecast in one line, with the cost of on-demand nodes alone; empty without any."""
    ours = forecasts.get("ours")
    if ours is None:
        return ""
    low, high = dollars(ours.cost_p10_usd), dollars(ours.cost_p90_usd)
    parts = [
        f"about {dollars(ours.cost_p50_usd)}" + (f" ({low} to {high})" if low != high else ""),
        f"done {moment(ours.end_p50, now)} (P90 {moment(ours.end_p90, ours.end_p50)})",
    ]
    if has_deadline:
        parts.append(f"{percent(ours.late)} late")
    if has_budget:
        parts.append(f"{percent(ours.over_budget)} over budget")
    other = forecasts.get("on_demand")
    beside = f"; on-demand only: {dollars(other.cost_p50_usd)}" if other else ""
    return ", ".join(parts) + beside


def dollars(usd: float) -> str:
    """An amount with two significant digits."""
    if usd <= 0:
        return "$0"
    digits = 1 - math.floor(math.log10(usd))
    rounded = round(usd, digits)
    return f"${rounded:,.{max(0, digits)}f}" if rounded < 10 else f"${rounded:,.0f}"


def percent(probability: float) -> str:
    """A probability of simulated runs."""
    if probability < 0.01:
        return "under 1 %"
    return f"{probability:.0%}".replace("%", " %") if probability <= 0.99 else "over 99 %"


def duration(seconds: float) -> str:
    """A time in hours, minutes or seconds."""
    if abs(seconds) >= HOUR_S / 2:
        return f"{seconds / HOUR_S:.1f} h"
    return f"{seconds / 60:.0f} min" if abs(seconds) >= 120 else f"{seconds:.0f} s"


def moment(at: datetime, now: datetime) -> str:
    """A time of day, with its day if that is not the one of `now`."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    if at.date() == now.date():
        return f"{at:%H:%M}Z"
    return f"{at:%a %H:%M}Z" if abs(at - now) < _WEEK else f"{at:%Y-%m-%d %H:%M}Z"
