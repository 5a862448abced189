"""Where a job runs next: its situation as a policy sees it, and the choice as a plan. Pure.

Progress is what complete checkpoints hold. Time is counted in ticks from the submission, and a look between two ticks sees the time of the
earlier one, so that a plan made twice within a tick is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from holdfast.domain.events import (
    CapacityType,
    MarketState,
    PlaceState,
    PlanForecast,
    Planned,
    PlanReason,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.plan import PlanSpec
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.planning.outlook import JobOutlook
from holdfast.domain.planning.situation import (
    Beliefs,
    Held,
    PlacementPolicy,
    Reason,
    Situation,
)

POLICY_VERSION: Final = 1
"""Version of the policies. Raise it if the same situation yields another choice, so that stored plans name the one that made them."""
SHORT_INTERVAL_S: Final = 60.0
"""Checkpoint interval below which work that is not saved is not counted as a risk.
A lower value requests on-demand nodes earlier; a higher value ignores work that a preemption can cost."""
NEVER_SEEN_S: Final = 1e9
"""Age of what was never seen, which is finite so that sums are."""
REASONS: Final = {reason: PlanReason[reason.name] for reason in Reason}

Forecast = Callable[["PlanInputs", Planned], PlanForecast]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanInputs:
    """All that a plan follows from, in seconds and USD."""

    job: Job
    plan: PlanSpec
    market: MarketState
    now: datetime
    deadline_at: datetime | None
    budget_usd: float | None

    @property
    def step_s(self) -> float | None:
        """Time of a step; None if neither measured nor known from the job file."""
        if self.job.pace.step_s:
            return self.job.pace.step_s
        if self.plan.work_s and self.job.total_steps:
            return self.plan.work_s / self.job.total_steps
        return None

    @property
    def is_work_known(self) -> bool:
        """Whether steps were measured, or the job file says how much work there is."""
        return bool(self.plan.work_s or (self.step_s and self.job.total_steps))

    @property
    def work_s(self) -> float:
        """Training time of the whole job without interruptions, as measured."""
        if self.step_s and self.job.total_steps:
            return self.step_s * self.job.total_steps
        assert self.plan.work_s, "a job file with a plan says how much work there is"
        return float(self.plan.work_s)

    @property
    def saved_s(self) -> float:
        """Of it, what complete checkpoints hold."""
        step = max(self.job.last_checkpoint_step or 0, self.job.pace.restored_step)
        return min(self.work_s, (self.step_s or 0.0) * step)

    @property
    def margin_s(self) -> float:
        """Time in reserve that the job file asks for."""
        return float(self.plan.margin_s)

    @property
    def changeover_s(self) -> float:
        """Time without progress of a start, with the margin."""
        return self.market.changeover_s + self.margin_s

    @property
    def lost_work_s(self) -> float:
        """What the loss of a spot node costs at most, beyond the margin."""
        interval_s = self.job.pace.interval_ms / 1000
        return max(0.0, interval_s - max(self.margin_s, SHORT_INTERVAL_S))

    @property
    def elapsed_s(self) -> float:
        """Time from the submission to the last tick."""
        elapsed_s = (self.now - self.job.submitted_at).total_seconds()
        return elapsed_s // self.market.tick_s * self.market.tick_s

    @property
    def deadline_s(self) -> float:
        """Time from the submission to the deadline; infinite without one."""
        if self.deadline_at is None:
            return float("inf")
        return (self.deadline_at - self.job.submitted_at).total_seconds()

    @property
    def paid_usd(self) -> float:
        """What the job has cost until now."""
        return self.job.account.paid_micros_by(self.now) / 1e6

    @property
    def left_usd(self) -> float:
        """What may still be paid; infinite without a budget."""
        return float("inf") if self.budget_usd is None else self.budget_usd - self.paid_usd

    @property
    def offers(self) -> tuple[PlaceState, ...]:
        """The places with spot nodes, in the order of the job file."""
        return tuple(p for p in self.market.places if p.spot_usd_per_hour is not None)

    @property
    def on_demand_places(self) -> tuple[PlaceState, ...]:
        """The places with on-demand nodes, the cheapest first."""
        sold = (p for p in self.market.places if p.on_demand_usd_per_hour is not None)
        return tuple(sorted(sold, key=lambda p: p.on_demand_usd_per_hour or 0.0))

    @property
    def may_buy_on_demand(self) -> bool:
        """Whether on-demand nodes are wanted and sold."""
        return self.plan.on_demand and bool(self.on_demand_places)

    @property
    def on_demand_usd_per_hour(self) -> float:
        """The least price of on-demand nodes; that of the dearest spot nodes if none are sold."""
        if self.on_demand_places:
            return self.on_demand_places[0].on_demand_usd_per_hour or 0.0
        return max((p.spot_usd_per_hour or 0.0 for p in self.offers), default=0.0)

    @property
    def held(self) -> Held:
        """What the job holds, or what its launch will surely get."""
        placement = self.job.placement
        if placement is None or not self.job.is_launched or self.job.state is State.QUEUED:
            return Held.NOTHING
        if placement.capacity is CapacityType.ON_DEMAND:
            return Held.ON_DEMAND
        if self.job.placed:
            return Held.SPOT
        # On a market that is seen, a request in a place with nodes has them a moment later.
        place = self.place
        is_coming = self.market.sees_all and place >= 0 and self.offers[place].is_available
        return Held.SPOT if is_coming and self.job.state is State.PROVISIONING else Held.NOTHING

    @property
    def place(self) -> int:
        """The index of the place of what is held or was held last; -1 without any."""
        job = self.job
        if job.placement is None or job.placement.capacity is not CapacityType.SPOT:
            return -1
        names = [offer.name for offer in self.offers]
        asked = [names.index(name) for name in job.placement.places if name in names]
        if job.placed and job.zone:
            around = [(_specificity(names[index], job.zone), -index) for index in asked]
            if around and max(around)[0]:
                return -max(around)[1]
        return next(iter(asked), -1)

    @property
    def warm_up_s(self) -> float:
        """What is left of the time in which what is held makes no progress, without the margin."""
        job = self.job
        if (
            self.held is Held.NOTHING
            or job.started_attempt >= job.attempt > job.attempts_before_launch
        ):
            return 0.0
        begun_at = job.account.placed_at if job.placed else job.plan and job.plan.since
        waited_s = (self.now - begun_at).total_seconds() if begun_at else 0.0
        return max(0.0, self.market.changeover_s - waited_s)

    @property
    def is_on_demand_denied(self) -> bool:
        """Whether on-demand nodes were denied for longer than they are awaited.

        Spot nodes are requested for as long, or kept until they are lost.
        """
        job = self.job
        if job.plan is None or not job.is_launched:
            return False
        asked_s = (self.now - job.plan.since).total_seconds()
        is_over = asked_s > self.market.on_demand_wait_s + self.changeover_s
        if job.plan.reason is PlanReason.ON_DEMAND_DENIED:
            return job.placed or not is_over
        return self.held is Held.ON_DEMAND and not job.placed and bool(job.denials) and is_over

    def outlook_without_nodes(self) -> JobOutlook:
        """The job at this moment, as its forecast needs it if no nodes are held or requested."""
        return JobOutlook(
            now=self.now,
            submitted_at=self.job.submitted_at,
            deadline_at=self.deadline_at,
            budget_usd=self.budget_usd,
            paid_usd=self.paid_usd,
            remaining_s=self.work_s - self.saved_s,
            work_s=self.work_s,
            margin_s=self.margin_s,
            lost_work_s=self.lost_work_s,
            on_demand=self.plan.on_demand,
        )

    def outlook(self, planned: Planned) -> JobOutlook:
        """The job at this moment, as its forecast needs it, with what its plan now chooses."""
        held = self.held
        starts = planned.capacity is not _CAPACITY[held] and planned.capacity is not None
        is_on_demand = planned.capacity is CapacityType.ON_DEMAND
        wait_s = self.market.on_demand_wait_s if is_on_demand and starts else 0.0
        is_held = is_on_demand or held is Held.SPOT
        start_s = self.market.changeover_s if starts and is_held else self.warm_up_s
        return replace(
            self.outlook_without_nodes(),
            held=planned.capacity if is_held else None,
            place=next(iter(planned.places), None) if is_held else None,
            warm_up_s=start_s + wait_s,
        )


def _specificity(place: str, zone: str) -> int:
    """How many characters of a zone its place names; 0 if it names another one."""
    last = place.partition("#")[0].split("/")[-1]
    return max(len(last) * part.startswith(last) for part in zone.lower().split("/"))


_CAPACITY: Final = {
    Held.NOTHING: None,
    Held.SPOT: CapacityType.SPOT,
    Held.ON_DEMAND: CapacityType.ON_DEMAND,
}


def situation_of(inputs: PlanInputs) -> Situation:
    """The situation of a job, as one row."""
    offers, market, held = inputs.offers, inputs.market, inputs.held
    row = np.zeros(1, np.intp)
    regions = list(dict.fromkeys(offer.region for offer in offers))
    return Situation(
        row=row,
        tick_s=market.tick_s,
        elapsed_s=np.array([inputs.elapsed_s]),
        deadline_s=np.array([inputs.deadline_s]),
        work_s=np.array([inputs.work_s]),
        progress_s=np.array([inputs.saved_s]),
        at_risk_s=np.zeros(1),
        risk_s=inputs.lost_work_s,
        held=np.array([held], np.int8),
        place=np.array([inputs.place]),
        warm_up_s=np.array([inputs.warm_up_s]),
        changeover_s=np.array([inputs.changeover_s]),
        on_demand_wait_s=market.on_demand_wait_s,
        available=np.array([[_is_available(inputs, offer) for offer in offers]], np.bool_),
        sees_all=market.sees_all,
        unseen_s=np.array([_unseen_s(inputs)]),
        spot_price=np.array([[offer.spot_usd_per_hour or 0.0 for offer in offers]]),
        on_demand_price=inputs.on_demand_usd_per_hour,
        region=np.array([[regions.index(offer.region) for offer in offers]]),
        egress_usd=market.egress_usd,
        budget_usd=np.array([inputs.left_usd]),
        recall=lambda: Beliefs(
            age_s=np.array([[offer.age_s for offer in offers]]),
            loss=np.array([[offer.loss for offer in offers]]),
            returns=np.array([[offer.returns for offer in offers]]),
        ),
    )


def _is_available(inputs: PlanInputs, offer: PlaceState) -> bool:
    """Whether spot nodes are seen in a place: by its recording, or by a launch of the last tick."""
    if inputs.market.sees_all:
        return bool(offer.is_available)
    if inputs.held is Held.SPOT:
        return offer is inputs.offers[inputs.place]
    if inputs.held is Held.NOTHING and inputs.job.is_launched:
        return False  # The request that waits has found none.
    return bool(offer.is_available) and _seen_s(inputs, offer) < inputs.market.tick_s


def _unseen_s(inputs: PlanInputs) -> float:
    """Time since the availability of any place was last seen; 0 where it is seen."""
    if inputs.market.sees_all or (inputs.job.is_launched and inputs.held is not Held.ON_DEMAND):
        return 0.0
    seen_s = min((_seen_s(inputs, offer) for offer in inputs.offers), default=NEVER_SEEN_S)
    given_up = inputs.job.plan.since if inputs.job.plan and inputs.job.is_launched else None
    if given_up:  # Its own launches have seen spot nodes until then.
        seen_s = min(seen_s, (inputs.now - given_up).total_seconds())
    return 0.0 if seen_s < inputs.market.tick_s and inputs.job.is_launched else seen_s


def _seen_s(inputs: PlanInputs, offer: PlaceState) -> float:
    return (inputs.now - offer.seen_at).total_seconds() if offer.seen_at else NEVER_SEEN_S


@dataclass(frozen=True, slots=True)
class PlacementPlanner:
    """Plans one job with a policy, on the market of a moment."""

    plan_spec: PlanSpec
    limits: Limits
    market: MarketState
    policy: PlacementPolicy
    forecast: Forecast | None = None

    def inputs(self, job: Job, now: datetime) -> PlanInputs:
        """What a plan of this moment follows from."""
        cap = self.limits.max_cost_micros
        return PlanInputs(
            job=job,
            plan=self.plan_spec,
            market=self.market,
            now=now,
            deadline_at=self.limits.deadline_at(job.submitted_at),
            budget_usd=None if cap is None else cap / 1e6,
        )

    def plan(self, job: Job, now: datetime) -> Planned:
        """What the job should run on now, without a forecast."""
        inputs = self.inputs(job, now)
        situation = situation_of(inputs)
        capacity, places, reason = _chosen(inputs, situation, self.policy)
        slack_s = None
        if inputs.deadline_at is not None:
            left_s = inputs.deadline_s - (now - job.submitted_at).total_seconds()
            slack_s = left_s - float(situation.remaining_s[0] + situation.on_demand_start_s[0])
        return Planned(
            at=now,
            capacity=capacity,
            places=places,
            reason=reason,
            remaining_s=float(situation.remaining_s[0]),
            slack_s=slack_s,
            net_at=None if slack_s is None else now + timedelta(seconds=slack_s),
            changeover_s=inputs.changeover_s,
            policy=self.policy.name,
            policy_version=POLICY_VERSION,
            market=self.market,
        )

    def with_forecast(self, job: Job, planned: Planned) -> Planned:
        """The plan with its forecast; unchanged without a forecaster."""
        if self.forecast is None:
            return planned
        inputs = self.inputs(job, planned.at)
        return replace(planned, forecast=self.forecast(inputs, planned))

    def ms_until_look(self, job: Job, now: datetime) -> int:
        """Milliseconds until the next tick."""
        tick_ms = int(self.market.tick_s * 1000)
        elapsed_ms = int((now - job.submitted_at).total_seconds() * 1000)
        return tick_ms - elapsed_ms % tick_ms


def _chosen(
    inputs: PlanInputs, situation: Situation, policy: PlacementPolicy
) -> tuple[CapacityType | None, tuple[str, ...], PlanReason]:
    """The capacity, the places and the reason of a policy's choice."""
    offers = inputs.offers
    plan = inputs.job.plan
    is_unpriced = not inputs.on_demand_places
    if not offers and plan and (is_unpriced or (inputs.job.placed and plan.waits)):
        return (
            plan.capacity,
            plan.places,
            plan.reason,
        )  # A place that lost its price keeps its nodes.
    if not offers:
        on_demand = tuple(place.name for place in inputs.on_demand_places)
        return CapacityType.ON_DEMAND, on_demand, PlanReason.SAFETY_NET
    choice = policy.choose(situation)
    holds, reason = Held(int(choice.holds[0])), REASONS[Reason(int(choice.reason[0]))]
    if reason is PlanReason.SPOT_IS_AVAILABLE and not bool(situation.available[0].any()):
        # A request in places that are not seen.
        is_bought = inputs.held is Held.ON_DEMAND
        reason = PlanReason.AHEAD_OF_SCHEDULE if is_bought else PlanReason.WAIT_FOR_SPOT
    if holds is Held.ON_DEMAND and not inputs.may_buy_on_demand:
        holds, reason = Held.NOTHING, PlanReason.WAIT_FOR_SPOT
    elif holds is Held.ON_DEMAND and inputs.is_on_demand_denied:
        holds, reason = Held.NOTHING, PlanReason.ON_DEMAND_DENIED
    if holds is Held.ON_DEMAND:
        return CapacityType.ON_DEMAND, tuple(p.name for p in inputs.on_demand_places), reason
    may_request = inputs.may_buy_on_demand and reason is not PlanReason.ON_DEMAND_DENIED
    if holds is Held.NOTHING and may_request and bool(situation.available[0].any()):
        return None, (), reason
    # An open request costs nothing, and has the nodes as soon as they are there.
    first = int(choice.place[0]) if holds is Held.SPOT else None
    return CapacityType.SPOT, _in_order(offers, first), reason


def _in_order(offers: Sequence[PlaceState], first: int | None) -> tuple[str, ...]:
    """The places by price, one of them first; hints decide between equal prices."""

    def rank(number: int) -> tuple[bool, float, float, float]:
        offer = offers[number]
        preemptions = offer.hint_preemption_rate
        return (
            number != first,
            offer.spot_usd_per_hour or 0.0,
            -(offer.hint or 0.0),
            1.0 if preemptions is None else preemptions,
        )

    return tuple(offers[number].name for number in sorted(range(len(offers)), key=rank))
