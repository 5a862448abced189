"""What would be launched for a job file, and how people would start it themselves."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.api.admission import REFUSED, check_budgets, refusals
from holdfast.api.auth import TheCaller
from holdfast.api.forebears import notes_of_forebear
from holdfast.api.jobs import code_of, places_of, project_of
from holdfast.api.render_schemas import RenderOut, RenderTaskIn
from holdfast.api.routing import Router
from holdfast.api.safety import past_for
from holdfast.api.services import Services, The
from holdfast.domain.rights import Caller
from holdfast.domain.safety import Past, accept
from holdfast.domain.spec import JobSpec
from holdfast.errors import HoldfastError
from holdfast.preview import preview, understand

router = Router(prefix="/v1/render", tags=["jobs"])


@router.post("", response_model=RenderOut)
def render_task(body: RenderTaskIn, services: The, caller: TheCaller) -> RenderOut:
    """Exactly what would be launched for a job file; nothing is launched."""
    understood, rendered = understand(body, code_of(services, body, caller))
    spec = understood.spec
    places_of(services, understood.notify)
    past = past_for(services, spec)
    notes = accept(spec, past, force=True) + notes_of_forebear(services, spec, caller)
    refused = _refusals(services, body, spec, caller, past)
    return preview(body, understood, rendered, notes=notes, refusals=refused)


def _refusals(
    services: Services, body: RenderTaskIn, spec: JobSpec, caller: Caller, past: Past
) -> Iterator[HoldfastError]:
    """What a submission of the same body would be refused for."""
    try:
        project = project_of(caller, body, spec)
    except REFUSED as error:
        yield error
        return  # The other checks need a project.
    yield from refusals(services, spec, caller, project, past, force=body.force)
    try:
        check_budgets(services, caller, project)
    except REFUSED as error:
        yield error
