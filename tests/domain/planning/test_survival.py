"""The policy `holdfast`: what it weighs, and reasons for its choices."""

from __future__ import annotations

import numpy as np
import pytest
from holdfast.domain.planning.policies import OnDemand
from holdfast.domain.planning.replay import Runs, replay
from holdfast.domain.planning.situation import Choice, Held, Indices, Reason, Situation
from holdfast.domain.planning.survival import Survival
from support.spot_traces import HOUR_S, markets_of, terms_of, trace_of, windows_of


def run(
    text: str, *, deadline_h: float = 8, spot_usd: float = 1.0, start: int = 0, **terms: float
) -> tuple[Runs, list[tuple[Held, Reason]]]:
    """Run four hours of work from a tick of a recording on."""
    chosen = []

    def observe(_: int, __: Situation, choice: Choice, rows: Indices) -> None:
        if len(rows):
            chosen.append((Held(int(choice.holds[0])), Reason(int(choice.reason[0]))))

    window = windows_of(start, work_s=4 * HOUR_S, deadline_s=deadline_h * HOUR_S, changeover_s=360)
    market = markets_of(trace_of(text), spot_usd=spot_usd)
    return replay(Survival(), market, window, terms_of(**terms), [observe]), chosen


def test_steady_spot_nodes_are_taken_and_kept() -> None:
    runs, chosen = run("1" * 60)

    assert runs.on_demand_s[0] == 0
    assert chosen[0] == (Held.SPOT, Reason.SPOT_IS_AVAILABLE)
    assert {*chosen[1:]} == {(Held.SPOT, Reason.SPOT_STANDS)}


def test_last_part_of_a_tick_is_not_left_for_later() -> None:
    """It is paid as a whole tick, so that a pause before it would cost a start and save nothing."""
    runs, _ = run("1" * 60)

    assert runs.changeovers.tolist() == [1]
    assert runs.finish_s.tolist() == [25 * 600]  # 24.6 ticks of work and its start.


@pytest.mark.parametrize("gap_s", [195.0, 60.0])
def test_short_ticks_at_the_end_are_not_left_for_later(gap_s: float) -> None:
    """A step of the table has several ticks; the last of them are the end of the job."""
    window = windows_of(0, work_s=4 * HOUR_S, deadline_s=8 * HOUR_S, changeover_s=72)

    runs = replay(Survival(), markets_of(trace_of("1" * 480, gap_s)), window, terms_of())

    assert runs.changeovers.tolist() == [1]
    assert runs.finish_s[0] < 4 * HOUR_S + 72 + gap_s


def test_without_spot_it_waits_and_then_buys() -> None:
    runs, chosen = run("0" * 60)

    holds = [held for held, _ in chosen]
    # Nothing, then on-demand nodes.
    assert holds == sorted(holds, key=(Held.NOTHING, Held.ON_DEMAND).index)
    assert chosen[0] == (Held.NOTHING, Reason.WAIT_FOR_SPOT)
    assert chosen[-1] == (Held.ON_DEMAND, Reason.ON_DEMAND_STANDS)
    first = next(reason for held, reason in chosen if held == Held.ON_DEMAND)
    assert first in {Reason.LEAST_EXPECTED_COST, Reason.SAFETY_NET}
    assert runs.finish_s[0] <= 8 * HOUR_S


def test_tight_deadline_leaves_the_net_alone() -> None:
    _, chosen = run("0" * 60, deadline_h=4.25)

    assert chosen[0] == (Held.ON_DEMAND, Reason.SAFETY_NET)


def test_spot_nodes_dearer_than_on_demand_ones_are_not_taken() -> None:
    runs, _ = run("1" * 60, spot_usd=4.0)

    assert runs.spot_s[0] == 0


def test_history_of_a_place_changes_the_choice() -> None:
    """Spot nodes that have been gone for days are awaited for less long than those that flap."""
    finish_h = []
    for history in ("1" + "0" * 599, "100" * 200):
        runs, _ = run(history + "0" * 60, start=600, deadline_h=7)
        finish_h.append(runs.finish_s[0] / HOUR_S)

    assert finish_h[0] < finish_h[1]


def test_cost_is_less_than_that_of_on_demand_nodes() -> None:
    random = np.random.default_rng(1)
    text = "".join(str(int(random.random() < 0.5)) * int(random.integers(1, 30)) for _ in range(60))
    window = windows_of(
        *range(0, 200, 10), work_s=4 * HOUR_S, deadline_s=8 * HOUR_S, changeover_s=360
    )
    market = markets_of(trace_of(text))

    ours, whole = (
        replay(policy, market, window, terms_of()).cost_usd.mean()
        for policy in (Survival(), OnDemand())
    )

    assert ours < 0.8 * whole


def test_rows_of_other_terms_have_tables_of_their_own() -> None:
    texts = ("1" * 20 + "0" * 80, "01" * 50)
    market = markets_of(*(trace_of(text, name=text[:2]) for text in texts))
    market.price[1] = 2.0
    rows = [(number, changeover) for number in (0, 1) for changeover in (0.0, 360.0)]
    job = {"work_s": 2 * HOUR_S, "deadline_s": 5 * HOUR_S}

    together = replay(
        Survival(),
        market,
        windows_of(
            *([0] * 4),
            market=[number for number, _ in rows],
            changeover_s=np.array([changeover for _, changeover in rows]),
            **job,
        ),
        terms_of(),
    )
    alone = [
        replay(
            Survival(),
            market,
            windows_of(0, market=number, changeover_s=changeover, **job),
            terms_of(),
        ).cost_usd[0]
        for number, changeover in rows
    ]

    assert together.cost_usd.tolist() == pytest.approx(alone)
