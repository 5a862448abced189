"""Checks of a parsed job file: permissions, budgets, parent job, spot safety and launcher.

A submission raises the refusals; a preview lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from holdfast.addresses import is_here
from holdfast.code_upload.upload_store import Uploads, is_upload
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.jobfile.confinement import confinement_flaws, engines_of, named, store_folder
from holdfast.domain.jobfile.spec import CONNECTED_BY, Engine, JobSpec, launcher_name
from holdfast.domain.jobfile.spot_safety import HistoricalLifetimes, check_spot_safety, spot_kind
from holdfast.domain.jobs.commands import parent_refusal
from holdfast.errors import (
    BadJobFile,
    BadRequest,
    BudgetSpent,
    Conflict,
    Forbidden,
    HoldfastError,
    NotFound,
    NotPossibleNow,
    ValidationIssue,
)
from holdfast.host.allowed_folders import Folders
from holdfast.services import Services
from holdfast.store.billing.preemption_costs import historical_lifetimes
from holdfast.store.ids import made_at

REFUSED = (BadRequest, Conflict, Forbidden, NotFound)
"""Errors that the caller can correct.

Others, such as an unreachable database, are not refusals.
"""


def refusals(
    services: Services,
    spec: JobSpec,
    caller: Caller,
    project: str,
    past: HistoricalLifetimes,
    *,
    force: bool,
) -> Iterator[HoldfastError]:
    """List the reasons for refusing a job in order of the checks.

    `past` holds the lifetimes of such nodes.
    """
    checks: tuple[Callable[[], object], ...] = (
        lambda: _check_engine(services, spec.engine),
        lambda: _check_groups(services, spec),
        lambda: _check_project(services, project),
        lambda: spec.holdfast.limits.check_deadline(services.clock.now()),
        lambda: confine(services, spec, caller, project),
        lambda: check_spot_safety(spec, past, force=force),
    )
    for check in checks:
        try:
            check()
        except REFUSED as error:
            yield error


def check_budgets(services: Services, caller: Caller, project: str) -> None:
    """Check that the budgets of a new job have room.

    The journal checks again in the transaction that records it.

    Raises:
        BudgetSpent: a budget that pauses jobs is spent.
    """
    now = services.clock.now()
    for balance in services.journal.budgets.balances_for(project, caller.name, now):
        if balance.blocks_jobs(now):
            raise BudgetSpent(balance.spent_message(now))


def _check_project(services: Services, project: str) -> None:
    if services.users.project(project).archived_at:
        raise NotPossibleNow(f"project {project} is archived and accepts no new jobs")


def _check_engine(services: Services, engine: Engine) -> None:
    if engine not in services.launchers:
        here = ", ".join(services.launchers)
        other = f", or write infra: {here}" if here else ""
        flaw = ValidationIssue(
            "#/resources/infra",
            f"needs the {launcher_name(engine)} launcher, which this service does not have; {CONNECTED_BY[engine]}{other}",
        )
        raise BadJobFile((flaw,))


def _check_groups(services: Services, spec: JobSpec) -> None:
    """Check that the nodes of groups reach the service, through which they meet."""
    url = services.worker_url
    if not spec.holdfast.groups or not (url and is_here(url)):
        return
    flaw = ValidationIssue(
        "#/holdfast/groups",
        f"need a service that nodes can reach, as they meet through it, and this one names itself {url}; set "
        "HOLDFAST_PUBLIC_URL to an address that nodes can reach, or remove groups",
    )
    raise BadJobFile((flaw,))


PARENT_POINTER = "#/holdfast/checkpoint/from"


def _unknown(job_id: str) -> str:
    """Describe the start of a job whose parent was lost with a database.

    Only the store knows its checkpoints.
    """
    return (
        f"job {job_id} is not in the database: training resumes from its newest checkpoint in the store, or starts at "
        "step 0 without one"
    )


def check_parent_job(services: Services, spec: JobSpec, caller: Caller) -> tuple[str, ...]:
    """Look up the parent job and describe where the new job starts.

    The description is empty if it starts at step 0.

    Raises:
        BadJobFile: the parent is unknown to the caller, or cannot be resumed from.
    """
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is None or checkpoint.from_job is None:
        return ()
    job_id = checkpoint.from_job
    if services.project_seen(caller, job_id) is None:
        if caller.may(Action.MANAGE_SERVICE) and made_at(job_id):
            return (_unknown(job_id),)
        raise BadJobFile((ValidationIssue(PARENT_POINTER, f"there is no job {job_id}"),))
    job = services.journal.read(job_id)
    digest, _ = services.job_summaries.get([job], services.clock.now())[job_id]
    newest = digest.newest_checkpoint
    if no := parent_refusal(job, digest.spec, newest, checkpoint.store):
        raise BadJobFile((ValidationIssue(PARENT_POINTER, no),))
    assert newest, "requested above"
    return (f"it resumes from job {job_id}, at step {newest.step} (checkpoint {newest.name})",)


def lifetimes_for(services: Services, spec: JobSpec) -> HistoricalLifetimes:
    """Return the lifetimes of recent jobs on the same kind of nodes.

    It is empty for a job without cloud nodes.
    """
    if spec.engine is not Engine.SKYPILOT:
        return HistoricalLifetimes()
    return historical_lifetimes(services.engine, spot_kind(spec))


_SEND: Final = "; holdfast submit --upload sends a directory with the job"


def confine(services: Services, spec: JobSpec, caller: Caller, project: str) -> bool:
    """Return whether the job is confined.

    It is if its submitter has no permissions for the service's machine.

    Raises:
        Forbidden: jobs of this caller may not run there.
        BadJobFile: it names something that a confined job may not use.
    """
    is_confined, rules = not caller.is_trusted, services.confinement
    if is_confined and (whys := [*filter(None, map(rules.refused.get, engines_of(spec)))]):
        raise Forbidden(f"{spec.name}: {whys[0]}")
    flaws = [*_missing_code(services, spec), *_missing_workdir(spec)]
    flaws += _folder_issues(spec, rules.folders.of_job(project, is_confined=is_confined))
    if is_confined:
        flaws += confinement_flaws(spec, profiles=rules.profiles)
    if flaws:
        raise BadJobFile(tuple(flaws))
    return is_confined


def _missing_code(services: Services, spec: JobSpec) -> Iterator[ValidationIssue]:
    """Check that the service has the uploaded code, and keep it from deletion."""
    if spec.workdir is None or not is_upload(spec.workdir):
        return
    if services.uploads is None or not services.uploads.mark_used(spec.workdir):
        lost = "is uploaded code that the service does not have or has deleted; submit the job with its directory again"
        yield ValidationIssue("#/workdir", lost)


def _missing_workdir(spec: JobSpec) -> Iterator[ValidationIssue]:
    """Check that the directory of a local job exists; other launchers may see other disks."""
    workdir = spec.workdir
    if spec.engine is not Engine.LOCAL or workdir is None or is_upload(workdir):
        return
    if not Path(workdir).is_dir():
        yield ValidationIssue(
            "#/workdir", f"{workdir} is not a directory on the service's machine{_SEND}"
        )


def _folder_issues(spec: JobSpec, folders: Folders) -> Iterator[ValidationIssue]:
    for one in named(spec):
        if why := folders.refusal(Path(one.path), without_home=one.is_copied):
            is_sendable = folders.is_confined and one.pointer == "#/workdir"
            yield ValidationIssue(one.pointer, f"{one.path} {why}{_SEND if is_sendable else ''}")
    store = store_folder(spec)
    if store is not None and folders.is_confined and (why := folders.refusal(Path(store))):
        yield ValidationIssue("#/holdfast/checkpoint/store", f"{store} {why}")


def uploads_of(services: Services, caller: Caller) -> Uploads:
    """Return the uploaded code of a service for a caller who may submit jobs.

    Raises:
        Forbidden: the caller may submit to no project.
        NotPossibleNow: the service accepts no code.
    """
    if not caller.may_in_any_project(Action.UPLOAD):
        raise Forbidden(
            "uploading code needs the role member in a project; ask an admin of the project"
        )
    if services.uploads is None:
        raise NotPossibleNow("this service accepts no uploaded code")
    return services.uploads
