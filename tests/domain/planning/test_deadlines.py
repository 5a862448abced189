"""No run ends late: adversarial spot markets, wrong beliefs, long changeovers, tight deadlines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from holdfast.domain.planning.beliefs import BeliefTable
from holdfast.domain.planning.policies import Greedy, Threshold, UniformProgress, exact_net
from holdfast.domain.planning.replay import RecordedMarkets, Windows, replay
from holdfast.domain.planning.situation import Choice, Held, PlacementPolicy, Situation
from holdfast.domain.planning.survival import Survival
from hypothesis import given
from hypothesis import strategies as st
from support.spot_traces import markets_of, terms_of, trace_of, windows_of

WORK_TICKS = 30.4
CHANGEOVERS = (0.0, 0.12, 1.0, 2.5)
"""In ticks; more than one: a start that takes several of them."""
SLACKS = (0, 1, 2, 3, 8, 30)
"""Ticks of the deadline above the least."""
WRONG_BELIEFS = ((0.0, 1.0, 1.0), (1e9, 0.01, 100.0), (0.0, 100.0, 0.01), (1e9, 100.0, 100.0))
"""Age, and multipliers of losses and of returns, that have nothing to do with the market."""
EXACT = (Threshold(), Threshold(0.0))
PUBLISHED = (Greedy(), UniformProgress())


def hostile_texts(ticks: int) -> Iterator[str]:
    """Spot nodes that never come, never go, flap, bait, or go when there is no time left."""
    yield "0" * ticks
    yield "1" * ticks
    yield "01" * (ticks // 2)
    for every in (2, 3, 7, 20):
        yield ("1" + "0" * every) * (ticks // (every + 1))
        yield ("0" + "1" * every) * (ticks // (every + 1))
    for after in (25, 29, 30, 31, 32, 33, 36, 40, 60):
        yield "1" * after + "0" * (ticks - after)
        yield "0" * after + "1" * (ticks - after)
        yield "0" * after + "10" * ((ticks - after) // 2)
    random = np.random.default_rng(2)
    for share in (0.05, 0.3, 0.7, 0.95):
        yield "".join(random.choice(["1", "0"], ticks, p=[share, 1 - share]))


def hostile_market(gap_s: float) -> RecordedMarkets:
    """All of them, with what was seen of them, and with each wrong belief."""
    traces = [
        trace_of(text.ljust(120, "0"), gap_s, str(number))
        for number, text in enumerate(hostile_texts(120))
    ]
    market = markets_of(*traces)
    tables = [market.beliefs] + [
        BeliefTable(*(np.full_like(market.beliefs.age_s, value) for value in wrong))
        for wrong in WRONG_BELIEFS
    ]
    repeat = len(tables)
    return replace(
        market,
        available=np.tile(market.available, (repeat, 1, 1)),
        price=np.tile(market.price, (repeat, 1, 1)),
        region=np.tile(market.region, (repeat, 1)),
        beliefs=BeliefTable(
            *(
                np.concatenate([getattr(table, name) for table in tables])
                for name in ("age_s", "loss", "returns")
            )
        ),
    )


def hostile_windows(market: RecordedMarkets, rows: int, seed: int, wait: float = 0.0) -> Windows:
    """Starts with tight deadlines, one of all slacks and changeovers each."""
    random = np.random.default_rng(seed)
    changeover = random.choice(CHANGEOVERS, rows)
    least = np.ceil(WORK_TICKS + changeover + wait - 1e-9)
    return windows_of(
        *random.integers(0, 12, rows).tolist(),
        market=random.integers(0, len(market.available), rows).tolist(),
        work_s=WORK_TICKS * market.gap_s,
        deadline_s=(least + random.choice(SLACKS, rows)) * market.gap_s,
        changeover_s=changeover * market.gap_s,
    )


def assert_in_time(policy: PlacementPolicy, gap_s: float, rows: int, **terms: float) -> None:
    """Run hostile windows, and compare their ends with the deadlines."""
    market = hostile_market(gap_s)
    wait = terms.get("on_demand_wait_s", 0.0) / gap_s
    windows = hostile_windows(market, rows, seed=int(gap_s), wait=wait)

    runs = replay(policy, market, windows, terms_of(**terms))

    late_s = runs.finish_s - windows.deadline_s
    assert late_s.max() <= 1e-6, (policy.name, np.flatnonzero(late_s > 1e-6)[:5])


@pytest.mark.parametrize("gap_s", [60.0, 195.0, 600.0, 3600.0])
@pytest.mark.parametrize("policy", [*EXACT, *PUBLISHED], ids=lambda policy: policy.name)
def test_hostile_markets_make_no_run_late(policy: PlacementPolicy, gap_s: float) -> None:
    assert_in_time(policy, gap_s, rows=2500)


@pytest.mark.parametrize("policy", [*EXACT, *PUBLISHED], ids=lambda policy: policy.name)
def test_no_run_is_late_without_sight(policy: PlacementPolicy) -> None:
    assert_in_time(policy, 600.0, rows=2500, sees_all=False)


@pytest.mark.parametrize("policy", [*EXACT, *PUBLISHED], ids=lambda policy: policy.name)
def test_no_run_is_late_with_a_wait_for_on_demand(policy: PlacementPolicy) -> None:
    assert_in_time(policy, 600.0, rows=2500, on_demand_wait_s=900.0)


@pytest.mark.parametrize("lost_s", [240.0, 1500.0])
@pytest.mark.parametrize("policy", EXACT, ids=lambda policy: policy.name)
def test_exact_net_allows_for_lost_work(policy: PlacementPolicy, lost_s: float) -> None:
    assert_in_time(policy, 600.0, rows=2500, lost_work_s=lost_s)


def test_least_expected_cost_makes_no_run_late() -> None:
    assert_in_time(Survival(), 600.0, rows=1000)


@pytest.mark.full
@pytest.mark.parametrize("gap_s", [60.0, 195.0, 600.0, 3600.0])
@pytest.mark.parametrize(
    "terms",
    [{}, {"sees_all": False}, {"lost_work_s": 900.0}, {"on_demand_wait_s": 900.0}],
    ids=str,
)
def test_least_expected_cost_in_ten_thousand_runs(gap_s: float, terms: dict[str, float]) -> None:
    assert_in_time(Survival(), gap_s, rows=2500, **terms)


def assert_in_time_together(policy: PlacementPolicy, gap_s: float, places: int, rows: int) -> None:
    """Run jobs whose places are hostile markets with other prices and regions."""
    texts = [text.ljust(120, "0") for text in hostile_texts(120)]
    random = np.random.default_rng(places)
    for number in range(4):
        chosen = random.choice(len(texts), places, replace=False)
        traces = [trace_of(texts[each], gap_s, f"{each}") for each in chosen]
        market = markets_of(*traces, together=True, regions=[each % 2 for each in range(places)])
        market.price[0] = 0.5 + 0.25 * np.arange(places)[:, None]
        windows = hostile_windows(market, rows // 4, seed=number)

        runs = replay(policy, market, windows, terms_of(egress_usd=0.4))

        late_s = runs.finish_s - windows.deadline_s
        assert late_s.max() <= 1e-6, (policy.name, chosen)


@pytest.mark.parametrize("policy", [*EXACT, *PUBLISHED], ids=lambda policy: policy.name)
def test_no_run_is_late_with_places_together(policy: PlacementPolicy) -> None:
    for places in (2, 3, 5):
        assert_in_time_together(policy, 600.0, places, rows=800)


@pytest.mark.full
def test_least_expected_cost_in_two_places() -> None:
    assert_in_time_together(Survival(), 600.0, places=2, rows=200)


class Anything:
    """Chooses at random, within the safety net."""

    name = "anything"

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        rows = len(situation.row)
        holds = self._random.integers(0, 3, rows).astype(np.int8)
        is_there = situation.available[:, 0]
        holds[(holds == Held.SPOT) & ~is_there & situation.is_seen] = Held.NOTHING
        # Every other choice of spot nodes replaces those that are held.
        is_start = situation.held != Held.SPOT
        holds, reason = exact_net(situation, holds, np.zeros_like(holds), is_start=is_start)
        return Choice(holds, np.zeros(rows, np.intp), reason)


@given(
    text=st.text("01", min_size=1, max_size=60),
    gap_s=st.sampled_from((32.0, 195.0, 600.0, 3600.0)),
    work=st.floats(1.0, 12.0),
    changeover=st.floats(0.0, 3.0),
    slack=st.integers(0, 12),
    lost=st.sampled_from((0.0, 0.3, 2.0)),
    wait=st.sampled_from((0.0, 0.7, 2.0)),
    sees_all=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_choice_within_the_exact_net_is_in_time(
    *,
    text: str,
    gap_s: float,
    work: float,
    changeover: float,
    slack: int,
    lost: float,
    wait: float,
    sees_all: bool,
    seed: int,
) -> None:
    deadline_s = (math.ceil(work + changeover + wait - 1e-9) + slack) * gap_s

    runs = replay(
        Anything(seed),
        markets_of(trace_of(text, gap_s)),
        windows_of(
            *([0] * 20),
            work_s=work * gap_s,
            deadline_s=deadline_s,
            changeover_s=changeover * gap_s,
        ),
        terms_of(lost_work_s=lost * gap_s, on_demand_wait_s=wait * gap_s, sees_all=sees_all),
    )

    assert runs.finish_s.max() <= deadline_s + 1e-6
