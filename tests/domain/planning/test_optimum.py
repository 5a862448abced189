"""The least cost with the whole recording known, against all paths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from holdfast.domain.planning.optimum import replay_optimum
from holdfast.domain.planning.policies import Greedy, OnDemand, Threshold, UniformProgress
from holdfast.domain.planning.replay import RecordedMarkets, Terms, Windows, replay
from holdfast.domain.planning.situation import Choice, Codes, Held, Situation
from holdfast.domain.planning.survival import Survival
from support.spot_traces import markets_of, terms_of, trace_of, windows_of


def least_cost(market: RecordedMarkets, windows: Windows, terms: Terms, ticks: int) -> float:
    """The least cost of all sequences of choices that end in time."""
    paths = np.array([*itertools.product(Held, repeat=ticks)], np.int8).T
    rows = paths.shape[1]
    many = windows_of(
        *([0] * rows),
        work_s=windows.work_s,
        deadline_s=windows.deadline_s[0],
        changeover_s=windows.changeover_s[0],
    )
    runs = replay(_Paths(paths), market, many, terms)
    return float(runs.cost_usd[runs.finish_s <= many.deadline_s].min())


class _Paths:
    """Holds what a path names for each tick and row, and on-demand nodes after its end."""

    name = "paths"

    def __init__(self, paths: Codes) -> None:
        self._paths = paths

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        tick = round(float(situation.elapsed_s[0] / situation.tick_s))
        holds = np.full(len(situation.row), Held.ON_DEMAND, np.int8)
        if tick < len(self._paths):
            holds = self._paths[tick, situation.row].copy()
        holds[(holds == Held.SPOT) & ~situation.available[:, 0]] = Held.NOTHING
        return Choice(holds, np.zeros(len(holds), np.intp), np.zeros(len(holds), np.int8))


@pytest.mark.parametrize("text", ["110110", "010101", "001100", "101001"])
@pytest.mark.parametrize("changeover", [0.5, 1.5])
def test_optimum_is_the_least_cost_of_all_paths(text: str, changeover: float) -> None:
    market = markets_of(trace_of(text))
    window = windows_of(0, work_s=1500, deadline_s=3600, changeover_s=changeover * 600)

    runs = replay_optimum(market, window, terms_of())

    assert runs.cost_usd[0] == pytest.approx(least_cost(market, window, terms_of(), 6))
    assert runs.finish_s[0] <= 3600


@pytest.mark.parametrize(
    "terms", [{"lost_work_s": 300.0}, {"on_demand_wait_s": 600.0}], ids=["lost-work", "wait"]
)
def test_optimum_knows_losses_and_waits(terms: dict[str, float]) -> None:
    for text in ("110110", "010101", "100110"):
        market = markets_of(trace_of(text))
        window = windows_of(0, work_s=1500, deadline_s=3600, changeover_s=300)

        runs = replay_optimum(market, window, terms_of(**terms))

        least = least_cost(market, window, terms_of(**terms), 6)
        assert runs.cost_usd[0] == pytest.approx(least), text


def test_optimum_follows_prices_of_ticks() -> None:
    market = markets_of(trace_of("111111"))
    market.price[0, 0] = [2.0, 2.0, 0.5, 0.5, 2.0, 2.0]
    window = windows_of(0, work_s=1200, deadline_s=3600, changeover_s=0)

    runs = replay_optimum(market, window, terms_of())

    assert runs.cost_usd[0] == pytest.approx(1.0 / 6)


@pytest.mark.parametrize(("egress_usd", "cost"), [(0.0, 4 / 6), (9.0, (2 + 3 * 2) / 6)])
def test_optimum_moves_if_the_transfer_is_cheap(egress_usd: float, cost: float) -> None:
    market = markets_of(trace_of("1100"), trace_of("0011", name="b"), together=True, regions=(0, 1))
    window = windows_of(0, work_s=2400, deadline_s=2400, changeover_s=0)

    runs = replay_optimum(market, window, terms_of(egress_usd=egress_usd))

    assert runs.cost_usd[0] == pytest.approx(cost)


def test_optimum_without_an_end_in_time_runs_on_demand() -> None:
    market = markets_of(trace_of("0000"))
    window = windows_of(0, work_s=2400, deadline_s=1200, changeover_s=0)

    runs = replay_optimum(market, window, terms_of())

    assert runs.finish_s.tolist() == [2400]
    assert runs.on_demand_s.tolist() == [2400]


def test_no_policy_costs_less_than_the_optimum() -> None:
    random = np.random.default_rng(3)
    text = "".join(str(int(random.random() < 0.5)) * int(random.integers(1, 12)) for _ in range(80))
    market = markets_of(trace_of(text))
    window = windows_of(*range(0, 150, 15), work_s=12_000, deadline_s=20_400, changeover_s=240)

    best = replay_optimum(market, window, terms_of())

    for policy in (Greedy(), UniformProgress(), Threshold(), Survival(), OnDemand()):
        runs = replay(policy, market, window, terms_of())
        assert (runs.cost_usd >= best.cost_usd - 1e-9).all(), policy.name
