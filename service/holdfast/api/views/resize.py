"""The preview of a resume on other nodes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.api.schemas.resize import (
    NodeRangeIn,
    ResumeForecastOut,
    ResumeIn,
    ResumeNodesOut,
    ResumePreviewOut,
)
from holdfast.api.views.plans import alternatives_view
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.resource_changes import ResourceChanges, describe
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.validation import with_changes
from holdfast.domain.jobs.job import Job
from holdfast.submission.launch_estimate import LaunchEstimate
from holdfast.submission.plan_check import PlanPreview
from holdfast.submission.resize import Resize, ResizeRequest
from holdfast.submission.resume_forecast import ResumeForecast


def resize_request(asked: ResumeIn, limits: Limits) -> ResizeRequest:
    """The nodes that a request asks for, for a job with these limits.

    Raises:
        BadLimits: the changed limits are invalid.
    """
    nodes = asked.nodes
    changes = ResourceChanges(
        nodes=nodes.model_dump() if isinstance(nodes, NodeRangeIn) else nodes,
        gpus=asked.gpus,
        infra=asked.infra,
        is_spot=asked.spot,
    )
    after = with_changes(limits, asked.limits.model_dump(exclude_unset=True))
    return ResizeRequest(changes=changes, limits=after, force=asked.force)


def resume_preview(
    job: Job, resize: Resize, refused: Sequence[str], forecast: ResumeForecast
) -> ResumePreviewOut:
    """Convert what a resume would change."""
    old, new = resize.estimates
    has_store = resize.after.holdfast.checkpoint is not None
    return ResumePreviewOut(
        changes=list(resize.changes),
        before=_nodes(resize.before, old),
        after=_nodes(resize.after, new),
        ranks_before=resize.ranks.before,
        ranks_after=resize.ranks.after,
        batch=resize.ranks.batch_sentence,
        checkpoints=resize.ranks.checkpoint_sentence(job.last_checkpoint_step, has_store=has_store),
        notes=list(resize.event.notes),
        refused=list(refused),
        forecast=_forecast(forecast.preview) if forecast.preview else None,
        forecast_note=forecast.why_not,
    )


def _forecast(preview: PlanPreview) -> ResumeForecastOut:
    return ResumeForecastOut(
        deadline_at=preview.deadline_at,
        budget_micros=preview.budget_micros,
        work_s=preview.work_s,
        remaining_s=preview.remaining_s,
        alternatives=alternatives_view(preview),
        sentence=preview.sentence,
        issues=[f"{issue.pointer}: {issue.message}" for issue in preview.issues],
        notes=list(preview.notes),
    )


def _nodes(spec: JobSpec, estimate: LaunchEstimate) -> ResumeNodesOut:
    words = describe(spec)
    return ResumeNodesOut(
        engine=spec.engine,
        nodes=spec.num_nodes,
        min_nodes=spec.min_nodes,
        gpus=words["GPUs of each node"],
        place=words["place"],
        capacity=words["capacity"],
        micros_per_hour=estimate.micros_per_hour,
    )
