"""The commands that keep the evidence of a job: all of it, or what it came from.

The command that puts two jobs side by side.

Hints on a job as the command line shows them.

The roll of a job's ranks as the command line shows it.
"""

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
from holdfast.cli.options import JobId
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client.diagnostics import EvidenceClient
from holdfast.errors import BadRequest
from holdfast.settings import read_settings


def bundle(
    job_id: JobId,
    *,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to; without it, holdfast-JOB.zip here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Save all that is known of a job as a zip file: what was asked for, what happened, what it cost."""
    place = file or Path(f"holdfast-{job_id}.zip")
    with Client.from_settings(read_settings()) as client:
        data = EvidenceClient(client).bundle(job_id)
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
        typer.Option("--attempt", min=1, metavar="N", help="Of this one instead of the newest."),
    ] = None,
    lock: Annotated[
        bool, typer.Option("--lock", help="Print what was installed, as a file for pip.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run came from: configuration, code, seeds, packages, machines."""
    with Client.from_settings(read_settings()) as client:
        told = EvidenceClient(client).manifest(job_id, attempt)
    if lock:
        typer.echo("".join(f"{line}\n" for line in told.get("lock", ())), nl=False)
    elif as_json:
        output.print_json(told)
    else:
        _print(told)


def _print(told: dict[str, Any]) -> None:
    packages = told.pop("lock", [])
    for name, value in told.items():
        text = value if isinstance(value, str) else json.dumps(value)
        output.console.print(f"{name:<16} {text}", markup=False)
    output.console.print(f"{'packages':<16} {len(packages)}; --lock lists them", markup=False)


def _save(place: Path, data: bytes) -> None:
    """A whole file or none: one that was there stays until the new one is.

    Raises:
        BadRequest: it cannot be written there.
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
    before: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job that is known.")],
    after: Annotated[str, typer.Argument(metavar="OTHER", help="Id of the one to explain.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show what is other in one run than in another, what explains most first, and how much slower it is."""
    with Client.from_settings(read_settings()) as client:
        told = EvidenceClient(client).diff(before, after)
    if as_json:
        output.print_json(told)
        return
    old, new = told.steps_per_hour_before, told.steps_per_hour_after
    if old and new:
        change = abs(new / old - 1)
        word = "slower" if new < old else "quicker"
        speed = (
            f"{after} is {change:.0%} {word}: {old:,.0f} -> {new:,.0f} steps an hour of useful time"
        )
        output.console.print(speed, markup=False)
    if not told.differences:
        output.echo("nothing is other in what their workers told")
        return
    table = output.table("KIND", "WHAT", "BEFORE", "AFTER")
    for one in told.differences:
        table.add_row(one.kind, one.key, output.brief(one.before), output.brief(one.after))
    output.print_table(table)


def print_hints(found: HintsOut) -> None:
    """Print what the trouble looks like, what to do, and from what that follows; nothing where nothing is known to be wrong."""
    for hint in found.hints:
        more = f" (docs/{hint.page})" if hint.page else ""
        output.console.print(f"hint: {hint.looks} {hint.remedy}{more}", markup=False)
        for one in hint.evidence:
            output.console.print(f"  {_where(one)}: {one.text}", markup=False)
    if found.unread:
        output.echo(f"the logs were not read for hints: {found.unread}")


def _where(one: EvidenceOut) -> str:
    if one.rank is not None:
        return f"attempt {one.attempt}, rank {one.rank}"
    return f"attempt {one.attempt}" + (f", node {one.node}" if one.node is not None else "")


def ranks(
    job_id: JobId,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Which attempt; none given: the newest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print which ranks of a job are on which node, and which were not heard of."""
    print_roll(job_id, attempt, as_json=as_json)


def print_roll(job_id: str, attempt: int | None, *, as_json: bool) -> None:
    """Print where the ranks of an attempt are, and which are missing; None: of the newest."""
    with Client.from_settings(read_settings()) as client:
        found = EvidenceClient(client).roll(job_id, attempt)
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
    """Numbers in order, those that follow each other as one: 3, 5-7."""
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
