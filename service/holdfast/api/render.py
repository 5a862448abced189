"""What would be launched for a job file, and how people would start it themselves."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from holdfast.api.auth import TheCaller
from holdfast.api.forebears import notes_of_forebear
from holdfast.api.jobs import places_of, understand
from holdfast.api.render_schemas import NodeCommandOut, RenderOut, RenderTaskIn
from holdfast.api.safety import accept
from holdfast.api.services import The
from holdfast.rendering import (
    ByHand,
    NodeCommand,
    by_hand,
    by_sbatch,
    notes_of_hand,
    notes_of_sbatch,
    notes_of_slurm,
)

router = APIRouter(prefix="/v1/render", tags=["jobs"])


@router.post("", response_model=RenderOut)
def render_task(body: RenderTaskIn, services: The, caller: TheCaller) -> RenderOut:
    """Exactly what would be launched for a job file; nothing is launched."""
    understood, rendered = understand(body)
    spec = understood.spec
    places_of(services, understood.notify)
    notes = accept(services, spec, force=True) + notes_of_forebear(services, spec, caller)
    commands: Sequence[NodeCommand] = ()
    if asked := body.by_hand:
        commands = by_hand(spec, rendered.task, ByHand(**asked.model_dump()))
        notes += notes_of_hand(spec)
    if body.sbatch:
        # Of a job that would run elsewhere, too: the same file, on whatever cluster there is.
        notes += (*notes_of_slurm(spec), *notes_of_sbatch(spec))
    return RenderOut(
        engine=spec.engine,
        task=rendered.text,
        sbatch=by_sbatch(spec, rendered.task) if body.sbatch else "",
        by_hand=[NodeCommandOut(host=c.host, ranks=c.ranks, command=c.command) for c in commands],
        notes=[*understood.notes, *rendered.notes, *notes],
    )
