"""Jobs that would lose their work on spot nodes are refused, unless whoever submits them accepts that."""

from __future__ import annotations

from holdfast.api.services import Services
from holdfast.domain.safety import kind_of, notes_of_safety, unsafe
from holdfast.domain.spec import Engine, JobSpec
from holdfast.errors import BadJobFile
from holdfast.store.survival import past_of


def accept(services: Services, spec: JobSpec, *, force: bool) -> tuple[str, ...]:
    """What whoever submits the job should know; what it would be refused for, where that is accepted.

    Raises:
        BadJobFile: it would lose its work, and nobody has said that this may be.
    """
    if spec.engine is not Engine.SKYPILOT:
        return ()
    past = past_of(services.engine, kind_of(spec.resources))
    flaws = unsafe(spec, past)
    if flaws and not force:
        raise BadJobFile(flaws)
    accepted = tuple(f"refused without --force: {flaw.pointer} {flaw.message}" for flaw in flaws)
    return *accepted, *notes_of_safety(spec, past)
