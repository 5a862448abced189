"""Other nodes for a paused job: checked like a submission, recorded with its resume."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.code_upload.upload_store import is_upload
from holdfast.domain.access.permissions import Caller
from holdfast.domain.diagnostics.manifests import job_file
from holdfast.domain.events import Resized, RunDescribed
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.parser import Overrides
from holdfast.domain.jobfile.resource_changes import ResourceChanges, differences
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import check_spot_safety
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.resize import (
    RankChange,
    resize_refusal,
    retention_refusal,
    store_refusal,
)
from holdfast.errors import BadJobFile, HoldfastError, NotPossibleNow
from holdfast.rendering import dump, read_and_render, render
from holdfast.services import Services
from holdfast.submission.admission import REFUSED, lifetimes_for, refusals
from holdfast.submission.launch_estimate import LaunchEstimate, estimate_launch
from holdfast.submission.quota_check import quota_demand


@dataclass(frozen=True, kw_only=True, slots=True)
class Resize:
    """What a resize of a job would change, and whether it is possible."""

    before: JobSpec
    after: JobSpec
    changes: tuple[str, ...]
    """What differs, as phrases; empty if the job has these nodes already."""
    ranks: RankChange
    event: Resized
    estimates: tuple[LaunchEstimate, LaunchEstimate]
    """Place and price before and after."""
    refusals: tuple[HoldfastError, ...]

    def accepted(self) -> Resized | None:
        """The event to record; None if nothing changes.

        Raises:
            HoldfastError: the resize is refused.
        """
        for error in self.refusals:
            raise error
        return self.event if self.changes else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ResizeRequest:
    """The nodes that a user asks for, for a paused job."""

    changes: ResourceChanges
    limits: Limits
    """Limits of the job from now on."""
    force: bool = False
    """Whether to accept risks, as for a submission, and a folder as the store that the new nodes share."""


def prepare_resize(services: Services, job: Job, asked: ResizeRequest, caller: Caller) -> Resize:
    """Compute what a resize changes, and list the reasons for refusing it.

    Blocking, as prices are queried.

    Raises:
        BadJobFile: the values are malformed, or the launcher cannot run the job with them.
    """
    submitted = services.journal.submission(job.id)
    before = JobSpec.from_stored(submitted.spec)
    after = _changed(before, asked.changes, job.id)
    rendered, limited = render(after), after.with_limits(asked.limits)
    render(limited)
    described = [
        item.event.manifest
        for item in services.journal.events(job.id)
        if isinstance(item.event, RunDescribed)
    ]
    ranks = RankChange.of(before, after, described[-1] if described else None)
    is_confined = submitted.confined or not caller.is_trusted
    acting = caller.restricted_to(job.project) if is_confined else caller
    now, past = services.clock.now(), lifetimes_for(services, after)
    estimates = (
        estimate_launch(before, services.prices, now),
        estimate_launch(after, services.prices, now),
    )
    refused = tuple(
        _refusals(
            services, job, acting, before=before, after=limited, ranks=ranks, force=asked.force
        )
    )
    notes = (*rendered.notes, *check_spot_safety(after, past, force=True))
    changes = differences(before, after)
    event = Resized(
        at=now,
        spec=after.model_dump(mode="json"),
        task=rendered.text,
        changes=changes,
        notes=notes,
        confined=is_confined,
        demand=None if refused else quota_demand(services, limited, job.owner, job.project),
        micros_per_hour=estimates[1].micros_per_hour or 0,
        by=caller.name,
    )
    return Resize(
        before=before,
        after=after,
        changes=changes,
        ranks=ranks,
        event=event,
        estimates=estimates,
        refusals=refused,
    )


def _changed(spec: JobSpec, changes: ResourceChanges, job_id: str) -> JobSpec:
    """The job with other nodes, validated as a job file.

    Raises:
        BadJobFile: the file would have mistakes.
    """
    if flaws := tuple(changes.flaws(spec, job_id)):
        raise BadJobFile(flaws)
    file: dict[str, Any] = job_file(spec) | {"resources": changes.resources(spec.resources)}
    if changes.nodes is not None:
        file["num_nodes"] = changes.nodes
    code = str(file.pop("workdir")) if is_upload(spec.workdir) else None
    hidden = dict.fromkeys(spec.secrets, "hidden")  # Their values are stored encrypted, and stay.
    parsed, _ = read_and_render(dump(file), Overrides(code=code, secrets=hidden))
    nodes = {"num_nodes": parsed.spec.num_nodes, "min_nodes": parsed.spec.min_nodes}
    return spec.model_copy(update={**nodes, "resources": parsed.spec.resources})


def _refusals(
    services: Services,
    job: Job,
    caller: Caller,
    *,
    before: JobSpec,
    after: JobSpec,
    ranks: RankChange,
    force: bool,
) -> Iterator[HoldfastError]:
    """List the reasons for refusing a resize, the state of the job first."""
    whys = (
        resize_refusal(job),
        store_refusal(before, after, is_shared=force),
        retention_refusal(before, after),
        ranks.checkpoint_refusal(job.last_checkpoint_step),
    )
    for why in filter(None, whys):
        yield NotPossibleNow(f"job {job.id} cannot be resized: {why}")
    past = lifetimes_for(services, after)
    yield from refusals(services, after, caller, job.project, past, force=force)
    try:
        quota_demand(services, after, job.owner, job.project)
    except REFUSED as error:
        yield error
