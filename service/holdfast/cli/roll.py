"""The roll of a job's ranks as the command line shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import JobId
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client_evidence import EvidenceClient
from holdfast.settings import read_settings


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
