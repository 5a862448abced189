"""Replays of runs: accounting of time and cost, losses, waits and places, by hand and in general."""

from __future__ import annotations

import numpy as np
import pytest
from holdfast.domain.planning.policies import Greedy, SpotOnly, Threshold, UniformProgress
from holdfast.domain.planning.replay import Beginning, Runs, Terms, replay
from holdfast.domain.planning.situation import Held
from hypothesis import given
from hypothesis import strategies as st
from support.spot_traces import Scripted, markets_of, terms_of, trace_of, windows_of

HOUR_S = 3600.0


def run(script: str, trace: str, **values: float) -> Runs:
    """Run two hours of work in ticks of one hour, by a script."""
    given = {"work_s": 7200.0, "deadline_s": 36000.0, "changeover_s": 0.0}
    job = {name: values.pop(name, default) for name, default in given.items()}
    market = markets_of(trace_of(trace, HOUR_S))
    return replay(Scripted(script), market, windows_of(0, **job), terms_of(**values))


def test_cost_is_the_price_of_all_ticks_that_were_held() -> None:
    runs = run(".sd", "010")

    assert runs.finish_s.tolist() == [3 * HOUR_S]
    assert (runs.spot_s[0], runs.on_demand_s[0], runs.idle_s[0]) == (HOUR_S, HOUR_S, HOUR_S)
    assert runs.cost_usd.tolist() == [1.0 + 3.0]
    assert (runs.changeovers[0], runs.preemptions[0]) == (2, 1)


def test_start_is_paid_and_makes_no_progress() -> None:
    runs = run("d", "0", changeover_s=900.0)

    assert runs.finish_s.tolist() == [3 * HOUR_S]
    assert (runs.warm_up_s[0], runs.tail_s[0]) == (900.0, 2700.0)
    assert runs.cost_usd.tolist() == [9.0]


def test_changeover_longer_than_a_tick_goes_on() -> None:
    runs = run("s", "1" * 9, changeover_s=1.5 * HOUR_S)

    assert runs.finish_s.tolist() == [4 * HOUR_S]
    assert runs.warm_up_s.tolist() == [1.5 * HOUR_S]


def test_loss_takes_work_since_the_checkpoint_with_it() -> None:
    runs = run("ssd", "110", work_s=3 * HOUR_S, lost_work_s=1800.0)

    assert runs.lost_s.tolist() == [1800.0]
    assert runs.finish_s.tolist() == [4 * HOUR_S]


def test_work_before_the_choice_of_on_demand_nodes_is_saved() -> None:
    runs = run("sd", "11", lost_work_s=1800.0)

    assert runs.lost_s.tolist() == [0.0]
    assert runs.finish_s.tolist() == [2 * HOUR_S]


def test_wait_for_on_demand_nodes_costs_time_alone() -> None:
    runs = run("d", "0", on_demand_wait_s=1.5 * HOUR_S)

    assert runs.finish_s.tolist() == [4 * HOUR_S]
    assert (runs.on_demand_s[0], runs.idle_s[0]) == (2.5 * HOUR_S, 1.5 * HOUR_S)
    assert runs.cost_usd.tolist() == [7.5]


def test_no_spot_node_is_available_after_the_end_of_a_recording() -> None:
    runs = run("sssd", "1")

    assert runs.finish_s.tolist() == [4 * HOUR_S]
    assert runs.preemptions.tolist() == [1]


def test_unknown_ticks_are_not_available() -> None:
    assert run("sssd", "?11").spot_s.tolist() == [2 * HOUR_S]


@pytest.mark.parametrize(("regions", "cost"), [((0, 1), 2.0 + 7.0), ((0, 0), 2.0)])
def test_start_in_another_region_costs_the_transfer(regions: tuple[int, int], cost: float) -> None:
    market = markets_of(
        trace_of("10", HOUR_S), trace_of("01", HOUR_S, "b"), together=True, regions=regions
    )
    window = windows_of(0, work_s=7200, deadline_s=36000, changeover_s=0)

    runs = replay(Greedy(), market, window, terms_of(egress_usd=7.0))

    assert runs.cost_usd.tolist() == [cost]
    assert runs.changeovers.tolist() == [2]


def test_policy_sees_nothing_while_it_holds_on_demand_nodes() -> None:
    policy = Scripted("d.")
    window = windows_of(0, work_s=3 * HOUR_S, deadline_s=1e5, changeover_s=0)
    market = markets_of(trace_of("1111", HOUR_S))

    with pytest.raises(AssertionError, match="scripted did not end"):
        replay(policy, market, window, terms_of(sees_all=False))

    assert [bool(at.is_seen[0]) for at in policy.seen[:3]] == [True, False, True]
    assert [bool(at.available[0, 0]) for at in policy.seen[:3]] == [True, False, True]


def test_policy_sees_only_what_was_before() -> None:
    """Choices before two recordings differ are the same, whatever follows."""
    past = "0110" * 30 + "1" * 20
    policies = (Greedy(), UniformProgress(), Threshold())
    for policy in policies:
        chosen = []
        for future in ("0" * 60, "1" * 60):
            seen: list[int] = []
            replay(
                policy,
                markets_of(trace_of(past + future)),
                windows_of(100, work_s=30_000, deadline_s=40_000, changeover_s=120),
                terms_of(),
                [lambda tick, _, choice, __, seen=seen: seen.append(int(choice.holds[0]))],  # type: ignore[misc]
            )
            chosen.append(seen[:40])
        assert chosen[0] == chosen[1]


def test_rows_do_not_depend_on_each_other() -> None:
    random = np.random.default_rng(5)
    texts = ["".join(random.choice(["0", "1"], 200)) for _ in range(4)]
    traces = [trace_of(text, name=str(number)) for number, text in enumerate(texts)]
    market = markets_of(*traces)
    rows = [(number, start) for number in range(4) for start in (0, 17, 60)]
    job = {"work_s": 20_000.0, "deadline_s": 30_000.0, "changeover_s": 400.0}
    policy = UniformProgress()

    together = replay(
        policy,
        market,
        windows_of(*(start for _, start in rows), market=[at for at, _ in rows], **job),
        terms_of(),
    )
    alone = [
        replay(policy, market, windows_of(start, market=at, **job), terms_of()).cost_usd[0]
        for at, start in rows
    ]

    assert together.cost_usd.tolist() == alone


def assert_balanced(runs: Runs, work_s: float, terms: Terms, spot_usd: float) -> None:
    """All paid time is useful, a changeover, lost, or after the end; the cost is its price."""
    paid_h = (runs.spot_s + runs.on_demand_s) / HOUR_S
    parts_h = (work_s + runs.warm_up_s + runs.lost_s + runs.tail_s) / HOUR_S
    assert np.abs(paid_h - parts_h).max() < 1e-9
    cost_usd = runs.spot_s / HOUR_S * spot_usd
    cost_usd += runs.on_demand_s / HOUR_S * terms.on_demand_usd_per_hour
    assert np.abs(runs.cost_usd - cost_usd).max() < 1e-9


@given(
    text=st.text("01?", min_size=80, max_size=80),
    gap_s=st.sampled_from((32.0, 195.0, 600.0, 3600.0)),
    changeover=st.sampled_from((0.0, 0.12, 1.0, 1.7)),
    lost=st.sampled_from((0.0, 0.5, 3.0)),
    wait=st.sampled_from((0.0, 0.4, 2.0)),
    policy=st.sampled_from((Greedy(), UniformProgress(), Threshold())),
)
def test_paid_time_adds_up(
    *, text: str, gap_s: float, changeover: float, lost: float, wait: float, policy: Threshold
) -> None:
    terms = terms_of(lost_work_s=lost * gap_s, on_demand_wait_s=wait * gap_s)
    work_s = 20.3 * gap_s
    window = windows_of(
        0, 7, 30, work_s=work_s, deadline_s=40 * gap_s, changeover_s=changeover * gap_s
    )

    runs = replay(policy, markets_of(trace_of(text, gap_s)), window, terms)

    assert_balanced(runs, work_s, terms, spot_usd=1.0)
    assert (runs.idle_s >= 0).all()


def test_replay_begins_with_what_a_job_holds() -> None:
    """An hour of work is left; the held spot node needs half an hour of its start."""
    begin = Beginning(
        elapsed_s=9 * HOUR_S, progress_s=HOUR_S, held=Held.SPOT, place=0, warm_up_s=1800.0
    )
    policy = Scripted("." * 9 + "s")
    window = windows_of(0, work_s=2 * HOUR_S, deadline_s=20 * HOUR_S, changeover_s=HOUR_S)

    runs = replay(policy, markets_of(trace_of("111", HOUR_S)), window, terms_of(), begin=begin)

    assert policy.seen[0].elapsed_s.tolist() == [9 * HOUR_S]
    assert policy.seen[0].ticks_left.tolist() == [11]
    assert runs.finish_s.tolist() == [2 * HOUR_S]
    assert (runs.changeovers[0], runs.warm_up_s[0]) == (0, 1800.0)
    assert (runs.tail_s[0], runs.tail_usd[0]) == (1800.0, 0.5)


def test_held_node_may_be_lost_at_the_beginning() -> None:
    begin = Beginning(held=Held.SPOT, place=0)
    window = windows_of(0, work_s=HOUR_S, deadline_s=9 * HOUR_S, changeover_s=0)

    runs = replay(Scripted("d"), markets_of(trace_of("0", HOUR_S)), window, terms_of(), begin=begin)

    assert (runs.preemptions[0], runs.on_demand_s[0]) == (1, HOUR_S)


def test_runs_are_cut_off_where_a_replay_ends() -> None:
    window = windows_of(0, 2, work_s=3 * HOUR_S, deadline_s=np.inf, changeover_s=0)

    runs = replay(SpotOnly(), markets_of(trace_of("11010", HOUR_S)), window, terms_of(), ticks=5)

    assert runs.finish_s.tolist() == [4 * HOUR_S, 5 * HOUR_S]
    assert runs.tail_s.tolist() == [0.0, -2 * HOUR_S]
    assert runs.tail_usd.tolist() == [0.0, -2.0]


def test_margin_is_seen_and_does_not_pass() -> None:
    policy = Scripted("d")
    window = windows_of(0, work_s=HOUR_S, deadline_s=9 * HOUR_S, changeover_s=HOUR_S)
    terms = terms_of(margin_s=600.0, risk_s=300.0, budget_usd=10.0)

    runs = replay(policy, markets_of(trace_of("0", HOUR_S)), window, terms)

    assert policy.seen[0].changeover_s.tolist() == [HOUR_S + 600]
    assert policy.seen[0].risk_s == 300.0
    assert [each.budget_usd[0] for each in policy.seen[:2]] == [10.0, 7.0]
    assert runs.finish_s.tolist() == [2 * HOUR_S]
