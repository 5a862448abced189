"""The command that checks whether everything that a job needs is installed and reachable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.doctor import (
    Finding,
    Grade,
    check_distance,
    check_machine,
    check_service,
    check_store,
    measure_performance,
    store_in,
)
from holdfast.errors import HoldfastError
from holdfast.settings import read_settings

GRADE_LABELS: Final = {
    Grade.OK: ("✓ ok", "green"),
    Grade.WARNING: ("! warning", "yellow"),
    Grade.MISSING: ("✗ missing", "red"),
}


def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Job file whose checkpoint store is tested."),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="Checkpoint store to test, such as s3://bucket/x.")
    ] = None,
    perf: Annotated[
        bool, typer.Option("--perf", help="Also measure disk, cores, loopback and store.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check everything that a job needs, with remedies; exit with 1 if something is missing."""
    written = store_in(file) if file else None
    found = []
    for finding in _findings(list(filter(None, [store, written])), file, is_measured=perf):
        found.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        output.print_json(found)
    if any(finding.grade is Grade.MISSING for finding in found):
        raise typer.Exit(1)


def _findings(stores: list[str], file: Path | None, *, is_measured: bool) -> Iterator[Finding]:
    machine = list(check_machine())
    yield from machine
    settings = read_settings()
    try:
        client = Client.from_settings(settings)
    except HoldfastError as error:
        todo = "set HOLDFAST_URL to the address of a service"
        yield Finding(about="service", grade=Grade.MISSING, told=error.detail, todo=todo)
    else:
        with client:
            yield from check_service(client, client.url)
    for store in stores:
        yield check_store(store)
    if file and stores and (distance := check_distance(file, stores[-1])):
        yield distance
    if is_measured:
        gpus = next((one.told for one in machine if one.about == "gpus"), "0")
        store_or_none = stores[0] if stores else None
        yield from measure_performance(settings.home, store_or_none, int(gpus.split()[0]))


def _print(finding: Finding) -> None:
    sign, style = GRADE_LABELS[finding.grade]
    output.console.print(
        Text.assemble((f"{sign:<10}", style), f" {finding.about:<9} {finding.told}")
    )
    if finding.todo:
        output.console.print(f"{'':<10} {'':<9} → {finding.todo}", markup=False)
