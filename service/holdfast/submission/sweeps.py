"""Submit a sweep: one job for each combination of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Caller
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.sweeps.grid import combinations
from holdfast.domain.sweeps.median_rule import StopRule
from holdfast.domain.sweeps.sweep import Sweep
from holdfast.errors import BadRequest, HoldfastError
from holdfast.services import Services
from holdfast.store.ids import new_sweep_id
from holdfast.submission.submit import JobRequest, TrialOf, own_key, project_of, submit

TAG: Final = "sweep"
"""Tag of the jobs of a sweep, whose id is its value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRequest:
    """A job file, the values of its parameters, and what the jobs share."""

    job: JobRequest
    params: Mapping[str, list[str]]
    parallel: int | None
    max_cost_micros: int | None
    stop_rule: StopRule | None


def submit_sweep(
    services: Services,
    asked: SweepRequest,
    caller: Caller,
    actor: Actor,
    *,
    key: str | None,
    requested: str,
) -> Sweep:
    """Record a sweep and its jobs, or complete the sweep of the same earlier request.

    Raises:
        BadRequest: the parameters are malformed, or too many.
        HoldfastError: a job is refused. Jobs before it stay, and a repeated request adds the others.
    """
    trials = combinations(asked.params, services.max_sweep_jobs)
    spec = parse_job_file(asked.job.text, asked.job.overrides).spec
    if taken := sorted(set(asked.params) & set(spec.secrets)):
        raise BadRequest(f"params: {taken[0]} is a secret of the job file; use another name")
    now = services.clock.now()
    sweep = Sweep(
        id=new_sweep_id(now),
        name=spec.name,
        project=project_of(caller, asked.job, spec),
        owner=caller.name,
        created_at=now,
        params={
            name: list(dict.fromkeys(trial[name] for trial in trials)) for name in asked.params
        },
        jobs=len(trials),
        parallel=asked.parallel,
        max_cost_micros=asked.max_cost_micros,
        stop_rule=asked.stop_rule,
    )
    digest = services.secrets.digest(requested.encode(), asked.job.overrides.secrets or {})
    action = actor.audit_action("sweep.submit", sweep.id, after={"params": sweep.params})
    stored_key = own_key(key, caller) if key else None
    sweep = services.journal.sweeps.create(sweep, stored_key, digest, action, now)
    try:
        for number, trial in enumerate(trials, start=1):
            job = _trial_request(asked.job, sweep, trial, number)
            # Its own key, so that a repeated request does not submit a combination twice.
            own = f"{sweep.id}:{number}"
            submit(services, job, caller, actor, key=own, requested=f"{requested}{number}")
    except HoldfastError:
        services.journal.sweeps.discard(sweep.id)
        raise
    return sweep


def _trial_request(
    asked: JobRequest, sweep: Sweep, trial: Mapping[str, str], number: int
) -> JobRequest:
    given = asked.overrides
    overrides = replace(
        given,
        name=f"{sweep.name}-{number}",
        envs={**(given.envs or {}), **trial},
        tags={TAG: sweep.id},
    )
    trial_of = TrialOf(sweep.id, number, dict(trial))
    return replace(asked, overrides=overrides, project=sweep.project, trial=trial_of)
