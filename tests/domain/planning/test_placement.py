"""What a policy sees of a job, and what its choice means for the job's launches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.events import (
    CapacityType,
    Event,
    LaunchPlacement,
    LaunchRequested,
    MarketState,
    PlanReason,
)
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.domain.planning.placement import REASONS, PlacementPlanner, situation_of
from holdfast.domain.planning.policies import Fastest, Greedy, OnDemand, SpotOnly, UniformProgress
from holdfast.domain.planning.situation import Held, Reason, Situation
from holdfast.domain.planning.survival import Survival
from support.events import at, denied, lost, ready, saved, submitted, training
from support.plans import PLACES, market_state, place_state, planned, planner_of

HOUR = 3600
SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


def asks(seconds: float, capacity: CapacityType = SPOT, *, launch: int = 1) -> LaunchRequested:
    placement = LaunchPlacement(capacity=capacity, places=PLACES)
    return LaunchRequested(at=at(seconds), launch=launch, placement=placement)


def job(*events: Event) -> Job:
    return fold("job-1", (submitted(), *events))


def seen(one: Job, hours: float, market: MarketState | None = None, **plan: str) -> Situation:
    return situation_of(planner_of(market, **plan).inputs(one, at(hours * HOUR)))  # type: ignore[arg-type]


TRAINED = (
    *(planned(0), asks(0), ready(0, zone="us-east-1a"), training(600, total=1000)),
    saved(4200, step=200),
)
"""One hour for 200 of 1000 steps: five hours in all."""


def test_reasons_of_policies_are_those_of_plans() -> None:
    assert {reason.value for reason in REASONS.values()} == {each.name.lower() for each in Reason}


def test_progress_is_what_complete_checkpoints_hold() -> None:
    begins = seen(job(planned(0), asks(0), ready(0), training(600, total=1000)), 1)
    trained = seen(job(*TRAINED), 1.5)

    assert (begins.work_s[0], begins.progress_s[0]) == (5 * HOUR, 0)
    assert (trained.work_s[0], trained.progress_s[0]) == (5 * HOUR, HOUR)


def test_measured_steps_replace_the_work_of_the_file() -> None:
    slow = seen(job(*TRAINED[:-1], saved(7800, step=200)), 3)

    assert (slow.work_s[0], slow.progress_s[0]) == (10 * HOUR, 2 * HOUR)


def test_work_without_a_known_end_is_that_of_the_file() -> None:
    events = (planned(0), asks(0), ready(0), training(600), saved(4200, step=200))

    endless = seen(job(*events), 1.5)

    assert (endless.work_s[0], endless.progress_s[0]) == (5 * HOUR, HOUR)


def test_progress_of_the_parent_counts_once_it_is_restored() -> None:
    starts = replace(training(600, step=400), restored_from="job-0/step-400")

    one = seen(job(planned(0), asks(0), ready(0), starts), 1)

    assert (one.work_s[0], one.progress_s[0]) == (5 * HOUR, 2 * HOUR)


def test_margin_is_part_of_a_start() -> None:
    one = seen(job(), 0, margin="10m")

    assert one.changeover_s[0] == 1200


@pytest.mark.parametrize(("minute", "elapsed_s"), [(0, 0), (9.9, 0), (10, 600), (19, 600)])
def test_looks_between_ticks_see_the_earlier_tick(minute: float, elapsed_s: float) -> None:
    assert seen(job(), minute / 60).elapsed_s[0] == elapsed_s


def test_checkpoint_interval_beyond_the_margin_is_at_risk() -> None:
    assert seen(job(*TRAINED), 1.5).risk_s == HOUR - 60
    assert seen(job(*TRAINED), 1.5, margin="20m").risk_s == HOUR - 1200
    assert seen(job(*TRAINED), 1.5, margin="2h").risk_s == 0


class TestOwnSight:
    """Only what the launches of jobs met is known."""

    def test_running_nodes_show_their_place_alone(self) -> None:
        one = seen(job(planned(0), asks(0), ready(0, zone="us-central1/us-central1-a")), 0.1)

        assert (one.held[0], one.place[0], one.unseen_s[0]) == (Held.SPOT, 1, 0)
        assert one.available.tolist() == [[False, True]]

    def test_open_request_shows_that_nothing_is_there(self) -> None:
        market = market_state(place_state(is_available=True, seen_at=at(0)))
        one = seen(job(planned(0), asks(0), denied(5)), 0.1, market)

        assert (one.held[0], one.unseen_s[0]) == (Held.NOTHING, 0)
        assert not one.available.any()

    def test_on_demand_nodes_show_nothing(self) -> None:
        events = (planned(0, ON_DEMAND), asks(0, ON_DEMAND), ready(60), training(600))

        one = seen(job(*events), 2)

        assert (one.held[0], one.unseen_s[0]) == (Held.ON_DEMAND, 2 * HOUR)
        assert not one.available.any()

    def test_launches_of_other_jobs_show_places(self) -> None:
        market = market_state(
            place_state(is_available=True, seen_at=at(2 * HOUR - 60)),
            place_state(PLACES[1], is_available=True, seen_at=at(HOUR)),
        )
        events = (planned(0, ON_DEMAND), asks(0, ON_DEMAND), ready(60), training(600))

        one = seen(job(*events), 2, market)

        assert one.unseen_s[0] == 0
        assert one.available.tolist() == [[True, False]]

    def test_on_demand_request_counts_as_held_while_it_waits(self) -> None:
        one = seen(job(planned(0, ON_DEMAND), asks(0, ON_DEMAND)), 0.1)

        assert (one.held[0], one.warm_up_s[0]) == (Held.ON_DEMAND, 240)

    def test_first_request_waits_for_nodes_that_nobody_has_seen(self) -> None:
        found = planner_of().plan(job(), at(0))

        assert (found.capacity, found.reason) == (SPOT, PlanReason.WAIT_FOR_SPOT)

    def test_on_demand_nodes_are_given_back_with_time_to_spare(self) -> None:
        events = (planned(0, ON_DEMAND), asks(0, ON_DEMAND), ready(60), training(600))

        found = planner_of().plan(job(*events), at(1.1 * HOUR))

        assert (found.capacity, found.reason) == (SPOT, PlanReason.AHEAD_OF_SCHEDULE)


class TestFullSight:
    """A recorded market shows all places."""

    def market(self, *available: bool) -> MarketState:
        places = zip(PLACES, available, strict=True)
        return market_state(
            *(place_state(name, is_available=there) for name, there in places), sees_all=True
        )

    def test_all_places_are_seen(self) -> None:
        events = (planned(0, ON_DEMAND), asks(0, ON_DEMAND), ready(60), training(600))

        one = seen(job(*events), 2, self.market(False, True))

        assert one.available.tolist() == [[False, True]]
        assert one.unseen_s[0] == 0

    def test_request_in_a_place_with_nodes_has_them(self) -> None:
        one = seen(job(planned(0), asks(0)), 0.1, self.market(True, False))

        assert (one.held[0], one.warm_up_s[0]) == (Held.SPOT, 240)

    def test_lost_nodes_are_not_held(self) -> None:
        events = (planned(0), asks(0), ready(0, zone="us-east-1a"), training(60), lost(600))

        assert seen(job(*events), 0.5, self.market(True, False)).held[0] == Held.NOTHING

    def test_job_that_must_not_take_spot_waits_without_a_request(self) -> None:
        """They would be gone before training begins."""
        places = (place_state(is_available=True, spot_usd_per_hour=2.99),)
        market = market_state(*places, sees_all=True)
        planner = planner_of(market, Waits())

        found = planner.plan(job(), at(0))

        assert (found.capacity, found.places) == (None, ())

    def test_wait_for_nodes_that_are_not_there_is_an_open_request(self) -> None:
        found = planner_of(self.market(False, False), Greedy()).plan(job(), at(0))

        assert (found.capacity, found.reason) == (SPOT, PlanReason.WAIT_FOR_SPOT)
        assert set(found.places) == set(PLACES)

    def test_chosen_place_comes_first(self) -> None:
        found = planner_of(self.market(False, True), Greedy()).plan(job(), at(0))

        assert found.places == PLACES[::-1]
        assert found.reason is PlanReason.SPOT_IS_AVAILABLE


class Waits(SpotOnly):
    """A policy that takes nothing."""

    def choose(self, situation: Situation):  # type: ignore[no-untyped-def]
        choice = super().choose(situation)
        choice.holds[:] = Held.NOTHING
        return choice


def test_plan_says_when_on_demand_nodes_are_due() -> None:
    found = planner_of(margin="10m").plan(job(*TRAINED), at(1.5 * HOUR))

    assert (found.remaining_s, found.changeover_s) == (4 * HOUR, 1200)
    assert found.slack_s == pytest.approx(10 * HOUR - 1.5 * HOUR - 4 * HOUR - 1200)
    assert found.net_at == at(1.5 * HOUR + found.slack_s)


def test_wait_for_on_demand_nodes_starts_them_earlier() -> None:
    market = market_state(on_demand_wait_s=1200.0)

    early = planner_of(market).plan(job(), at(0)).slack_s
    late = planner_of().plan(job(), at(0)).slack_s

    assert early is not None
    assert late is not None
    assert late - early == 1200


@pytest.mark.parametrize("policy", [Greedy(), UniformProgress(), Survival(), OnDemand(), SpotOnly(), Fastest()])  # fmt: skip
@pytest.mark.parametrize("sees_all", [True, False])
def test_on_demand_nodes_are_bought_at_the_net(policy, *, sees_all: bool) -> None:  # type: ignore[no-untyped-def]
    market = market_state(sees_all=sees_all)
    planner = planner_of(market, policy)

    found = planner.plan(job(planned(0), asks(0), denied(5)), at(4.7 * HOUR))

    is_exempt = policy.name == "spot"
    assert found.capacity is (SPOT if is_exempt else ON_DEMAND)
    if not is_exempt:
        assert found.places == PLACES


def test_job_without_on_demand_nodes_waits_for_spot() -> None:
    planner = planner_of(policy=OnDemand(), on_demand=False)

    found = planner.plan(job(), at(9.9 * HOUR))

    assert (found.capacity, found.reason) == (SPOT, PlanReason.WAIT_FOR_SPOT)


def test_places_without_prices_are_not_planned() -> None:
    market = market_state(
        place_state(spot_usd_per_hour=None, on_demand_usd_per_hour=5.0),
        place_state(PLACES[1], on_demand_usd_per_hour=None),
    )

    waits = planner_of(market, Greedy()).plan(job(), at(0))
    buys = planner_of(market, OnDemand()).plan(job(), at(0))

    assert (waits.places, buys.places) == ((PLACES[1],), (PLACES[0],))


def test_job_in_places_without_spot_nodes_buys_at_once() -> None:
    market = market_state(place_state(spot_usd_per_hour=None))

    assert planner_of(market, Greedy()).plan(job(), at(0)).capacity is ON_DEMAND


def test_nodes_are_kept_while_no_price_is_known() -> None:
    unpriced = place_state(spot_usd_per_hour=None, on_demand_usd_per_hour=None)
    planner = planner_of(market_state(unpriced), Greedy())
    runs = (planned(0), asks(0), ready(60), training(600))

    stands = planner.plan(job(*runs), at(HOUR))
    waits = planner.plan(job(*runs, lost(700)), at(HOUR))

    assert (stands.capacity, stands.places) == (SPOT, PLACES)
    assert (waits.capacity, waits.places) == (SPOT, PLACES)


def test_lost_nodes_without_a_spot_price_are_bought() -> None:
    planner = planner_of(market_state(place_state(spot_usd_per_hour=None)), Greedy())
    runs = (planned(0), asks(0), ready(60), training(600))

    assert planner.plan(job(*runs), at(HOUR)).capacity is SPOT
    assert planner.plan(job(*runs, lost(700)), at(HOUR)).capacity is ON_DEMAND


def test_equal_prices_are_ordered_by_hints() -> None:
    market = market_state(place_state(hint=0.1), place_state(PLACES[1], hint=0.9))

    assert planner_of(market, Greedy()).plan(job(), at(0)).places == PLACES[::-1]


@pytest.mark.parametrize("first", [None, 0.5])
def test_equal_hints_are_ordered_by_preemptions(first: float | None) -> None:
    market = market_state(
        place_state(hint=0.7, hint_preemption_rate=first),
        place_state(PLACES[1], hint=0.7, hint_preemption_rate=0.2),
    )

    assert planner_of(market, Greedy()).plan(job(), at(0)).places == PLACES[::-1]


class TestDeniedOnDemand:
    """On-demand nodes are nowhere: spot nodes are requested as well, in turns."""

    planner = planner_of(market_state(on_demand_wait_s=600.0), OnDemand())
    denied_job = job(
        planned(0, ON_DEMAND, reason=PlanReason.SAFETY_NET), asks(0, ON_DEMAND), denied(5)
    )

    def test_request_waits_for_its_time(self) -> None:
        assert self.planner.plan(self.denied_job, at(1200)).capacity is ON_DEMAND

    def test_spot_nodes_are_requested_after_that(self) -> None:
        found = self.planner.plan(self.denied_job, at(1201))

        assert (found.capacity, found.reason) == (SPOT, PlanReason.ON_DEMAND_DENIED)

    def test_request_without_a_denial_waits_on(self) -> None:
        waits = job(planned(0, ON_DEMAND), asks(0, ON_DEMAND))

        assert self.planner.plan(waits, at(5000)).capacity is ON_DEMAND

    def test_spot_request_is_followed_by_another_try(self) -> None:
        tries = advance(self.denied_job, planned(1201, SPOT, reason=PlanReason.ON_DEMAND_DENIED))

        assert self.planner.plan(tries, at(2401)).capacity is SPOT
        assert self.planner.plan(tries, at(2402)).capacity is ON_DEMAND

    def test_spot_nodes_are_kept_until_they_are_lost(self) -> None:
        events = (planned(0, SPOT, reason=PlanReason.ON_DEMAND_DENIED), asks(0), ready(60))

        assert self.planner.plan(job(*events), at(9 * HOUR)).capacity is SPOT


def test_looks_are_at_ticks() -> None:
    planner = planner_of()

    assert planner.ms_until_look(job(), at(0)) == 600_000
    assert planner.ms_until_look(job(), at(599.5)) == 500
    assert planner.ms_until_look(job(), at(600)) == 600_000


def test_outlook_of_a_job_is_that_of_its_new_plan() -> None:
    planner: PlacementPlanner = planner_of(market_state(on_demand_wait_s=300.0), margin="10m")
    inputs = planner.inputs(job(*TRAINED), at(1.5 * HOUR))

    stays = inputs.outlook(planned(0, SPOT))
    buys = inputs.outlook(planned(0, ON_DEMAND))
    waits = planner.inputs(job(), at(0)).outlook(planned(0, SPOT))

    assert (stays.held, stays.place, stays.warm_up_s) == (SPOT, PLACES[0], 0)
    assert (buys.held, buys.warm_up_s) == (ON_DEMAND, 900)
    assert (waits.held, waits.place, waits.warm_up_s) == (None, None, 0)
    assert (stays.remaining_s, stays.work_s, stays.margin_s) == (4 * HOUR, 5 * HOUR, 600)
