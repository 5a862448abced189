"""Commands that diagnose a job: bundle, manifest, comparison, hints and rank presence."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.api.schemas.diagnostics import EvidenceOut, HintsOut
from holdfast.cli import output
from holdfast.cli.metrics import print_rates
from holdfast.cli.output import AsJson
from holdfast.cli.usage.job_argument import JobId, OtherJobId
from holdfast.client import Client
from holdfast.errors import BadRequest
from holdfast.settings import read_settings


def bundle(
    job_id: JobId,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Output file; default: holdfast-JOB.zip in the current directory.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Save everything known about a job as a zip file: job file, events, logs and costs."""
    place = file or Path(f"holdfast-{job_id}.zip")
    with Client.from_settings(read_settings()) as client:
        data = client.diagnostics.bundle(job_id)
    _save(place, data)
    if as_json:
        sha256 = hashlib.sha256(data).hexdigest()
        output.print_json({"file": str(place), "size_bytes": len(data), "sha256": sha256})
    else:
        output.echo(f"saved {output.size(len(data))} as {place}")


def manifest(
    job_id: JobId,
    *,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", min=1, metavar="N", help="Attempt; default: the newest."),
    ] = None,
    lock: Annotated[
        bool,
        typer.Option("--lock", help="Print the installed packages as a requirements file for pip."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run was made from: configuration, code, seeds, packages and machines."""
    with Client.from_settings(read_settings()) as client:
        response = client.diagnostics.manifest(job_id, attempt)
    if lock:
        typer.echo("".join(f"{line}\n" for line in response.get("lock", ())), nl=False)
    elif as_json:
        output.print_json(response)
    else:
        _print(response)


def _print(response: dict[str, Any]) -> None:
    packages = response.pop("lock", [])
    for name, value in response.items():
        text = value if isinstance(value, str) else json.dumps(value)
        output.console.print(f"{name:<16} {text}", markup=False)
    output.console.print(f"{'packages':<16} {len(packages)}; --lock lists them", markup=False)


def _save(place: Path, data: bytes) -> None:
    """Write a file atomically: an existing file is kept until the new one is complete.

    Raises:
        BadRequest: the file cannot be written.
    """
    try:
        descriptor, draft = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            Path(draft).chmod(0o644)
            Path(draft).replace(place)
        finally:
            Path(draft).unlink(missing_ok=True)
    except OSError as error:
        raise BadRequest(
            f"{place} cannot be written ({error.strerror or error}); name another file with -o"
        ) from error


def diff(
    before: JobId,
    after: OtherJobId,
    *,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: differences, most relevant first, and relative speed."""
    with Client.from_settings(read_settings()) as client:
        response = client.diagnostics.diff(before, after)
    if as_json:
        output.print_json(response)
        return
    old, new = response.steps_per_hour_before, response.steps_per_hour_after
    if old and new:
        change = abs(new / old - 1)
        word = "slower" if new < old else "quicker"
        speed = (
            f"{after} is {change:.0%} {word}: {old:,.0f} -> {new:,.0f} steps an hour of useful time"
        )
        output.console.print(speed, markup=False)
    print_rates(response)
    if not response.differences:
        output.echo("the workers reported no differences")
        return
    table = output.table("KIND", "ITEM", "BEFORE", "AFTER")
    for one in response.differences:
        table.add_row(one.kind, one.key, output.brief(one.before), output.brief(one.after))
    output.print_table(table)


def print_hints(found: HintsOut) -> None:
    """Print probable problems of a job with remedies and evidence; empty if no problem is known."""
    for hint in found.hints:
        more = f" (docs/{hint.page})" if hint.page else ""
        output.console.print(f"hint: {hint.looks} {hint.remedy}{more}", markup=False)
        for one in hint.evidence:
            output.console.print(f"  {_location(one)}: {one.text}", markup=False)
    if found.unread:
        output.echo(f"hints do not include the logs: {found.unread}")


def _location(one: EvidenceOut) -> str:
    if one.rank is not None:
        return f"attempt {one.attempt}, rank {one.rank}"
    return f"attempt {one.attempt}" + (f", node {one.node}" if one.node is not None else "")


def ranks(
    job_id: JobId,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Attempt; default: the newest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which node runs each rank of a job, and which ranks are missing."""
    print_rank_presence(job_id, attempt, as_json=as_json)


def print_rank_presence(job_id: str, attempt: int | None, *, as_json: bool) -> None:
    """Print where the ranks of an attempt run and which are missing.

    None selects the newest attempt.
    """
    with Client.from_settings(read_settings()) as client:
        found = client.diagnostics.rank_presence(job_id, attempt)
    if as_json:
        output.print_json(found)
        return
    of = "" if found.world_size is None else f"/{found.world_size}"
    output.console.print(f"attempt {found.attempt}: {len(found.seen)}{of} ranks seen", markup=False)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for one in found.seen:
        places[one.node].append(one.rank)
    for node, there in sorted(places.items()):
        output.console.print(f"  node {node}: {', '.join(_spans(there))}", markup=False)
    if found.missing:
        output.console.print(f"missing: {', '.join(_spans(found.missing))}", markup=False)


def _spans(numbers: Iterable[int]) -> Iterator[str]:
    """Format sorted numbers with ranges: 3, 5-7."""
    first = last = None
    for number in numbers:
        if last is not None and number == last + 1:
            last = number
            continue
        if first is not None:
            yield f"{first}" if first == last else f"{first}-{last}"
        first = last = number
    if first is not None:
        yield f"{first}" if first == last else f"{first}-{last}"
