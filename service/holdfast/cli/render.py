"""The command that prints what would be launched, and what people type who launch it themselves."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer
from pydantic import ValidationError

from holdfast.api.schemas.jobs import ByHandIn, NodeCommandOut, RenderOut, RenderTaskIn
from holdfast.cli import output
from holdfast.cli.jobs import Envs, File, Name, Secrets, connect, task_of
from holdfast.cli.output import AsJson
from holdfast.client import NoAnswer
from holdfast.clock import SystemClock
from holdfast.errors import BadRequest

Local = Annotated[
    bool, typer.Option("--local", help="Render on this machine, even if a service answers.")
]


class RenderTarget(StrEnum):
    """Who is to launch it."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"


def render(
    file: File,
    *,
    name: Name = None,
    env: Envs = None,
    secret: Secrets = None,
    launcher: Annotated[
        RenderTarget | None,
        typer.Option(
            "--launcher",
            help="Print what people start it with themselves: the command of each node, or a script for sbatch.",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="Of each node in turn; repeatable. Default: this machine.",
        ),
    ] = None,
    nproc: Annotated[
        list[int] | None,
        typer.Option(
            "--nproc-per-node",
            metavar="N",
            min=1,
            help="Processes of each node in turn; once for all alike.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=1024, max=65535, help="Where they meet, on the first host.")
    ] = 29400,
    nnodes: Annotated[
        str | None,
        typer.Option("--nnodes", metavar="[MIN:]MAX", help="With 2:3, two go on if one is lost."),
    ] = None,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Print exactly what would be launched; launch nothing."""
    task, by_hand = task_of(file, name, env, secret), None
    if launcher is RenderTarget.TORCHRUN:
        by_hand = _by_hand_in(host or [], nproc or [], port, nnodes)
    elif host or nproc or nnodes:
        raise BadRequest("--host, --nproc-per-node and --nnodes are for --launcher torchrun")
    asked = RenderTaskIn(
        **task.model_dump(), by_hand=by_hand, sbatch=launcher is RenderTarget.SLURM
    )
    rendered = _without_service(asked, "as --local says") if local else _answer(asked)
    if as_json:
        output.print_json(rendered)
        return
    for note in rendered.notes:
        output.echo(f"note: {note}")
    if launcher is None:
        # Who launches it themselves does not submit it.
        for reason in rendered.refused:
            output.echo(f"submit refuses this job: {reason}")
    typer.echo(_shown(rendered, launcher), nl=False)


def _answer(asked: RenderTaskIn) -> RenderOut:
    """What the service would launch; what this machine renders where no service answers."""
    try:
        with connect() as client:
            return client.render(asked)
    except NoAnswer:
        return _without_service(asked, f"as no service answers at {client.url}")


def _without_service(asked: RenderTaskIn, why: str) -> RenderOut:
    # Only here: with a service, the command starts without the renderer.
    from holdfast.submission.preview import preview_without_service  # noqa: PLC0415

    rendered = preview_without_service(asked, SystemClock().now())
    output.echo(
        f"rendered on this machine, {why}; assumed: a service that has the launcher {rendered.engine}, where past jobs, "
        "projects, budgets, rights to folders and notification settings refuse nothing"
    )
    return rendered


def _by_hand_in(hosts: list[str], ranks: list[int], port: int, nnodes: str | None) -> ByHandIn:
    least, nodes = _numbers(nnodes)
    try:
        return ByHandIn(hosts=hosts, ranks=ranks, port=port, nodes=nodes, least_nodes=least)
    except ValidationError as error:
        raise output.refused(error) from error


def _shown(rendered: RenderOut, launcher: RenderTarget | None) -> str | None:
    match launcher:
        case RenderTarget.TORCHRUN:
            return _by_hand(rendered.by_hand)
        case RenderTarget.SLURM:
            return rendered.sbatch
        case None:
            return rendered.task


def _numbers(nnodes: str | None) -> tuple[int | None, int | None]:
    """How many nodes at least and at most, of `3` or `2:3`; None where nothing is said."""
    found = re.fullmatch(r"(?:([0-9]{1,4}):)?([0-9]{1,4})", nnodes or "")
    if nnodes is not None and not found:
        raise BadRequest(
            f"--nnodes: {nnodes!r} is no number of nodes; write 3, or 2:3 for two or three"
        )
    return (int(found[1]) if found[1] else None, int(found[2])) if found else (None, None)


def _by_hand(nodes: list[NodeCommandOut]) -> str:
    """The commands of all nodes, one after the other; together they are no script."""
    ranks = sum(node.ranks for node in nodes)
    return "\n".join(
        f"# node {number} of {len(nodes)}, on {node.host}: {node.ranks} of {ranks} ranks\n{node.command}"
        for number, node in enumerate(nodes, 1)
    )
