"""The roll of a job's ranks as the command line shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from holdfast.cli import output
from holdfast.client import Client
from holdfast.client_evidence import EvidenceClient
from holdfast.settings import read_settings


def print_roll(job_id: str, attempt: int | None, *, as_json: bool) -> None:
    """Print which ranks of an attempt were heard of, and which are missing; None: of the newest."""
    with Client.from_settings(read_settings()) as client:
        found = EvidenceClient(client).roll(job_id, attempt)
    if as_json:
        output.print_json(found)
        return
    of = "" if found.world_size is None else f"/{found.world_size}"
    output.console.print(f"attempt {found.attempt}: {len(found.seen)}{of} ranks seen", markup=False)
    for node, count in sorted(Counter(one.node for one in found.seen).items()):
        output.console.print(f"  node {node}: {count}", markup=False)
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
