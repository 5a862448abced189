"""What would be launched for a job file: the answer of the service, and of a client that has none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from holdfast.api.schemas.jobs import NodeCommandOut, RenderOut, RenderTaskIn, TaskIn
from holdfast.domain.jobfile.parser import Overrides, ParsedJobFile, read
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import HistoricalLifetimes, accept
from holdfast.errors import BadJobFile, Flaw, HoldfastError
from holdfast.rendering import (
    ByHand,
    NodeCommand,
    Rendered,
    by_hand,
    by_sbatch,
    notes_of_hand,
    notes_of_sbatch,
    notes_of_slurm,
    render,
)


def understand(body: TaskIn, code: str | None = None) -> tuple[ParsedJobFile, Rendered]:
    """A job file as it was sent, with uploaded `code` for its folder, and what would be launched for it.

    Raises:
        BadJobFile: it cannot be understood, or asks for what cannot be done.
    """
    overrides = Overrides(
        name=body.name,
        envs=body.env,
        secrets=body.secrets,
        base_dir=body.base_dir,
        home_dir=body.home_dir,
        code=code,
    )
    understood = read(body.task, overrides)
    return understood, render(understood.spec)


def check_deadline(spec: JobSpec, now: datetime) -> None:
    """Check that the deadline of a new job is in the future.

    Raises:
        BadJobFile: it is not.
    """
    deadline = spec.holdfast.limits.deadline_at(now)
    if deadline is not None and deadline <= now:
        flaw = Flaw("#/holdfast/limits/deadline", f"{deadline} is over; write a time to come")
        raise BadJobFile((flaw,))


def preview(
    body: RenderTaskIn,
    understood: ParsedJobFile,
    rendered: Rendered,
    *,
    notes: Sequence[str],
    refusals: Iterable[HoldfastError],
) -> RenderOut:
    """The answer to a request; `notes` and `refusals` come from the caller, which knows what a service knows.

    Raises:
        BadRequest: the job cannot be started by hand as the request says.
    """
    spec = understood.spec
    more = [*notes]
    commands: Sequence[NodeCommand] = ()
    if asked := body.by_hand:
        commands = by_hand(spec, rendered.task, ByHand(**asked.model_dump()))
        more += notes_of_hand(spec)
    if body.sbatch:
        # Of a job that would run elsewhere, too: the same file, on whatever cluster there is.
        more += [*notes_of_slurm(spec), *notes_of_sbatch(spec)]
    return RenderOut(
        engine=spec.engine,
        task=rendered.text,
        sbatch=by_sbatch(spec, rendered.task) if body.sbatch else "",
        by_hand=[NodeCommandOut(host=c.host, ranks=c.ranks, command=c.command) for c in commands],
        notes=[*understood.notes, *rendered.notes, *more],
        refused=[reason for error in refusals for reason in _reasons(error)],
    )


def preview_without_service(body: RenderTaskIn, now: datetime) -> RenderOut:
    """The answer of a service on which no job has run, without checks that need the service.

    Raises:
        BadRequest: as with `understand` and `preview`.
    """
    understood, rendered = understand(body)
    spec = understood.spec
    checkpoint, refusals = spec.holdfast.checkpoint, list[HoldfastError]()
    for check in (
        lambda: check_deadline(spec, now),
        lambda: accept(spec, HistoricalLifetimes(), force=body.force),
    ):
        try:
            check()
        except BadJobFile as flaw:
            refusals.append(flaw)
    notes = accept(spec, HistoricalLifetimes(), force=True)
    if checkpoint is not None and checkpoint.from_job is not None:
        notes += (f"job {checkpoint.from_job}, whose checkpoints it uses, was not looked up",)
    return preview(body, understood, rendered, notes=notes, refusals=refusals)


def _reasons(error: HoldfastError) -> list[str]:
    if isinstance(error, BadJobFile):
        return [f"{flaw.pointer}: {flaw.message}" for flaw in error.flaws]
    return [error.detail]
