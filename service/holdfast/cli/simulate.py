"""The command `simulate`: policies over recorded spot markets, without a service."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from holdfast_worker.protocol.release import requirement
from rich.progress import Progress

from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.errors import BadRequest, NotInstalled

if TYPE_CHECKING:
    from holdfast.domain.planning.backtest import BackTest, Json, Result, Window
    from holdfast.domain.planning.traces import Numbers, Trace

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DEFAULT_POLICIES: Final = ("greedy", "uniform-progress", "threshold", "holdfast", "on-demand")
APART, TOGETHER = "apart", "together"
ALL, OWN = "all", "own"
SUFFIXES: Final = (".json", ".csv")


def simulate(  # noqa: PLR0913 - one parameter for each option
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE|DIR...", help="Recorded availability, JSON or CSV."),
    ],
    *,
    work: Annotated[str, typer.Option("--work", help="Training time without losses, such as 48h.")],
    deadline: Annotated[
        list[str],
        typer.Option(
            "--deadline", help="Time until the deadline, such as 52h, or 1.1x of the work."
        ),
    ],
    changeover: Annotated[
        str, typer.Option("--changeover", help="Time without progress after each start.")
    ] = "6m",
    spot_price: Annotated[
        float | None, typer.Option("--spot-price", help="USD per hour of spot nodes.")
    ] = None,
    on_demand_price: Annotated[
        float, typer.Option("--on-demand-price", help="USD per hour of on-demand nodes.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="Policy to run; all but optimal by default."),
    ] = None,
    gang: Annotated[int, typer.Option("--gang", min=1, help="Nodes needed at once.")] = 1,
    windows: Annotated[
        Path | None,
        typer.Option("--windows", help="CSV of starts: trace, start_index, length_ticks."),
    ] = None,
    starts: Annotated[
        int | None, typer.Option("--starts", min=1, help="Starts in each trace. Default: 20.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Random starts instead of even ones.")
    ] = None,
    zones: Annotated[
        str, typer.Option("--zones", help="Replay zones apart, or together as places of one job.")
    ] = APART,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", help="JSON of spot prices for each tick of each trace."),
    ] = None,
    egress_usd_per_gb: Annotated[
        float, typer.Option("--egress-usd-per-gb", min=0, help="Price of moves between regions.")
    ] = 0.0,
    checkpoint_gb: Annotated[
        float, typer.Option("--checkpoint-gb", min=0, help="Size of what moves.")
    ] = 0.0,
    sight: Annotated[
        str,
        typer.Option(
            "--sight", help="Spot availability that is seen: all, or what own launches meet."
        ),
    ] = ALL,
    on_demand_wait: Annotated[
        str, typer.Option("--on-demand-wait", help="Wait for on-demand nodes.")
    ] = "0s",
    notice: Annotated[
        str, typer.Option("--notice", help="Time between the notice and the loss of spot nodes.")
    ] = "0s",
    lost_work: Annotated[
        str, typer.Option("--lost-work", help="Progress lost with spot nodes without notice.")
    ] = "0s",
    rows: Annotated[
        Path | None, typer.Option("--rows", help="Write a CSV with one line per run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay policies over recorded spot markets, and compare what jobs cost and when they end."""
    try:
        from holdfast.domain.planning import backtest, replay, traces  # noqa: PLC0415 - NumPy
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"simulate needs NumPy; install it with: pip install '{requirement('service')}'"
        ) from error

    began_s = time.process_time()
    _check_word("--zones", zones, (APART, TOGETHER))
    _check_word("--sight", sight, (ALL, OWN))
    together = zones == TOGETHER
    _check_price("--on-demand-price", on_demand_price)
    if spot_price is not None:
        _check_price("--spot-price", spot_price)
    elif not prices:
        raise BadRequest("--spot-price is missing; write USD per hour, or --prices FILE.json")
    work_s = _duration("--work", work)
    if work_s <= 0:
        raise BadRequest(f"--work {work}: write a time above 0, such as 48h")
    read = [*_read_traces(paths, gang)]
    traces.check_together(read, together=together)
    notice_s, lost_s = _duration("--notice", notice), _duration("--lost-work", lost_work)
    settings = backtest.Settings(
        work_s=work_s,
        deadlines_s=[_deadline(each, work_s) for each in deadline],
        changeover_s=_duration("--changeover", changeover),
        spot_usd_per_hour=spot_price,
        together=together,
        policies=[backtest.check_policy(each) for each in policy or DEFAULT_POLICIES],
        terms=replay.Terms(
            on_demand_usd_per_hour=on_demand_price,
            egress_usd=egress_usd_per_gb * checkpoint_gb if together else 0.0,
            sees_all=sight == ALL,
            on_demand_wait_s=_duration("--on-demand-wait", on_demand_wait),
            # With a notice, what was done before it is saved.
            lost_work_s=min(lost_s, notice_s) if notice_s else lost_s,
        ),
    )
    longest_s = max(settings.deadlines_s)
    found = read[:1] if together else read
    chosen = (
        _read_windows(windows)
        if windows
        else backtest.even_windows(found, starts or 20, longest_s, seed)
    )
    test = backtest.BackTest(read, chosen, settings, _read_prices(prices, read))
    results = [*_run(test, quiet=as_json)]
    results.sort(key=lambda one: (one.deadline_s, one.changeover_s))
    if rows:
        _write_rows(rows, test, results)
    if as_json:
        hours = sum(map(backtest.job_hours, results))
        body = _body(test, results) | {"job_hours": hours, "cpu_s": time.process_time() - began_s}
        output.print_json(body)
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


def _read_traces(paths: Sequence[Path], gang: int) -> Iterator[Trace]:
    from holdfast.domain.planning import traces  # noqa: PLC0415 - NumPy

    for path in paths:
        files = [path]
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES)
            if not files:
                raise BadRequest(f"{path}: no file there ends with .json or .csv")
        for file in files:
            text = _read(file)
            if file.suffix == ".csv":
                yield from traces.parse_csv(file.name, text, gang)
            else:
                yield traces.parse_json(file.stem, text, gang)


def _read(path: Path) -> str:
    from holdfast.domain.planning.traces import MAX_BYTES  # noqa: PLC0415 - NumPy

    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise BadRequest(f"{path} is larger than {MAX_BYTES // 2**20} MiB; split the recording")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path}: not a text file") from error


def _read_windows(path: Path) -> list[Window]:
    from holdfast.domain.planning.backtest import Window  # noqa: PLC0415 - NumPy

    lines = csv.DictReader(io.StringIO(_read(path)))
    missing = {"trace", "start_index"} - {*(lines.fieldnames or ())}
    if missing:
        raise BadRequest(f"{path}: the column {min(missing)} is missing")
    found = []
    for number, line in enumerate(lines, 2):
        hours = line.get("changeover_h")
        try:
            changeover_s = round(float(hours) * 3600, 6) if hours else None
            start = int(line["start_index"])
        except (TypeError, ValueError) as error:
            raise BadRequest(
                f"{path}: line {number}: start_index must be a tick, and changeover_h hours"
            ) from error
        if changeover_s is not None and not 0 <= changeover_s < math.inf:
            raise BadRequest(f"{path}: line {number}: changeover_h {hours} must be at least 0")
        found.append(Window(line["trace"], start, changeover_s))
    if not found:
        raise BadRequest(f"{path}: no windows; write one line for each start")
    return found


def _read_prices(path: Path | None, read: Sequence[Trace]) -> dict[str, Numbers] | None:
    from holdfast.domain.planning import traces  # noqa: PLC0415 - NumPy

    return traces.parse_prices(_read(path), read, str(path)) if path else None


def _write_rows(path: Path, test: BackTest, results: Sequence[Result]) -> None:
    from holdfast.domain.planning.backtest import COLUMNS  # noqa: PLC0415 - NumPy

    try:
        with path.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(COLUMNS)
            for result in results:
                lines.writerows(test.rows(result))
    except OSError as error:
        raise BadRequest(f"--rows {path}: {error.strerror}") from error


def _check_word(option: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        raise BadRequest(f"{option} {word}: write {' or '.join(words)}")


def _check_price(option: str, price: float) -> None:
    if not 0 < price < math.inf:
        raise BadRequest(f"{option} {price}: write USD per hour above 0")


def _deadline(text: str, work_s: float) -> float:
    if text.endswith("x"):
        try:
            factor = float(text[:-1])
        except ValueError:
            factor = math.nan
        if not 1 <= factor < math.inf:
            raise BadRequest(
                f"--deadline {text}: write a multiple of the work above 1, such as 1.25x"
            )
        return factor * work_s
    return _duration("--deadline", text)


def _duration(option: str, text: str) -> float:
    number, unit = text[:-1], text[-1:]
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise BadRequest(f"{option} {text}: write a time such as 45s, 30m, 4h or 3d")
    return seconds
