"""The command `simulate`: policies over recorded spot markets, without a service."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.progress import Progress

from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.cli.planning import options
from holdfast.cli.planning.options import ALL, APART, OWN, TOGETHER
from holdfast.cli.planning.recordings import (
    Recordings,
    read_recordings,
    read_windows,
    write_rows,
)
from holdfast.cli.usage.shared_options import with_options
from holdfast.errors import BadRequest

if TYPE_CHECKING:
    from holdfast.domain.planning.backtest import BackTest, Json, Result

DEFAULT_POLICIES: Final = ("greedy", "uniform-progress", "threshold", "holdfast", "on-demand")
DEFAULT_STARTS: Final = 20


@with_options("terms", options.replay_terms)
@with_options("recordings", read_recordings)
def simulate(
    recordings: Recordings,
    *,
    work: options.Work,
    deadline: options.Deadlines,
    changeover: options.Changeover = "6m",
    spot_price: options.SpotPrice = None,
    terms: options.TermValues,
    policy: options.Policies = None,
    windows: options.Windows = None,
    starts: options.Starts = None,
    seed: options.Seed = None,
    forecast: options.Forecasts = False,
    rows: options.Rows = None,
    as_json: AsJson = False,
) -> None:
    """Replay policies over recorded spot markets, and compare what jobs cost and when they end."""
    from holdfast.domain.planning import backtest, replay  # noqa: PLC0415 - NumPy

    began_s = time.process_time()
    if spot_price is not None:
        options.check_price("--spot-price", spot_price)
    elif not recordings.prices:
        raise BadRequest("--spot-price is missing; write USD per hour, or --prices FILE.json")
    work_s = options.work_s(work)
    settings = backtest.BackTestSettings(
        work_s=work_s,
        deadlines_s=[options.deadline_s(each, work_s) for each in deadline],
        changeover_s=options.duration_s("--changeover", changeover),
        spot_usd_per_hour=spot_price,
        together=recordings.together,
        policies=[backtest.check_policy(each) for each in policy or DEFAULT_POLICIES],
        terms=replay.Terms(**terms),
        forecasts=forecast,
    )
    read = recordings.traces
    chosen = (
        read_windows(windows)
        if windows
        else backtest.even_windows(
            read[:1] if recordings.together else read,
            starts or DEFAULT_STARTS,
            max(settings.deadlines_s),
            seed,
        )
    )
    test = backtest.BackTest(read, chosen, settings, recordings.prices)
    results = [*_run(test, quiet=as_json)]
    results.sort(key=lambda one: (one.deadline_s, one.changeover_s))
    if rows:
        write_rows(rows, test, results)
    if as_json:
        hours = sum(map(backtest.job_hours, results))
        cpu_s = time.process_time() - began_s
        output.print_json(_body(test, results) | {"job_hours": hours, "cpu_s": cpu_s})
    else:
        _print(test, results)


def _run(test: BackTest, *, quiet: bool) -> Iterator[Result]:
    with Progress(console=output.errors, transient=True, disable=quiet) as progress:
        task = progress.add_task("replaying", total=test.count())
        for result in test.results():
            progress.advance(task)
            yield result


def _body(test: BackTest, results: Sequence[Result]) -> dict[str, Json]:
    settings, terms = test.settings, test.settings.terms
    return {
        "settings": {
            "work_h": settings.work_s / 3600,
            "deadlines_h": [each / 3600 for each in settings.deadlines_s],
            "changeover_s": settings.changeover_s,
            "spot_usd_per_hour": settings.spot_usd_per_hour,
            "on_demand_usd_per_hour": terms.on_demand_usd_per_hour,
            "zones": TOGETHER if settings.together else APART,
            "sight": ALL if terms.sees_all else OWN,
            "egress_usd": terms.egress_usd,
            "on_demand_wait_s": terms.on_demand_wait_s,
            "lost_work_s": terms.lost_work_s,
            "max_cost_usd": terms.budget_usd if math.isfinite(terms.budget_usd) else None,
            "policies": [*settings.policies],
        },
        "traces": [
            {
                "name": trace.name,
                "gap_seconds": trace.gap_s,
                "ticks": len(trace.available),
                "availability": trace.availability,
            }
            for trace in test.traces
        ],
        "results": [test.summary(result) for result in results],
    }


def _print(test: BackTest, results: Sequence[Result]) -> None:
    right = ("DEADLINE", "CHANGEOVER", "RUNS", "LATE", "COST", "OF ON DEMAND", "SPOT", "ON DEMAND", "LOSSES", "END P90")  # fmt: skip
    table = output.table("POLICY", *right, right=right)
    for result in results:
        one = test.summary(result)
        cost, finish = one["cost_usd"], one["finish_h"]
        assert isinstance(cost, dict)
        assert isinstance(finish, dict)
        table.add_row(
            result.policy,
            f"{one['deadline_h']:.4g} h",
            f"{result.changeover_s:.4g} s",
            str(one["runs"]),
            str(one["misses"] or "-"),
            f"${cost['mean']:,.2f}",
            f"{one['cost_over_on_demand']:.1%}",
            f"{one['spot_h']:.1f} h",
            f"{one['on_demand_h']:.1f} h",
            f"{one['preemptions']:.1f}",
            f"{finish['p90']:.1f} h",
        )
    output.print_table(table)
    for result in results:
        accuracy = test.summary(result).get("forecast")
        if isinstance(accuracy, dict) and accuracy["runs"]:
            output.console.print(
                f"{result.policy}, {result.deadline_s / 3600:.4g} h: of {accuracy['runs']} forecasts, "
                f"{accuracy['coverage_p10_p90']:.0%} of the costs lay between P10 and P90; "
                f"P50 was {accuracy['mae_over_on_demand']:.1%} of the cost on demand away",
                markup=False,
            )
