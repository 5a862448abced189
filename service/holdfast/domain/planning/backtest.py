"""Back-tests: policies over recorded windows, and what the runs cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, TypeAlias

import numpy as np

from holdfast.domain.planning import optimum
from holdfast.domain.planning.beliefs import padded, table_of
from holdfast.domain.planning.forecast import Forecast, forecast
from holdfast.domain.planning.policies import (
    Fastest,
    Greedy,
    OnDemand,
    Threshold,
    UniformProgress,
)
from holdfast.domain.planning.replay import RecordedMarkets, Runs, Terms, Windows, replay
from holdfast.domain.planning.situation import HOUR_S, ROUNDING, PlacementPolicy
from holdfast.domain.planning.survival import Survival
from holdfast.domain.planning.traces import Numbers, Trace
from holdfast.errors import BadRequest

Json: TypeAlias = "str | int | float | bool | None | Sequence[Json] | Mapping[str, Json]"

POLICIES: Final[Mapping[str, type[PlacementPolicy] | None]] = {
    "greedy": Greedy,
    "uniform-progress": UniformProgress,
    "threshold": Threshold,
    "fastest": Fastest,
    "holdfast": Survival,
    optimum.NAME: None,
    "on-demand": OnDemand,
}
"""Policies by name; the optimum is none, as it knows the whole recording."""
COLUMNS: Final = (
    "trace",
    "start_index",
    "deadline_h",
    "changeover_h",
    "policy",
    "cost_usd",
    "finish_h",
    "missed",
    "spot_h",
    "on_demand_h",
    "changeovers",
    "preemptions",
)
"""The columns of `BackTest.rows`."""
FORECAST_COLUMNS: Final = ("p10_usd", "p50_usd", "p90_usd", "p_late")
"""More of them with forecasts, which are empty where too few earlier runs have ended."""
TOGETHER: Final = "together"
"""The name of the market in which all places are replayed together."""


@dataclass(frozen=True, slots=True)
class Window:
    """One start of a job in a recording."""

    trace: str
    start: int
    length: int | None = None
    """Ticks of the recording that belong to it; None: all to its end."""
    changeover_s: float | None = None
    """None: that of the back-test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackTestSettings:
    """What a back-test runs."""

    work_s: float
    deadlines_s: Sequence[float]
    changeover_s: float
    spot_usd_per_hour: float | None
    """None: each trace has prices of its own."""
    together: bool
    policies: Sequence[str]
    terms: Terms
    forecasts: bool = False
    """Whether each run is forecast from the days before."""


@dataclass(frozen=True, slots=True)
class Result:
    """The runs of one policy with one deadline and changeover."""

    policy: str
    deadline_s: float
    changeover_s: float
    windows: Windows
    runs: Runs
    forecast: Forecast | None = None
    """What was forecast of each run, if that was asked for and the policy does not know the whole recording."""


def check_policy(name: str) -> str:
    """The name of a policy.

    Raises:
        BadRequest: There is none of this name.
    """
    if name in POLICIES:
        return name
    close = get_close_matches(name, POLICIES, 1)
    hint = f"did you mean {close[0]}?" if close else f"it is one of {', '.join(POLICIES)}"
    raise BadRequest(f"--policy {name}: no such policy; {hint}")


def even_windows(
    traces: Sequence[Trace], count: int, deadline_s: float, seed: int | None = None
) -> list[Window]:
    """Starts at even distances in each trace.

    The first is its begin, the last is the last one with room for the deadline. `seed`: random ones instead.

    Raises:
        BadRequest: A trace is shorter than the deadline.
    """
    windows = []
    random = None if seed is None else np.random.default_rng(seed)
    for trace in traces:
        room = len(trace.available) - int(np.ceil(deadline_s / trace.gap_s - ROUNDING))
        if room < 0:
            hours = len(trace.available) * trace.gap_s / HOUR_S
            raise BadRequest(
                f"{trace.name} covers {hours:.4g} h, less than the deadline of {deadline_s / HOUR_S:.4g} h; "
                "take a shorter --work or --deadline, or a longer trace"
            )
        starts = np.linspace(0, room, count).astype(int)
        if random is not None:
            starts = np.sort(random.integers(0, room + 1, count))
        windows += [Window(trace.name, int(start)) for start in starts]
    return windows


class BackTest:
    """Runs policies over windows of traces."""

    def __init__(
        self,
        traces: Sequence[Trace],
        windows: Sequence[Window],
        settings: BackTestSettings,
        prices: Mapping[str, Numbers] | None = None,
    ) -> None:
        """`prices`: of each trace, in USD per hour of each tick.

        Raises:
            BadRequest: A deadline or a window does not fit.
        """
        self.settings = settings
        self.traces = traces
        self._check(windows)
        self._names = [TOGETHER] if settings.together else [trace.name for trace in traces]
        markets = [[*traces]] if settings.together else [[trace] for trace in traces]
        available = padded(markets)
        price = np.full(available.shape, settings.spot_usd_per_hour or 0.0)
        regions = {region: at for at, region in enumerate(sorted({t.region for t in traces}))}
        for number, places in enumerate(markets):
            for place, trace in enumerate(places):
                if prices:
                    price[number, place, : len(prices[trace.name])] = prices[trace.name]
        self._market = RecordedMarkets(
            gap_s=traces[0].gap_s,
            available=available,
            price=price,
            region=np.array([[regions[t.region] for t in places] for places in markets]),
            beliefs=table_of(markets),
        )
        self._windows = windows
        self._made = {name: kind() for name, kind in POLICIES.items() if kind}

    def _check(self, windows: Sequence[Window]) -> None:
        settings = self.settings
        for changeover_s in sorted({self._changeover_s(each) for each in windows}):
            self._check_deadlines(settings.work_s + changeover_s + settings.terms.on_demand_wait_s)
        lengths = {trace.name: len(trace.available) for trace in self.traces}
        if settings.together:
            lengths = dict.fromkeys(
                (*lengths, *(each.trace for each in windows)), min(lengths.values())
            )
        for window in windows:
            if window.trace not in lengths:
                raise BadRequest(
                    f"--windows: no trace is named {window.trace}; they are {', '.join(lengths)}"
                )
            self._check_window(window, lengths[window.trace])

    def _check_deadlines(self, least_s: float) -> None:
        gap_s = self.traces[0].gap_s
        for deadline_s in self.settings.deadlines_s:
            ticks = np.floor(deadline_s / gap_s + ROUNDING)
            if ticks < np.ceil(least_s / gap_s - ROUNDING):
                raise BadRequest(
                    f"--deadline {deadline_s / HOUR_S:.4g}h: the work and one changeover take {least_s / HOUR_S:.4g} h, "
                    f"in whole ticks of {gap_s:g} s; take a later deadline"
                )

    def _check_window(self, window: Window, ticks: int) -> None:
        needed = max(self.settings.deadlines_s) / self.traces[0].gap_s
        length = needed if window.length is None else window.length
        if window.start < 0 or window.start + length > ticks + ROUNDING:
            raise BadRequest(
                f"--windows: {window.trace}: the window of {length:g} ticks from tick {window.start} "
                f"is not within its {ticks} ticks; take another start_index or length_ticks"
            )
        if length < needed - ROUNDING:
            raise BadRequest(
                f"--windows: {window.trace}: length_ticks from tick {window.start} is {length:g}, less than "
                f"the {needed:g} ticks until the deadline; take a longer window or a shorter deadline"
            )

    def results(self) -> Iterator[Result]:
        """Run each policy with each deadline and changeover."""
        settings = self.settings
        # Tables that reach to the latest deadline serve all others.
        for deadline_s in sorted(settings.deadlines_s, reverse=True):
            for changeover_s in sorted({self._changeover_s(each) for each in self._windows}):
                windows = self._windows_of(deadline_s, changeover_s)
                for name in settings.policies:
                    yield Result(name, deadline_s, changeover_s, windows, *self._run(name, windows))

    def _run(self, name: str, windows: Windows) -> tuple[Runs, Forecast | None]:
        policy, terms = self._made.get(name), self.settings.terms
        if not policy:
            return optimum.replay_optimum(self._market, windows, terms), None
        runs = replay(policy, self._market, windows, terms)
        if not self.settings.forecasts:
            return runs, None
        return runs, forecast(policy, self._market, windows, terms)

    def count(self) -> int:
        """Number of results."""
        changeovers = {self._changeover_s(each) for each in self._windows}
        return len(self.settings.deadlines_s) * len(changeovers) * len(self.settings.policies)

    def _changeover_s(self, window: Window) -> float:
        return self.settings.changeover_s if window.changeover_s is None else window.changeover_s

    def _windows_of(self, deadline_s: float, changeover_s: float) -> Windows:
        rows = [each for each in self._windows if self._changeover_s(each) == changeover_s]
        numbers = {name: number for number, name in enumerate(self._names)}
        markets = [0 if self.settings.together else numbers[each.trace] for each in rows]
        return Windows(
            market=np.array(markets, np.intp),
            start=np.array([each.start for each in rows], np.intp),
            work_s=self.settings.work_s,
            deadline_s=np.full(len(rows), deadline_s),
            changeover_s=np.full(len(rows), changeover_s),
        )

    def summary(self, result: Result) -> dict[str, Json]:
        """A result as JSON."""
        runs, gap_s = result.runs, self._market.gap_s
        ticks = np.ceil((self.settings.work_s + result.changeover_s) / gap_s - ROUNDING)
        whole_usd = ticks * gap_s / HOUR_S * self.settings.terms.on_demand_usd_per_hour
        cost = runs.cost_usd
        body: dict[str, Json] = {
            "policy": result.policy,
            "deadline_h": result.deadline_s / HOUR_S,
            "changeover_h": result.changeover_s / HOUR_S,
            "runs": len(cost),
            "misses": int(_late_s(result).astype(bool).sum()),
            "late_s_max": float(_late_s(result).max()),
            "cost_usd": {"mean": float(cost.mean()), **_quantiles(cost, (10, 50, 90))},
            "cost_over_on_demand": float(cost.mean() / whole_usd),
        }
        paid_s = runs.spot_s + runs.on_demand_s
        return (
            body
            | {
                "on_demand_share": float(runs.on_demand_s.sum() / paid_s.sum()),
                "spot_h": float(runs.spot_s.mean() / HOUR_S),
                "on_demand_h": float(runs.on_demand_s.mean() / HOUR_S),
                "idle_h": float(runs.idle_s.mean() / HOUR_S),
                "changeovers": float(runs.changeovers.mean()),
                "preemptions": float(runs.preemptions.mean()),
                "finish_h": {
                    "mean": float(runs.finish_s.mean() / HOUR_S),
                    **_quantiles(runs.finish_s / HOUR_S, (90,)),
                },
            }
            | ({"forecast": _accuracy(result, whole_usd)} if result.forecast else {})
        )

    def rows(self, result: Result) -> Iterable[Sequence[str | int | float]]:
        """One line of `COLUMNS` for each run."""
        runs, windows = result.runs, result.windows
        late_s = _late_s(result)
        for row, (market, start) in enumerate(zip(windows.market, windows.start, strict=True)):
            yield (
                self._names[market],
                int(start),
                result.deadline_s / HOUR_S,
                result.changeover_s / HOUR_S,
                result.policy,
                float(runs.cost_usd[row]),
                float(runs.finish_s[row] / HOUR_S),
                int(late_s[row] > 0),
                float(runs.spot_s[row] / HOUR_S),
                float(runs.on_demand_s[row] / HOUR_S),
                int(runs.changeovers[row]),
                int(runs.preemptions[row]),
                *(self._forecast_row(result, row) if self.settings.forecasts else ()),
            )

    def _forecast_row(self, result: Result, row: int) -> Sequence[str | float]:
        found = result.forecast
        if found is None or not found.history[row]:
            return [""] * len(FORECAST_COLUMNS)
        return [float(getattr(found, name)[row]) for name in FORECAST_COLUMNS]


def job_hours(result: Result) -> float:
    """Hours from start to finish of all runs."""
    return float(result.runs.finish_s.sum() / HOUR_S)


def _accuracy(result: Result, whole_usd: float) -> dict[str, Json]:
    """How forecasts compare with what happened; costs as shares of that on demand."""
    found = result.forecast
    assert found, "the runs were forecast"
    rows = found.history > 0
    cost, runs = result.runs.cost_usd[rows], int(rows.sum())
    if not runs:
        return {"runs": 0}
    error = (found.p50_usd[rows] - cost) / whole_usd
    inside = (found.p10_usd[rows] <= cost) & (cost <= found.p90_usd[rows])
    late = _late_s(result)[rows] > 0
    return {
        "runs": runs,
        "mae_over_on_demand": float(np.abs(error).mean()),
        "bias_over_on_demand": float(error.mean()),
        "coverage_p10_p90": float(inside.mean()),
        "late_brier": float(np.square(found.p_late[rows] - late).mean()),
    }


def _late_s(result: Result) -> Numbers:
    late_s = result.runs.finish_s - result.windows.deadline_s
    return np.where(late_s > ROUNDING, late_s, 0.0)


def _quantiles(values: Numbers, percents: Sequence[int]) -> dict[str, float]:
    return {f"p{each}": float(np.percentile(values, each)) for each in percents}
