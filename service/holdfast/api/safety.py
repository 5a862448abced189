"""Jobs that would lose their work on spot nodes are refused, unless whoever submits them accepts that."""

from __future__ import annotations

from holdfast.api.services import Services
from holdfast.domain import safety
from holdfast.domain.spec import Engine, JobSpec
from holdfast.store.survival import past_of


def accept(services: Services, spec: JobSpec, *, force: bool) -> tuple[str, ...]:
    """What whoever submits the job should know; what it would be refused for, where that is accepted.

    Raises:
        BadJobFile: it would lose its work, and nobody has said that this may be.
    """
    if spec.engine is not Engine.SKYPILOT:
        return ()
    past = past_of(services.engine, safety.kind_of(spec.resources))
    return safety.accept(spec, past, force=force)
