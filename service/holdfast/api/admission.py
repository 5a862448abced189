"""What submit refuses of a job file that is understood. Submit raises it, a rendering lists it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.api.confining import confine
from holdfast.api.services import Services
from holdfast.domain.rights import Caller
from holdfast.domain.safety import Past, accept
from holdfast.domain.spec import Engine, JobSpec
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
from holdfast.preview import check_deadline

REFUSED = (BadRequest, Conflict, Forbidden, NotFound)
"""Errors that the caller can act upon. Others, such as an unreachable database, are no refusals."""


def refusals(
    services: Services, spec: JobSpec, caller: Caller, project: str, past: Past, *, force: bool
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
