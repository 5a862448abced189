"""Forecasts: which earlier runs they rest on, how these count, and how well they agree with what happens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from holdfast.domain.planning.backtest import BackTest, BackTestSettings, even_windows
from holdfast.domain.planning.forecast import (
    MIN_RUNS,
    WIDENING,
    Forecast,
    forecast,
    weighted_quantiles,
)
from holdfast.domain.planning.policies import Greedy
from hypothesis import given
from hypothesis import strategies as st
from support.spot_traces import (
    AWS_2022,
    AWS_2023,
    HOUR_S,
    ON_DEMAND_USD,
    SPOT_USD,
    markets_of,
    recorded,
    terms_of,
    trace_of,
    windows_of,
)

DAY = 144
"""Ticks of a day."""


def forecast_of(text: str, start: int) -> Forecast:
    """The forecast of two hours of work within four, in ticks of ten minutes."""
    window = windows_of(start, work_s=2 * HOUR_S, deadline_s=4 * HOUR_S, changeover_s=0)
    return forecast(Greedy(), markets_of(trace_of(text)), window, terms_of())


def test_steady_market_is_forecast_exactly() -> None:
    found = forecast_of("1" * 4 * DAY, 3 * DAY)

    whole_usd = 2 * 3.0
    assert found.p50_usd.tolist() == pytest.approx([2.0])
    assert found.p10_usd.tolist() == pytest.approx([2.0 - WIDENING * whole_usd])
    assert found.p90_usd.tolist() == pytest.approx([2.0 + WIDENING * whole_usd])
    assert found.p_late.tolist() == [0.0]


def test_only_runs_that_have_ended_count() -> None:
    # One begins every hour; each takes two hours.
    found = forecast_of("1" * 4 * DAY, (MIN_RUNS + 2) * 6)

    assert found.history.tolist() == [MIN_RUNS + 1]


@pytest.mark.parametrize("start", [0, MIN_RUNS * 6])
def test_start_with_few_earlier_runs_has_no_forecast(start: int) -> None:
    found = forecast_of("1" * 4 * DAY, start)

    assert found.history.tolist() == [0]
    assert np.isnan(found.p50_usd).all()


def test_what_follows_the_start_changes_no_forecast() -> None:
    past = ("1" * DAY + "0" * DAY) * 2

    first, second = (forecast_of(past + future * DAY, 4 * DAY) for future in "01")

    assert first.p50_usd[0] > 0
    assert first.p50_usd == second.p50_usd


def test_days_like_this_one_count_more() -> None:
    days = ("1" * DAY + "0" * DAY) * 3

    after_spot = forecast_of(days + "1" * DAY + "1", 7 * DAY)
    after_none = forecast_of(days + "1" * DAY + "0" * DAY + "0", 8 * DAY)

    assert after_spot.p50_usd[0] < after_none.p50_usd[0]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 5)), min_size=1, max_size=30))
def test_quantiles_with_weights_are_values_in_order(pairs: list[tuple[float, float]]) -> None:
    values, weights = (np.array(each) for each in zip(*pairs, strict=True))

    low, middle, high = weighted_quantiles(values, weights, (0.1, 0.5, 0.9))

    assert low <= middle <= high
    assert {low, middle, high} <= {*values.tolist()}
    assert weights[values <= middle].sum() >= weights.sum() / 2 * (1 - 1e-6)


@pytest.mark.parametrize("folder", [AWS_2022, AWS_2023])
@pytest.mark.parametrize(
    "policy", ["uniform-progress", pytest.param("holdfast", marks=pytest.mark.full)]
)
def test_forecasts_of_recorded_days_hold_what_they_say(folder: Path, policy: str) -> None:
    traces = recorded(folder)
    settings = BackTestSettings(
        work_s=24 * HOUR_S,
        deadlines_s=[30 * HOUR_S],
        changeover_s=360.0,
        spot_usd_per_hour=SPOT_USD,
        together=False,
        policies=[policy],
        terms=terms_of(on_demand_usd_per_hour=ON_DEMAND_USD),
        forecasts=True,
    )
    test = BackTest(traces, even_windows(traces, 40, 30 * HOUR_S), settings)

    [result] = [*test.results()]
    accuracy = test.summary(result)["forecast"]

    assert isinstance(accuracy, dict)
    assert accuracy["runs"] > 25 * len(traces)
    assert accuracy["mae_over_on_demand"] <= 0.12
    assert abs(accuracy["bias_over_on_demand"]) <= 0.03
    assert 0.75 <= accuracy["coverage_p10_p90"] <= 0.90
    assert accuracy["late_brier"] == 0.0
