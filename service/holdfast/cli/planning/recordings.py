"""Reads and writes the files of `simulate`: traces, prices, windows, lines of runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.planning.options import APART, TOGETHER, Gang, Prices, Zones, check_word
from holdfast.errors import BadRequest

if TYPE_CHECKING:
    from holdfast.domain.planning.backtest import BackTest, Result, Window
    from holdfast.domain.planning.traces import Numbers, Trace

SUFFIXES: Final = (".json", ".csv")
WINDOW_COLUMNS: Final = ("trace", "start_index", "length_ticks")
"""Columns that a file of windows must have."""


@dataclass(frozen=True, slots=True)
class Recordings:
    """Traces to replay."""

    traces: Sequence[Trace]
    prices: Mapping[str, Numbers] | None
    """Of each trace, in USD per hour of each tick."""
    together: bool
    """Whether they are the places of one market."""


def read_recordings(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE|DIR...", help="Recorded availability, JSON or CSV."),
    ],
    *,
    gang: Gang = 1,
    zones: Zones = APART,
    prices: Prices = None,
) -> Recordings:
    """Read traces, and check that they can be replayed in one run.

    Raises:
        BadRequest: A file cannot be read, or does not fit the others.
    """
    from holdfast.domain.planning import traces  # noqa: PLC0415 - NumPy

    check_word("--zones", zones, APART, TOGETHER)
    found = [*_read_traces(paths, gang)]
    traces.check_together(found, together=zones == TOGETHER)
    priced = traces.parse_prices(read_text(prices), found, str(prices)) if prices else None
    return Recordings(found, priced, zones == TOGETHER)


def _read_traces(paths: Sequence[Path], gang: int) -> Iterator[Trace]:
    from holdfast.domain.planning import traces  # noqa: PLC0415 - NumPy

    for file in (file for path in paths for file in trace_files(path)):
        text = read_text(file)
        if file.suffix == ".csv":
            yield from traces.parse_csv(file.name, text, gang)
        else:
            yield traces.parse_json(file.stem, text, gang)


def trace_files(path: Path) -> list[Path]:
    """The files of traces in a folder by name, or the file itself.

    Raises:
        BadRequest: The folder has none.
    """
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES)
    if not files:
        raise BadRequest(f"{path}: no file there ends with .json or .csv")
    return files


def read_text(path: Path) -> str:
    """The text of a file of traces.

    Raises:
        BadRequest: It cannot be read, is too large, or no text.
    """
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


def read_windows(path: Path) -> list[Window]:
    """Read the windows of a CSV file.

    Raises:
        BadRequest: It cannot be read, or has no windows.
    """
    lines = csv.DictReader(read_text(path).splitlines())
    for column in WINDOW_COLUMNS:
        if column not in (lines.fieldnames or ()):
            raise BadRequest(
                f"{path}: the column {column} is missing; write {', '.join(WINDOW_COLUMNS)}"
            )
    found = [_window(f"{path}: line {number}", line) for number, line in enumerate(lines, 2)]
    if not found:
        raise BadRequest(f"{path}: no windows; write one line for each start")
    return found


def _window(where: str, line: Mapping[str, str]) -> Window:
    from holdfast.domain.planning.backtest import Window  # noqa: PLC0415 - NumPy

    try:
        start, length = int(line["start_index"]), int(line["length_ticks"])
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{where}: start_index and length_ticks must be whole numbers") from error
    hours = line.get("changeover_h")
    try:
        changeover_s = round(float(hours) * 3600, 6) if hours else None
    except ValueError:
        changeover_s = math.nan
    if changeover_s is not None and not 0 <= changeover_s < math.inf:
        raise BadRequest(f"{where}: changeover_h is {hours}; write hours, such as 0.02")
    return Window(line["trace"], start, length, changeover_s)


def write_rows(path: Path, test: BackTest, results: Sequence[Result]) -> None:
    """Write one line for each run.

    Raises:
        BadRequest: The file cannot be written.
    """
    from holdfast.domain.planning.backtest import COLUMNS, FORECAST_COLUMNS  # noqa: PLC0415 - NumPy

    try:
        with path.open("w", newline="") as file:
            lines = csv.writer(file)
            more = FORECAST_COLUMNS if test.settings.forecasts else ()
            lines.writerow((*COLUMNS, *more))
            for result in results:
                lines.writerows(test.rows(result))
    except OSError as error:
        raise BadRequest(f"--rows {path}: {error.strerror}") from error
