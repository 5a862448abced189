"""What submit refuses of a job file that is understood. Submit raises it, a rendering lists it.

The job from whose checkpoints a new one is to go on, looked up.

What jobs on spot nodes have had at this service, as evidence of whether a new job would lose its work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.api.auth.authentication import project_seen
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.jobfile.spot_safety import HistoricalLifetimes, accept, kind_of
from holdfast.domain.jobs.commands import parent_refusal
from holdfast.errors import (
    BadJobFile,
    BadRequest,
    BudgetSpent,
    Conflict,
    Flaw,
    Forbidden,
    HoldfastError,
    NotFound,
    NotPossibleNow,
)
from holdfast.services import Services
from holdfast.store.billing.preemption_costs import historical_lifetimes
from holdfast.store.ids import made_at
from holdfast.submission.confinement import confine
from holdfast.submission.preview import check_deadline

REFUSED = (BadRequest, Conflict, Forbidden, NotFound)
"""Errors that the caller can act upon. Others, such as an unreachable database, are no refusals."""


def refusals(
    services: Services,
    spec: JobSpec,
    caller: Caller,
    project: str,
    past: HistoricalLifetimes,
    *,
    force: bool,
) -> Iterator[HoldfastError]:
    """The reasons for which a job is not recorded, the first of them first; `past` is that of such nodes."""
    checks: tuple[Callable[[], object], ...] = (
        lambda: _check_engine(services, spec.engine),
        lambda: _check_project(services, project),
        lambda: check_deadline(spec, services.clock.now()),
        lambda: confine(services, spec, caller, project),
        lambda: accept(spec, past, force=force),
    )
    for check in checks:
        try:
            check()
        except REFUSED as error:
            yield error


def check_budgets(services: Services, caller: Caller, project: str) -> None:
    """Check that the budgets of a new job have room. The journal checks again in the transaction that records it.

    Raises:
        BudgetSpent: a budget that pauses jobs is spent.
    """
    now = services.clock.now()
    for purse in services.journal.budgets.of(project, caller.name, now):
        if purse.holds_back(now):
            raise BudgetSpent(purse.told(now))


def _check_project(services: Services, project: str) -> None:
    if services.people.project(project).archived_at:
        raise NotPossibleNow(f"project {project} is archived, and takes no new jobs")


def _check_engine(services: Services, engine: Engine) -> None:
    if engine not in services.launchers:
        here = ", ".join(services.launchers)
        ways = {
            Engine.SKYPILOT: "holdfast up connects one, or ",
            Engine.SLURM: "HOLDFAST_SLURM_FOLDER connects one, or ",
        }
        way_out = ways.get(engine, "")
        flaw = Flaw(
            "#/resources/infra",
            f"needs the {engine} launcher, which this service does not have; {way_out}write infra: {here}",
        )
        raise BadJobFile((flaw,))


PLACE = "#/holdfast/checkpoint/from"


def _unknown(job_id: str) -> str:
    """Where a job begins whose forebear was lost with a database. Only the store can know its checkpoints."""
    return (
        f"job {job_id} is not in the database: it goes on from the newest checkpoint of that job in the store, or from "
        "step 0 if there is none"
    )


def check_parent_job(services: Services, spec: JobSpec, caller: Caller) -> tuple[str, ...]:
    """Where a new job begins, for whoever submits it; nothing where it begins at step 0.

    Raises:
        BadJobFile: there is no such job as far as the caller may know, or it cannot be gone on from.
    """
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is None or checkpoint.from_job is None:
        return ()
    job_id = checkpoint.from_job
    if project_seen(services, caller, job_id) is None:
        if caller.may(Action.MANAGE_SERVICE) and made_at(job_id):
            return (_unknown(job_id),)
        raise BadJobFile((Flaw(PLACE, f"there is no job {job_id}"),))
    job = services.journal.read(job_id)
    digest, _ = services.digests.of([job], services.clock.now())[job_id]
    newest = digest.newest
    if no := parent_refusal(job, digest.spec, newest, checkpoint.store):
        raise BadJobFile((Flaw(PLACE, no),))
    assert newest, "asked for above"
    return (f"it goes on from job {job_id}, at step {newest.step} (checkpoint {newest.name})",)


def past_for(services: Services, spec: JobSpec) -> HistoricalLifetimes:
    """What the newest jobs on the same kind of nodes have had; empty for a job that takes no nodes of a cloud."""
    if spec.engine is not Engine.SKYPILOT:
        return HistoricalLifetimes()
    return historical_lifetimes(services.engine, kind_of(spec.resources))
