"""Options of a resume on other nodes, and how its preview is printed."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeAlias

import typer

from holdfast.api.schemas.resize import ResumeNodesOut, ResumePreviewOut
from holdfast.cli import output
from holdfast.errors import BadRequest

NodeOptions: TypeAlias = dict[str, Any]
"""The nodes that a resume asks for, as the API accepts them; empty without changes."""
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")

Nodes = Annotated[
    str | None,
    typer.Option(
        "--nodes", metavar="N|MIN-MAX", help="Number of nodes from now on, or an elastic range."
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option("--gpus", metavar="TYPE:N", help="GPUs of each node, such as A100:8."),
]
Infra = Annotated[
    str | None,
    typer.Option("--infra", metavar="PLACE", help="Place: aws/us-east-1, slurm/PARTITION, local."),
]
Spot = Annotated[
    bool | None, typer.Option("--spot/--on-demand", help="Spot nodes, or on-demand nodes.")
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Accept new nodes as `submit --force` does, and a folder as the store that they share.",
    ),
]


def node_options(
    *,
    nodes: Nodes = None,
    gpus: Gpus = None,
    infra: Infra = None,
    spot: Spot = None,
    force: Force = False,
) -> NodeOptions:
    """Return the nodes that a resume asks for.

    Raises:
        BadRequest: the number of nodes is malformed, or nothing is there to be forced.
    """
    given = {"nodes": _parsed(nodes), "gpus": gpus, "infra": infra, "spot": spot}
    found = {name: value for name, value in given.items() if value is not None}
    if force and not found:
        raise BadRequest("--force: name the new nodes with --nodes, --gpus, --infra or --spot")
    return found | ({"force": True} if force else {})


def _parsed(nodes: str | None) -> int | dict[str, int] | None:
    if nodes is None:
        return None
    match = _RANGE.fullmatch(nodes.strip())
    if match is None:
        raise BadRequest(f"--nodes: {nodes!r} is not a number of nodes; write 4, or a range as 2-8")
    low, high = match.groups()
    return {"min": int(low), "max": int(high)} if high else int(low)


def print_resume_preview(preview: ResumePreviewOut) -> None:
    """Print what a resume would change."""
    rows = [
        ("nodes", _nodes(preview.before), _nodes(preview.after)),
        ("GPUs of each node", preview.before.gpus, preview.after.gpus),
        ("place", preview.before.place, preview.after.place),
        ("capacity", preview.before.capacity, preview.after.capacity),
        ("price per hour", _price(preview.before), _price(preview.after)),
        ("ranks", _count(preview.ranks_before), _count(preview.ranks_after)),
    ]
    table = output.table("", "NOW", "THEN")
    for row in rows:
        table.add_row(*row)
    output.print_table(table)
    forecast = preview.forecast
    expected = f"Forecast: {forecast.sentence}." if forecast else _sentence(preview.forecast_note)
    for sentence in filter(None, (preview.batch, preview.checkpoints, expected)):
        output.console.print(sentence, markup=False)
    for note in (*preview.notes, *(forecast.notes if forecast else ())):
        output.echo(f"note: {note}")
    for issue in forecast.issues if forecast else ():
        output.echo(f"! {issue}")
    for refusal in preview.refused:
        output.echo(f"refused: {refusal}")


def _sentence(note: str) -> str:
    """A note as a sentence; older services send none."""
    return f"{note[:1].upper()}{note[1:]}." if note else ""


def _nodes(nodes: ResumeNodesOut) -> str:
    return str(nodes.nodes) if nodes.min_nodes is None else f"{nodes.min_nodes}-{nodes.nodes}"


def _price(nodes: ResumeNodesOut) -> str:
    if nodes.capacity == "own":
        return "not rented"
    known = nodes.micros_per_hour
    return "unknown" if known is None else output.money(known, simulated=True)


def _count(ranks: int | None) -> str:
    return "unknown" if ranks is None else f"{ranks:,}"
