"""Back-tests: published costs, what `holdfast` saves, windows, and what is refused."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from holdfast.domain.planning.backtest import (
    COLUMNS,
    POLICIES,
    TOGETHER,
    BackTest,
    BackTestSettings,
    Window,
    check_policy,
    even_windows,
    job_hours,
)
from holdfast.domain.planning.traces import Trace
from holdfast.errors import BadRequest
from support.spot_traces import (
    AWS_2022,
    AWS_2023,
    GOLDEN_WINDOWS,
    HOUR_S,
    ON_DEMAND_USD,
    SPOT_USD,
    recorded,
    terms_of,
    trace_of,
)

GOLDEN_COLUMNS = {"greedy": "greedy", "uniform-progress": "up", "optimal": "optimal"}
"""The policies of the golden windows, and their columns."""
GOLDEN_MEANS = {"greedy": 119.0345387654, "uniform-progress": 101.6827106481, "optimal": 92.161656}
"""USD."""
WORK_S = 48 * HOUR_S
MOST_OF_UNIFORM_PROGRESS = {1.10: 0.96, 1.25: 0.985, 1.50: 0.975, 2.00: 0.95}
"""Deadline in multiples of the work: cost of `holdfast` at most, in that of uniform progress."""


def settings_of(**values: Any) -> BackTestSettings:
    """One hour of work in at most three, with the policy greedy, if nothing else is given."""
    given: dict[str, Any] = {
        "work_s": HOUR_S,
        "deadlines_s": [3 * HOUR_S],
        "changeover_s": 600.0,
        "spot_usd_per_hour": 1.0,
        "together": False,
        "policies": ["greedy"],
        "terms": terms_of(),
    }
    return BackTestSettings(**{**given, **values})


def back_test(traces: Sequence[Trace], *windows: Window, **values: Any) -> BackTest:
    """A back-test of windows, from the first tick of the first trace if none are given."""
    return BackTest(traces, windows or [Window(traces[0].name, 0)], settings_of(**values))


V100 = {"spot_usd_per_hour": SPOT_USD, "terms": terms_of(on_demand_usd_per_hour=ON_DEMAND_USD)}


def golden_runs(lines: Sequence[dict[str, str]]) -> dict[str, list[tuple[float, float, bool]]]:
    """For each policy: the cost of each run, the published one, and whether it was late."""
    windows = [
        Window(
            line["trace"],
            int(line["start_index"]),
            int(line["length_ticks"]),
            round(float(line["changeover_h"]) * HOUR_S, 6),
        )
        for line in lines
    ]
    test = back_test(
        recorded(AWS_2022),
        *windows,
        work_s=WORK_S,
        deadlines_s=[52 * HOUR_S, 70 * HOUR_S],
        policies=[*GOLDEN_COLUMNS],
        **V100,
    )
    found = defaultdict(list)
    for result in test.results():
        column = f"{GOLDEN_COLUMNS[result.policy]}_{result.deadline_s / HOUR_S:.0f}h"
        costs = [
            float(line[column])
            for line, window in zip(lines, windows, strict=True)
            if window.changeover_s == result.changeover_s
        ]
        late = result.runs.finish_s > result.deadline_s
        found[result.policy] += zip(
            result.runs.cost_usd.tolist(), costs, late.tolist(), strict=True
        )
    return found


def golden_lines() -> list[dict[str, str]]:
    with GOLDEN_WINDOWS.open() as file:
        return [*csv.DictReader(file)]


def test_costs_are_the_published_ones() -> None:
    for runs in golden_runs(golden_lines()[::60]).values():
        assert len(runs) == 18
        for cost, published, is_late in runs:
            assert cost == pytest.approx(published, abs=1e-6)
            assert not is_late


@pytest.mark.full
def test_means_of_all_golden_windows_are_the_published_ones() -> None:
    for policy, runs in golden_runs(golden_lines()).items():
        assert len(runs) == 1080
        assert np.mean([cost for cost, _, _ in runs]) == pytest.approx(
            GOLDEN_MEANS[policy], abs=1e-4
        )
        assert max(abs(cost - published) for cost, published, _ in runs) < 1e-6
        assert not any(is_late for _, _, is_late in runs)


def costs_by_trace(folder: Path, changeover_s: float) -> dict[tuple[str, float, str], float]:
    """The mean cost for each policy, deadline and trace of 20 even starts each."""
    traces = recorded(folder)
    deadlines_s = [each * WORK_S for each in MOST_OF_UNIFORM_PROGRESS]
    test = back_test(
        traces,
        *even_windows(traces, 20, max(deadlines_s)),
        work_s=WORK_S,
        deadlines_s=deadlines_s,
        changeover_s=changeover_s,
        policies=["uniform-progress", "holdfast"],
        **V100,
    )
    found = {}
    for result in test.results():
        assert not (result.runs.finish_s > result.deadline_s).any()
        for number, trace in enumerate(traces):
            rows = result.windows.market == number
            key = (result.policy, result.deadline_s / WORK_S, trace.name + str(trace.gap_s))
            found[key] = float(result.runs.cost_usd[rows].mean())
    return found


@pytest.mark.full
@pytest.mark.timeout(900)
def test_holdfast_costs_less_than_uniform_progress() -> None:
    sums: dict[tuple[str, float, str], float] = defaultdict(float)
    for folder in (AWS_2022, AWS_2023):
        for changeover_s in (72.0, 720.0):
            for key, cost in costs_by_trace(folder, changeover_s).items():
                sums[key] += cost
    traces = {trace for _, _, trace in sums}
    assert len(traces) == 14

    def ratio(deadlines: Sequence[float], names: set[str]) -> float:
        ours, theirs = (
            sum(sums[policy, deadline, name] for deadline in deadlines for name in names)
            for policy in ("holdfast", "uniform-progress")
        )
        return ours / theirs

    for deadline, most in MOST_OF_UNIFORM_PROGRESS.items():
        assert ratio([deadline], traces) <= most, deadline
    every = [*MOST_OF_UNIFORM_PROGRESS]
    assert ratio(every, traces) <= 0.965
    assert {name: ratio(every, {name}) for name in traces if ratio(every, {name}) > 1.02} == {}


def test_summary_counts_time_and_money() -> None:
    test = back_test([trace_of("1" * 3 + "0" * 20)], policies=["greedy", "on-demand"])
    greedy, whole = map(test.summary, test.results())

    # A start and two ticks of work on spot nodes. Then none until four are left for two starts and four of work.
    assert (greedy["spot_h"], greedy["preemptions"], greedy["changeovers"]) == (0.5, 1, 2)
    assert greedy["on_demand_h"] == pytest.approx(5 / 6)
    assert greedy["on_demand_share"] == pytest.approx(5 / 8)
    assert greedy["cost_usd"] == pytest.approx({"mean": 3, "p10": 3, "p50": 3, "p90": 3})
    assert (greedy["misses"], greedy["late_s_max"]) == (0, 0.0)
    assert (whole["cost_over_on_demand"], whole["idle_h"]) == (1.0, 0.0)
    assert whole["finish_h"] == pytest.approx({"mean": 7 / 6, "p90": 7 / 6})


def test_late_runs_are_counted_with_their_lateness() -> None:
    test = back_test([trace_of("0" * 30)], policies=["on-demand"])
    test.settings = settings_of(policies=["on-demand"], deadlines_s=[HOUR_S])

    summary = test.summary(next(test.results()))

    assert (summary["misses"], summary["late_s_max"]) == (1, 600.0)


def test_rows_have_one_value_for_each_column() -> None:
    test = back_test([trace_of("1" * 30)], Window("zone", 2), Window("zone", 5, None, 60.0))
    rows = [row for result in test.results() for row in test.rows(result)]

    assert all(len(row) == len(COLUMNS) for row in rows)
    assert [dict(zip(COLUMNS, row, strict=True))["start_index"] for row in rows] == [5, 2]
    assert test.count() == 2
    assert sum(map(job_hours, test.results())) == pytest.approx(14 / 6)


def test_zones_together_are_one_market() -> None:
    traces = [trace_of("10" * 20), trace_of("01" * 20, name="b")]
    test = back_test(traces, together=True, changeover_s=0.0)

    result = next(test.results())

    assert [row[0] for row in test.rows(result)] == [TOGETHER]
    assert result.runs.spot_s.tolist() == [HOUR_S]


def test_starts_are_even_from_the_first_to_the_last() -> None:
    traces = [trace_of("0" * 40), trace_of("0" * 30, name="b")]

    windows = even_windows(traces, 3, 20 * 600)

    assert [(each.trace, each.start) for each in windows] == [
        ("zone", 0), ("zone", 10), ("zone", 20), ("b", 0), ("b", 5), ("b", 10)
    ]  # fmt: skip


def test_random_starts_repeat_with_their_seed() -> None:
    traces = [trace_of("0" * 4000)]
    found = [[each.start for each in even_windows(traces, 9, 6000, seed)] for seed in (1, 1, 2)]

    assert found[0] == found[1] != found[2]
    assert found[0] == sorted(found[0])
    assert all(0 <= start <= 3990 for start in found[0])


def test_trace_shorter_than_the_deadline_is_refused() -> None:
    with pytest.raises(BadRequest, match="zone covers 1 h, less than the deadline of 3 h"):
        even_windows([trace_of("0" * 6)], 3, 3 * HOUR_S)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (Window("other", 0), "no trace is named other; they are zone"),
        (Window("zone", -1), "is not within its 20 ticks"),
        (Window("zone", 3), "window of 18 ticks from tick 3 is not within its 20 ticks"),
        (Window("zone", 0, 21), "window of 21 ticks from tick 0 is not within its 20 ticks"),
        (Window("zone", 0, 17), "length_ticks from tick 0 is 17, less than the 18 ticks"),
        (Window("zone", 0, 18, 7800.0), "the work and one changeover take 3.167 h"),
    ],
)
def test_window_that_does_not_fit_is_refused(window: Window, message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        back_test([trace_of("0" * 20)], window)

    assert message in str(refused.value)


@pytest.mark.parametrize(("deadline_ticks", "fits"), [(6, False), (7, True)])
def test_deadline_is_at_least_work_and_changeover(deadline_ticks: int, fits: bool) -> None:
    traces = [trace_of("0" * 20)]
    if fits:
        test = back_test(traces, deadlines_s=[deadline_ticks * 600], policies=["holdfast"])
        assert next(test.results()).runs.finish_s.tolist() == [4200]
    else:
        with pytest.raises(BadRequest, match="--deadline 1h: the work and one changeover take"):
            back_test(traces, deadlines_s=[deadline_ticks * 600])


def test_wait_for_on_demand_nodes_needs_a_later_deadline() -> None:
    with pytest.raises(BadRequest, match="--deadline"):
        back_test([trace_of("0" * 20)], deadlines_s=[4200], terms=terms_of(on_demand_wait_s=1200.0))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("holfast", "did you mean holdfast?"), ("zzz", f"it is one of {', '.join(POLICIES)}")],
)
def test_unknown_policy_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_policy(name)

    assert str(refused.value) == f"--policy {name}: no such policy; {hint}"
