"""Submit a job, or preview what its submission would launch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.events import DEFAULT_PROJECT, Submitted
from holdfast.domain.events.values import Checkout
from holdfast.domain.jobfile.parser import Overrides, ParsedJobFile
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import HistoricalLifetimes, check_spot_safety
from holdfast.domain.jobs.job import Job
from holdfast.domain.notifications.channels import Destination
from holdfast.errors import BadChannel, BadJobFile, Forbidden, HoldfastError, ValidationIssue
from holdfast.rendering import RenderedTask, read_and_render
from holdfast.services import Services
from holdfast.store.ids import new_job_id
from holdfast.store.journal import SubmissionRequest
from holdfast.submission.admission import (
    REFUSED,
    check_budgets,
    check_parent_job,
    lifetimes_for,
    refusals,
    uploads_of,
)
from holdfast.submission.launch_estimate import LaunchEstimate, distance_notes, estimate_launch
from holdfast.submission.plan_check import PlanPreview, check_plan, preview_plan, with_known_work
from holdfast.submission.preview import Preview, PreviewOptions, preview
from holdfast.submission.quota_check import quota_demand


@dataclass(frozen=True, slots=True)
class TrialOf:
    """The place of a job in a sweep."""

    sweep_id: str
    number: int
    """From 1."""
    parameters: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """A job file with the values that its submitter passes separately."""

    text: str
    overrides: Overrides = field(default_factory=Overrides)
    project: str | None = None
    """Project of the job; None uses the file's."""
    default_project: str | None = None
    """Project if neither `project` nor the file names one; None uses the caller's home project."""
    code: str | None = None
    """Id of an uploaded directory that replaces `workdir`; None uses the file's."""
    checkout: Checkout | None = None
    """Position of `workdir` in its Git repository; None: unknown."""
    force: bool = False
    """Whether to accept a job that would lose its progress on spot nodes, or that no plan can keep."""
    trial: TrialOf | None = None
    """None: the job belongs to no sweep."""

    def with_overrides(self, *, limits: Mapping[str, Any], plan: Mapping[str, Any]) -> JobRequest:
        """This request with further limits, and with a plan."""
        mine = self.overrides
        changed = replace(mine, limits={**mine.limits, **limits}, plan=plan)
        return replace(self, overrides=changed)


def submit(
    services: Services,
    asked: JobRequest,
    caller: Caller,
    actor: Actor,
    *,
    key: str | None,
    requested: str,
) -> Job:
    """Record a new job.

    The same `key`, the Idempotency-Key, and body `requested` return the same job.

    Raises:
        HoldfastError: the request is refused; see `submission`.
    """
    understood, rendered = _understand(services, asked, caller)
    project = project_of(caller, asked, understood.spec)
    digest = services.secrets.digest(requested.encode(), understood.secrets)
    request = SubmissionRequest(own_key(key, caller), digest) if key else None
    # First, so that a recorded job is not checked again at a later time or by a service with other launchers.
    job = services.journal.find_submission(request) if request else None
    if job is None:
        event = submission(
            services, understood, rendered, caller=caller, project=project, force=asked.force
        )
        event = replace(event, checkout=asked.checkout)
        if trial := asked.trial:
            sweep, values = trial.sweep_id, trial.parameters
            event = replace(event, sweep=sweep, trial=trial.number, parameters=values)
        job = record(services, understood, event, request, actor)
    services.nudge()
    return job


def preview_submission(
    services: Services, asked: JobRequest, caller: Caller, options: PreviewOptions
) -> Preview:
    """Render what `submit` would launch for the same request, with the reasons for a refusal."""
    understood, rendered = _understand(services, asked, caller)
    spec = understood.spec
    places_of(services, understood.notify)
    past = lifetimes_for(services, spec)
    notes = check_spot_safety(spec, past, force=True) + check_parent_job(services, spec, caller)
    refused = [*_refusals(services, asked, spec, caller, past)]
    if spec.holdfast.plan is not None:
        try:
            planned = check_plan(services, spec, caller)
            notes += planned.notes
            planned.accepted_notes(force=asked.force)
        except REFUSED as error:
            refused.append(error)
    now = services.clock.now()
    estimate = estimate_launch(spec, services.prices, now) if options.prices else None
    notes += _distance_notes(services, spec, estimate)
    shown = preview(understood, rendered, options, notes=notes, refusals=refused)
    return replace(shown, estimate=estimate)


def preview_of_plan(services: Services, asked: JobRequest, caller: Caller) -> PlanPreview:
    """Forecast the job of a request, whose plan may be that of its overrides alone.

    Raises:
        BadRequest: the job file has mistakes, its deadline has passed, or it is unknown how much work there is.
    """
    understood, _ = _understand(services, asked, caller)
    understood.spec.holdfast.limits.check_deadline(services.clock.now())
    return preview_plan(services, with_known_work(services, understood.spec, caller), caller)


def _understand(
    services: Services, asked: JobRequest, caller: Caller
) -> tuple[ParsedJobFile, RenderedTask]:
    code = uploads_of(services, caller).ref(caller.name, asked.code) if asked.code else None
    return read_and_render(asked.text, replace(asked.overrides, code=code))


def _distance_notes(
    services: Services, spec: JobSpec, estimate: LaunchEstimate | None = None
) -> tuple[str, ...]:
    """Notes about a distant checkpoint store, if it is known where it is."""
    if (checkpoint := spec.holdfast.checkpoint) is None:
        return ()
    prices = services.resource_prices
    place = services.retention_queue.place_of(checkpoint.store)
    if not (place or prices.store_place(checkpoint.store)):
        return ()
    return distance_notes(spec, place, prices, estimate)


def _refusals(
    services: Services, asked: JobRequest, spec: JobSpec, caller: Caller, past: HistoricalLifetimes
) -> Iterator[HoldfastError]:
    """List the reasons why the same request would be refused."""
    try:
        project = project_of(caller, asked, spec)
    except REFUSED as error:
        yield error
        return  # The other checks need a project.
    yield from refusals(services, spec, caller, project, past, force=asked.force)
    try:
        check_budgets(services, caller, project)
        quota_demand(services, spec, caller.name, project)
    except REFUSED as error:
        yield error


def project_of(caller: Caller, asked: JobRequest, spec: JobSpec) -> str:
    """Return the project of a new job, in which the caller may submit."""
    named = asked.project or spec.holdfast.project or asked.default_project
    project = named or caller.default_project(Action.SUBMIT, DEFAULT_PROJECT)
    if not named and not caller.may_see(project):
        raise Forbidden(
            "name a project with --project, or with holdfast.project in the job file; holdfast projects list shows yours"
        )
    caller.require(Action.SUBMIT, project)
    return project


def own_key(key: str, caller: Caller) -> str:
    """Return the stored form of a key, unique for each caller.

    So a key never returns another user's job.
    """
    if not caller.name:
        return key
    return f"{caller.name}:{hashlib.sha256(key.encode()).hexdigest()}"


def submission(
    services: Services,
    understood: ParsedJobFile,
    rendered: RenderedTask,
    *,
    caller: Caller,
    project: str,
    force: bool,
) -> Submitted:
    """Build the Submitted event of a new job.

    Raises:
        NotPossibleNow: the project accepts no new jobs.
        Forbidden: the job may not run on the service's machine.
        BadJobFile: this service has no such launcher, the job names something forbidden, its deadline has passed, it
            would lose its progress on spot nodes, its parent job cannot be resumed, no plan can keep its limits, or a
            quota allows less than it needs.
    """
    spec = understood.spec
    past = lifetimes_for(services, spec)
    has_quotas = bool(services.journal.queue.quotas())
    demand = quota_demand(services, spec, caller.name, project) if has_quotas else None
    for error in refusals(services, spec, caller, project, past, force=force):
        raise error
    notes = check_spot_safety(spec, past, force=force) + check_parent_job(services, spec, caller)
    notes += _distance_notes(services, spec)
    if spec.holdfast.plan is not None:
        planned = check_plan(services, spec, caller)
        notes, spec = notes + planned.accepted_notes(force=force), planned.spec
    return Submitted(
        at=services.clock.now(),
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        task=rendered.text,
        notes=(*understood.notes, *rendered.notes, *notes),
        by=caller.name,
        project=project,
        confined=not caller.is_trusted,
        demand=demand,
    )


def record(
    services: Services,
    understood: ParsedJobFile,
    event: Submitted,
    request: SubmissionRequest | None,
    actor: Actor,
) -> Job:
    """Record the new job, or return the one of a concurrent identical request."""
    job_id = new_job_id(event.at)
    sealed = services.secrets.encrypt(job_id, understood.secrets)
    tidied_by = understood.spec.retention_owner
    places = places_of(services, understood.notify)
    rows = services.channels.rows_for_job(job_id, event.project, event.by, places)
    return services.journal.submit(
        job_id, event, request, sealed, tidied_by, channels=rows, actor=actor
    )


def places_of(services: Services, urls: Sequence[str]) -> list[tuple[str, Destination]]:
    """Parse the notification targets of a job file.

    Raises:
        BadJobFile: one of them cannot receive messages.
    """
    found, flaws = [], []
    for number, url in enumerate(urls):
        try:
            found.append((url, services.messenger.destination(url)))
        except BadChannel as error:
            rows = error.detail.removeprefix("url: ")
            flaws.append(ValidationIssue(f"#/holdfast/notify/{number}", rows))
    if flaws:
        raise BadJobFile(tuple(flaws))
    return found
