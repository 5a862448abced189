"""What jobs on spot nodes have had at this service, as evidence of whether a new job would lose its work."""

from __future__ import annotations

from holdfast.api.services import Services
from holdfast.domain.safety import Past, kind_of
from holdfast.domain.spec import Engine, JobSpec
from holdfast.store.survival import past_of


def past_for(services: Services, spec: JobSpec) -> Past:
    """What the newest jobs on the same kind of nodes have had; empty for a job that takes no nodes of a cloud."""
    if spec.engine is not Engine.SKYPILOT:
        return Past()
    return past_of(services.engine, kind_of(spec.resources))
