"""Choices of the simple policies: greedy, uniform progress, threshold, fastest, one kind of nodes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from holdfast.domain.events.planning import PlanReason
from holdfast.domain.planning.policies import (
    Fastest,
    Greedy,
    OnDemand,
    SpotOnly,
    Threshold,
    UniformProgress,
)
from holdfast.domain.planning.replay import Beginning, replay
from holdfast.domain.planning.situation import (
    Choice,
    Held,
    Indices,
    PlacementPolicy,
    Reason,
    Situation,
)
from holdfast.domain.planning.survival import Survival
from support.spot_traces import HOUR_S, markets_of, terms_of, trace_of, windows_of

SIGNS = {Held.NOTHING: ".", Held.SPOT: "s", Held.ON_DEMAND: "d"}


def run(
    policy: PlacementPolicy,
    text: str,
    *,
    work: float = 6,
    deadline: float = 12,
    changeover: float = 0.0,
    held: Held = Held.NOTHING,
    **terms: float,
) -> tuple[str, list[Reason]]:
    """What a policy holds in each tick of ten minutes, and why; times are in ticks.

    `held`: at the beginning. A run without a deadline ends after 40 ticks.
    """
    holds, reasons = [], []

    def observe(_: int, __: Situation, choice: Choice, rows: Indices) -> None:
        if len(rows):
            holds.append(SIGNS[Held(int(choice.holds[0]))])
            reasons.append(Reason(int(choice.reason[0])))

    window = windows_of(
        0, work_s=work * 600, deadline_s=deadline * 600, changeover_s=changeover * 600
    )
    replay(
        policy,
        markets_of(trace_of(text)),
        window,
        terms_of(**terms),
        [observe],
        begin=Beginning(held=held, place=0),
        ticks=40 if deadline == math.inf else None,
    )
    return "".join(holds), reasons


def test_on_demand_never_takes_spot_nodes() -> None:
    assert run(OnDemand(), "1" * 12)[0] == "d" * 6


def test_greedy_waits_until_the_latest_moment() -> None:
    holds, reasons = run(Greedy(), "110000000000", changeover=0.5)

    # 1.5 ticks of work are done. The rest takes 5.5 ticks with two starts; from tick 6 on there are six.
    assert holds == "ss....ddddd"
    assert reasons[:3] == [Reason.SPOT_IS_AVAILABLE, Reason.SPOT_STANDS, Reason.WAIT_FOR_SPOT]
    assert reasons[6] == Reason.SAFETY_NET


def test_greedy_keeps_warm_spot_nodes_beyond_the_net() -> None:
    holds, reasons = run(Greedy(), "0000011111111", work=6, deadline=12)

    assert holds == ".....ssssss"
    assert Reason.SAFETY_NET not in reasons


def test_uniform_progress_buys_when_it_is_behind() -> None:
    holds, reasons = run(UniformProgress(), "0" * 13)

    # It is behind at the second tick, and stays on on-demand nodes as none of spot are there.
    assert holds == ".dddddd"
    assert reasons[1] == Reason.BEHIND_SCHEDULE
    assert reasons[2] == Reason.ON_DEMAND_STANDS


def test_uniform_progress_returns_to_spot_when_it_is_ahead() -> None:
    holds, reasons = run(UniformProgress(), "000111111111")

    # After two ticks on demand, two of six are done in three of twelve.
    assert holds == ".ddssss"
    assert reasons[3] == Reason.AHEAD_OF_SCHEDULE


def test_uniform_progress_returns_only_with_time_for_two_starts() -> None:
    holds, _ = run(UniformProgress(), "0001111111111", changeover=0.5, deadline=13)

    rate = 6 / 13
    progress, at = 0.5 + 1 * (holds.count("d") - 1), len(holds.partition("s")[0])
    assert "s" not in holds or progress > (at + 2 * 0.5) * rate


def test_threshold_buys_when_slack_is_short() -> None:
    holds, reasons = run(Threshold(0.5), "0" * 12)

    # The slack of six ticks falls below half of the work of six at tick 4: two are left.
    assert holds == "....dddddd"
    assert reasons[4] == Reason.BEHIND_SCHEDULE


def test_threshold_takes_spot_nodes_from_on_demand_ones() -> None:
    holds, reasons = run(Threshold(2.0), "0001111")

    assert holds == "dddsss"
    assert reasons[3] == Reason.SPOT_IS_AVAILABLE


def test_exact_net_allows_the_last_idle_tick() -> None:
    holds, reasons = run(Threshold(0.0), "0" * 12, changeover=0.5)

    # 6.5 ticks on demand take seven whole ones.
    assert holds == "....." + "d" * 7
    assert reasons[5] in {Reason.SAFETY_NET, Reason.BEHIND_SCHEDULE}


def test_without_sight_the_return_is_a_try() -> None:
    """The spot node that is tried is not there; the tick passes idle and unpaid."""
    holds, _ = run(UniformProgress(), "0" * 30, work=6, deadline=20, sees_all=False)

    assert "s" in holds  # It chose spot nodes, and got none.
    assert holds.endswith("d")


@pytest.mark.parametrize("policy", [Greedy(), UniformProgress(), Threshold()], ids=lambda p: p.name)
def test_wait_for_on_demand_nodes_moves_the_net(policy: PlacementPolicy) -> None:
    waits, _ = run(policy, "0" * 30, work=6, deadline=20, on_demand_wait_s=1800)
    none, _ = run(policy, "0" * 30, work=6, deadline=20)

    assert len(waits) <= 20
    assert waits.index("d") <= none.index("d")


def test_choices_of_rows_have_one_type() -> None:
    for policy in (OnDemand(), Greedy(), UniformProgress(), Threshold()):
        dtypes = set()
        replay(
            policy,
            markets_of(trace_of("01" * 20)),
            windows_of(0, 3, work_s=3000, deadline_s=9000, changeover_s=100),
            terms_of(),
            [lambda _, __, choice, ___, seen=dtypes: seen.add(choice.holds.dtype)],  # type: ignore[misc]
        )
        assert dtypes == {np.dtype(np.int8)}


@pytest.mark.parametrize("policy", [UniformProgress(), Threshold(), Survival()])
def test_unseen_spot_nodes_are_tried(policy: PlacementPolicy) -> None:
    """On-demand nodes are given back for spot nodes that are not seen, and a try that finds none costs a tick."""
    market = markets_of(trace_of("0" * 24 + "1" * 400))
    window = windows_of(0, work_s=30 * HOUR_S, deadline_s=40 * HOUR_S, changeover_s=0)

    runs = replay(policy, market, window, terms_of(sees_all=False))

    assert runs.spot_s[0] > 0
    assert runs.finish_s[0] <= 40 * HOUR_S


def test_blind_policy_knows_nothing_that_it_has_not_met() -> None:
    """The same market, but for spot nodes that come and go while on-demand nodes are held."""
    chosen = []
    window = windows_of(0, work_s=5 * HOUR_S, deadline_s=6 * HOUR_S, changeover_s=300)
    for hidden in "01":
        held: list[int] = []
        market = markets_of(trace_of("0" * 4 + hidden * 3 + "0" * 60))
        observe = [lambda *args, held=held: held.extend(args[2].holds.tolist())]
        replay(Threshold(), market, window, terms_of(sees_all=False), observe)
        chosen.append(held)

    assert chosen[0] == chosen[1]


def test_reasons_of_events_are_those_of_policies() -> None:
    """Those of choices that are made for policies are not among them."""
    *shared, denied = PlanReason

    assert [each.name for each in shared] == [each.name for each in Reason]
    assert denied is PlanReason.ON_DEMAND_DENIED


def test_spot_alone_waits_beyond_the_deadline() -> None:
    holds, reasons = run(SpotOnly(), "0" * 14 + "1" * 9, deadline=12)

    assert holds == "." * 14 + "s" * 6
    assert {*reasons[:14]} == {Reason.WAIT_FOR_SPOT}


def test_spot_alone_gives_on_demand_nodes_back() -> None:
    for sees_all in (True, False):
        holds, _ = run(SpotOnly(), "0011111111", held=Held.ON_DEMAND, sees_all=sees_all)

        assert holds == "..ssssss"


DEAR_USD = 6 * 0.5
"""Six ticks on demand."""


def test_fastest_takes_what_is_there_within_the_budget() -> None:
    holds, reasons = run(Fastest(), "001111", budget_usd=DEAR_USD)

    # It stays on what trains.
    assert holds == "dddddd"
    assert reasons[0] == Reason.WITHIN_BUDGET
    assert {*reasons[1:]} == {Reason.ON_DEMAND_STANDS}


def test_fastest_prefers_spot_nodes_that_are_there() -> None:
    holds, reasons = run(Fastest(), "110000", budget_usd=DEAR_USD)

    assert holds == "ssdddd"
    assert reasons[:3] == [
        Reason.SPOT_IS_AVAILABLE,
        Reason.SPOT_STANDS,
        Reason.WITHIN_BUDGET,
    ]


def test_fastest_waits_where_the_budget_is_too_small() -> None:
    holds, reasons = run(Fastest(), "000111000111", budget_usd=DEAR_USD - 0.1, deadline=30)

    # After three ticks on spot nodes, the rest fits.
    assert holds == "...sssddd"
    assert {*reasons[:3]} == {Reason.OVER_BUDGET}
    assert reasons[6] == Reason.WITHIN_BUDGET


def test_fastest_leaves_on_demand_nodes_that_exceed_the_budget() -> None:
    holds, reasons = run(
        Fastest(), "1" * 9, held=Held.ON_DEMAND, budget_usd=DEAR_USD - 0.1, deadline=30
    )

    assert holds == "ssssss"
    assert reasons[0] == Reason.OVER_BUDGET


def test_budget_of_fastest_includes_the_start() -> None:
    without, _ = run(Fastest(), "0" * 60, budget_usd=DEAR_USD, deadline=30)
    with_start, _ = run(Fastest(), "0" * 60, budget_usd=DEAR_USD, deadline=30, changeover=0.5)

    assert (without[0], with_start[0]) == ("d", ".")


def test_deadline_counts_more_than_the_budget() -> None:
    holds, reasons = run(Fastest(), "0" * 20, budget_usd=0.0)

    assert holds == "......dddddd"
    assert reasons[6] == Reason.SAFETY_NET


@pytest.mark.parametrize(
    "policy",
    [SpotOnly(), Greedy(), UniformProgress(), Threshold(), Survival()],
    ids=lambda policy: policy.name,
)
@pytest.mark.parametrize("sees_all", [True, False])
@pytest.mark.filterwarnings("error")
def test_without_deadline_spot_nodes_are_awaited(
    policy: PlacementPolicy, *, sees_all: bool
) -> None:
    holds, _ = run(policy, "0" * 30 + "1" * 9, deadline=math.inf, sees_all=sees_all)

    assert holds == "." * 30 + "s" * 6


@pytest.mark.parametrize("policy", [OnDemand(), Fastest()], ids=lambda policy: policy.name)
@pytest.mark.filterwarnings("error")
def test_without_deadline_on_demand_nodes_are_taken(policy: PlacementPolicy) -> None:
    assert run(policy, "0" * 30, deadline=math.inf)[0] == "dddddd"
