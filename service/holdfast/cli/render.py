"""The command that prints what would be launched, or commands for a launch by hand."""

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
    bool, typer.Option("--local", help="Render on this machine even if a service is available.")
]


class RenderTarget(StrEnum):
    """Target of the rendering."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"


Nnodes = Annotated[
    str | None,
    typer.Option(
        "--nnodes",
        metavar="[MIN:]MAX",
        help="With 2:3, training continues on two nodes if one is lost.",
    ),
]


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
            help="Print commands to start it without the service: torchrun per node, or a script for sbatch.",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="Host of each node in order; repeatable. Default: this machine.",
        ),
    ] = None,
    nproc: Annotated[
        list[int] | None,
        typer.Option(
            "--nproc-per-node",
            metavar="N",
            min=1,
            help="Processes of each node in order; a single value applies to all.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=1024, max=65535, help="Rendezvous port on the first host.")
    ] = 29400,
    nnodes: Nnodes = None,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Print exactly what would be launched, without launching it."""
    task, by_hand = task_of(file, name, env, secret), None
    if launcher is RenderTarget.TORCHRUN:
        by_hand = _by_hand_in(host or [], nproc or [], port, nnodes)
    elif host or nproc or nnodes:
        raise BadRequest("--host, --nproc-per-node and --nnodes require --launcher torchrun")
    asked = RenderTaskIn(
        **task.model_dump(exclude_unset=True),
        by_hand=by_hand,
        sbatch=launcher is RenderTarget.SLURM,
    )
    rendered = _render_locally(asked, "as requested by --local") if local else _rendered(asked)
    if as_json:
        output.print_json(rendered)
        return
    for note in rendered.notes:
        output.echo(f"note: {note}")
    if launcher is None:
        # Only the service refuses a job; these commands run without it.
        for reason in rendered.refused:
            output.echo(f"submit refuses this job: {reason}")
    typer.echo(_shown(rendered, launcher), nl=False)


def _rendered(asked: RenderTaskIn) -> RenderOut:
    """Render at the service, or on this machine if no service responds."""
    try:
        with connect() as client:
            return client.jobs.render(asked)
    except NoAnswer:
        return _render_locally(asked, f"as no service responds at {client.url}")


def _render_locally(asked: RenderTaskIn, why: str) -> RenderOut:
    # Imported here: with a service, the command starts without the renderer.
    from holdfast.domain.jobfile.parser import Overrides  # noqa: PLC0415
    from holdfast.rendering import TorchrunRequest  # noqa: PLC0415
    from holdfast.submission.preview import (  # noqa: PLC0415
        PreviewOptions,
        preview_without_service,
    )

    overrides = Overrides(
        name=asked.name,
        envs=asked.env,
        secrets=asked.secrets,
        base_dir=asked.base_dir,
        home_dir=asked.home_dir,
    )
    by_hand = TorchrunRequest(**asked.by_hand.model_dump()) if asked.by_hand else None
    options = PreviewOptions(by_hand=by_hand, sbatch=asked.sbatch)
    now = SystemClock().now()
    shown = preview_without_service(asked.task, overrides, options, now, force=asked.force)
    rendered = RenderOut.model_validate(shown, from_attributes=True)
    output.echo(
        f"rendered on this machine, {why}; assumed: a service with the launcher {rendered.engine}, where past jobs, "
        "projects, budgets, permissions for directories and notification settings refuse nothing"
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
    """Parse the minimum and maximum number of nodes from `3` or `2:3`; None if not given."""
    found = re.fullmatch(r"(?:([0-9]{1,4}):)?([0-9]{1,4})", nnodes or "")
    if nnodes is not None and not found:
        raise BadRequest(
            f"--nnodes: {nnodes!r} is not a number of nodes; write 3, or 2:3 for two or three"
        )
    return (int(found[1]) if found[1] else None, int(found[2])) if found else (None, None)


def _by_hand(nodes: list[NodeCommandOut]) -> str:
    """Join the commands of all nodes; each one runs on its own host."""
    ranks = sum(node.ranks for node in nodes)
    return "\n".join(
        f"# node {number} of {len(nodes)}, on {node.host}: {node.ranks} of {ranks} ranks\n{node.command}"
        for number, node in enumerate(nodes, 1)
    )
