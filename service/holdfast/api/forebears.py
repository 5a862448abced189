"""The job from whose checkpoints a new one is to go on, looked up."""

from __future__ import annotations

from holdfast.api.auth import project_seen
from holdfast.api.services import Services
from holdfast.domain.forebears import why_no_forebear
from holdfast.domain.rights import Action, Caller
from holdfast.domain.spec import JobSpec
from holdfast.errors import BadJobFile, Flaw
from holdfast.store.ids import made_at

PLACE = "#/holdfast/checkpoint/from"


def _unknown(job_id: str) -> str:
    """Where a job begins whose forebear was lost with a database. Only the store can know its checkpoints."""
    return (
        f"job {job_id} is not in the database: it goes on from the newest checkpoint of that job in the store, or from "
        "step 0 if there is none"
    )


def notes_of_forebear(services: Services, spec: JobSpec, caller: Caller) -> tuple[str, ...]:
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
    if no := why_no_forebear(job, digest.spec, newest, checkpoint.store):
        raise BadJobFile((Flaw(PLACE, no),))
    assert newest, "asked for above"
    return (f"it goes on from job {job_id}, at step {newest.step} (checkpoint {newest.name})",)
