"""Expected costs, against a plain recursion, and in cases with one outcome."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from holdfast.domain.planning import cost_to_go
from holdfast.domain.planning.beliefs import MAX_CHANCE, USUAL_LOSS, USUAL_RETURN
from holdfast.domain.planning.cost_to_go import EXTENT, NEVER, CostTables, TableTerms, cost_table
from holdfast.domain.planning.situation import Held

TERMS = TableTerms(600.0, 600.0, 600.0, 1.0, 3.0)
"""A start takes one step."""
STEPS, WORK = 9, 6


def plain_costs(
    terms: TableTerms, loss: float, returns: float
) -> functools._lru_cache_wrapper[float]:
    """The expected cost after a step, by recursion over whole steps of work."""
    start = round(terms.changeover_s / terms.step_s)
    prices = {
        Held.SPOT: terms.spot_usd_per_hour / 6,
        Held.ON_DEMAND: terms.on_demand_usd_per_hour / 6,
    }
    grow = (1 / 3, 1 / 9, 1 / 24, 0.0)  # Steps of ten minutes, classes of 30, 90 and 240.

    @functools.cache
    def after(left: int, up: int, age: int, held: Held, work: int) -> float:
        if work <= 0:
            return 0.0
        if left == 0:
            return math.inf
        usual, multiplier = (USUAL_LOSS, loss) if up else (USUAL_RETURN, returns)
        chance = min(usual[age] * multiplier, MAX_CHANCE)
        kept = Held.NOTHING if up and held == Held.SPOT else held
        total = 0.0
        for weight, state in (
            (chance, (1 - up, 0, kept)),
            ((1 - chance) * (1 - grow[age]), (up, age, held)),
            ((1 - chance) * grow[age], (up, min(age + 1, 3), held)),
        ):
            total += weight * best(left, *state, work) if weight else 0.0
        return total

    @functools.cache
    def best(left: int, up: int, age: int, held: Held, work: int) -> float:
        options = [math.inf]
        if work + start <= left - 1:
            options.append(after(left - 1, up, age, Held.NOTHING, work))
        for wanted in (Held.SPOT, Held.ON_DEMAND):
            more = 0 if held == wanted else start
            if wanted == Held.SPOT:
                allowed = up and work + more - 1 + start <= left - 1
            else:
                allowed = work + more <= left
            if allowed:
                options.append(prices[wanted] + after(left - 1, up, age, wanted, work + more - 1))
        return min(options)

    return after


@pytest.mark.parametrize(("loss", "returns"), [(1.0, 1.0), (0.3, 3.0), (4.0, 0.2)])
def test_table_is_the_plain_recursion(loss: float, returns: float) -> None:
    table = cost_table(TERMS, loss=loss, returns=returns, steps=STEPS, work_steps=WORK)
    plain = plain_costs(TERMS, loss, returns)

    compared = 0
    for left in range(1, STEPS + 1):
        for up in (0, 1):
            for age in range(4):
                for held in Held:
                    if held == Held.SPOT and not up:
                        continue
                    for work in range(WORK):
                        exact = plain(left - 1, up, age, held, work)
                        if math.isfinite(exact):
                            found = table[left, up, age, held, work]
                            assert found == pytest.approx(exact, rel=1e-4), (left, up, age, held)
                            compared += 1
    assert compared > 300


def test_without_changes_the_cost_is_that_of_one_kind() -> None:
    table = cost_table(TERMS, loss=0.0, returns=0.0, steps=12, work_steps=9)

    assert table[12, 1, 0, Held.SPOT, 4] == pytest.approx(4 / 6)
    assert table[12, 1, 0, Held.NOTHING, 4] == pytest.approx(5 / 6)
    assert table[12, 0, 0, Held.NOTHING, 4] == pytest.approx(5 * 3 / 6)
    assert table[5, 0, 0, Held.ON_DEMAND, 4] == pytest.approx(4 * 3 / 6)
    assert table[5, 0, 0, Held.NOTHING, 4] >= NEVER


def test_rest_of_a_start_is_paid_as_a_whole_tick() -> None:
    terms = TableTerms(600.0, 72.0, 72.0, 1.0, 3.0)

    table = cost_table(terms, loss=0.0, returns=0.0, steps=12, work_steps=9)

    assert table[12, 1, 0, Held.NOTHING, 1] == pytest.approx(2 / 6)
    assert table[12, 1, 0, Held.SPOT, 1] == pytest.approx(1 / 6)


def test_cost_grows_with_work_and_falls_with_time() -> None:
    table = cost_table(TERMS, loss=1.0, returns=1.0, steps=30, work_steps=10)

    possible = np.where(table < 1e3, table, np.inf)
    more_work, more_time = possible[..., 1:], possible[1:]
    assert (more_work >= possible[..., :-1] - 1e-5).all()
    assert (more_time <= possible[:-1] + 1e-5).all()


def test_more_losses_cost_more_and_more_returns_less() -> None:
    tables = [
        cost_table(TERMS, loss=loss, returns=returns, steps=30, work_steps=10)
        for loss, returns in ((1.0, 1.0), (3.0, 1.0), (1.0, 3.0))
    ]
    usual, lossy, quick = (table[30, 1, 1, Held.NOTHING, 8] for table in tables)

    assert quick < usual < lossy


@pytest.mark.parametrize(
    ("tick_s", "step_s"), [(600, 600), (195, 585), (60, 600), (32, 608), (3600, 3600)]
)
def test_step_is_a_whole_number_of_ticks(tick_s: float, step_s: float) -> None:
    assert TableTerms(tick_s, 0, 0, 1, 3).step_s == step_s


def test_tables_are_made_once_for_each_pair_of_multipliers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def record(*args: object, **given: float) -> object:
        made.append((given["loss"], given["returns"]))
        return cost_table(*args, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(cost_to_go, "cost_table", record)
    tables = CostTables(TERMS)
    tables.require(6000, 3000)
    one, up = np.ones(3), np.ones(3, np.bool_)
    time_s, age = np.array([6000.0, 3000.0, 600.0]), np.zeros(3)

    tables.rows(one, one, time_s, up, age)
    tables.rows(one * 1.02, one, time_s, up, age)
    tables.rows(one * 1e9, one * 1e-9, time_s, up, age)

    factor = cost_to_go.FACTOR**EXTENT
    assert made == [(1.0, 1.0), (pytest.approx(factor), pytest.approx(1 / factor))]


def test_work_between_steps_is_interpolated() -> None:
    tables = CostTables(TERMS)
    tables.require(12_000, 6000)
    one, up = np.ones(1), np.ones(1, np.bool_)
    rows = tables.rows(one, one, np.array([12_000.0]), up, np.zeros(1))

    low, middle, high = (
        float(tables.after(rows, Held.SPOT, np.array([work_s]))[0])
        for work_s in (1200.0, 1500.0, 1800.0)
    )

    assert middle == pytest.approx((low + high) / 2, rel=1e-5)
    assert float(tables.after(rows, Held.SPOT, np.array([-5.0]))[0]) == 0.0


def test_tables_grow_with_what_is_required() -> None:
    tables = CostTables(TERMS)
    one, up = np.ones(1), np.ones(1, np.bool_)
    costs = []
    for time_s in (6000.0, 60_000.0, 6000.0):
        tables.require(time_s, 3000)
        rows = tables.rows(one, one, np.array([6000.0]), up, np.zeros(1))
        costs.append(float(tables.after(rows, Held.NOTHING, np.array([3000.0]))[0]))

    assert len(set(costs)) == 1
