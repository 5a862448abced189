"""What travels over the API. The client reads these, too; nothing here knows how the service works.

Times are RFC 3339 in UTC. Money is integer micro-dollars; `simulated` says that nobody pays it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, Field, StrictBool

from holdfast.api.checkpoint_schemas import TidyingOut
from holdfast.api.control_schemas import LimitsOut
from holdfast.api.proof_schemas import ProofOut
from holdfast.api.schema import Schema, WorkerSchema

MAX_SEQ: Final = 2**31 - 1
"""Largest number of an attempt or of an event of one job that the database can hold."""
MAX_COUNT: Final = 2**63 - 1
"""Largest number of a report or of an event of all jobs."""

INCARNATION: Final = r"^[0-9A-Za-z_-]{1,64}$"


class CheckoutIn(Schema):
    """What the folder of a job is in its git repository."""

    commit: str = Field(
        pattern=r"^[0-9a-f]{7,64}$", description="As `git rev-parse HEAD` tells it."
    )
    is_dirty: StrictBool = Field(description="Whether files that git knows are others by now.")
    folder: str = Field(
        default="", max_length=4096, description="Below the top of the repository; empty: the top."
    )


class TaskIn(Schema):
    """A job file on its way to the service."""

    task: str = Field(
        description="The job file: YAML of a SkyPilot task with a `holdfast` block.",
        examples=["name: tiny\nresources: {infra: local}\nrun: 'true'\n"],
    )
    base_dir: str | None = Field(
        default=None,
        description="Absolute folder that a relative `workdir`, or source of a mount, is relative to.",
    )
    home_dir: str | None = Field(
        default=None, description="Absolute folder that `~` stands for in those paths."
    )
    name: str | None = Field(default=None, description="Name of the job instead of the file's.")
    project: str | None = Field(
        default=None, description="Project that it belongs to, instead of the file's."
    )
    default_project: str | None = Field(
        default=None, description="Project if neither `project` nor the file names one."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Values over those of `envs`.")
    force: StrictBool = Field(
        default=False,
        description="Accept a job that would lose its work on spot nodes; a note of it says so.",
    )
    checkout: CheckoutIn | None = Field(
        default=None, description="Where `workdir` stands in its repository, for the manifest."
    )
    code: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="Id of a folder that the caller uploaded, which takes the place of `workdir`.",
    )
    secrets: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Values over those of `secrets`. They are sealed, and shown in no answer.",
        json_schema_extra={"writeOnly": True},
    )


class Can(Schema):
    """Whether something can be done to a job now."""

    allowed: bool
    reason: str | None = Field(default=None, description="Why not; null when it can.")


class TerminationNoticeOut(Schema):
    """A termination notice whose nodes are not lost yet."""

    at: datetime
    left_s: float | None = Field(
        description="Seconds from `at` until the nodes go; null where the notice did not say."
    )
    step: int = Field(description="Step of the job at the notice.")
    phase: str = Field(
        description="saving: the last checkpoint is not durable yet; leaving: it is, or the worker has exited; "
        "noticed: the job saves no checkpoints."
    )


class JobOut(Schema):
    """A job as it is now."""

    id: str
    name: str
    state: str = Field(
        description="queued, provisioning, starting, training, recovering, pausing, paused, stopping, succeeded, failed or cancelled."
    )
    detail: str = Field(description="Why it is where it is, in words; may be empty.")
    project: str
    owner: str | None = Field(
        description="Name of who submitted it; null for the service's owner, and where nobody said."
    )
    from_job: str | None = Field(
        default=None,
        description="The job that it goes on from while it has no checkpoint of its own; null for one that begins at step 0.",
    )
    engine: str
    submitted_at: datetime
    updated_at: datetime = Field(
        description="When the newest of its facts was recorded; a job that has ended may still get some, as when old checkpoints are removed."
    )
    ended_at: datetime | None = Field(default=None, description="Null until it has ended.")
    step: int
    total_steps: int | None = Field(description="Null until a worker said how far it goes.")
    attempt: int
    zone: str | None = Field(description="Null before the first placement.")
    nodes: int = Field(default=1, description="How many its job file asks for.")
    gpus: int = Field(
        default=0,
        description="Accelerators of all nodes together, by the first choice of its job file; 0 where it asks for none.",
    )
    preemptions: int = Field(
        description="Placements that were taken away: preempted, or failed without a notice; the attempts say which."
    )
    resumes: int
    failures: int
    max_failures: int
    limits: LimitsOut = Field(description="As they are now.")
    guard: str | None = Field(
        description="Which guard has paused or stopped it; null when none has."
    )
    last_checkpoint_step: int | None = Field(
        description="Of the checkpoint that a resume would go on from; null while there is none."
    )
    saves: str | None = Field(
        description="How often it saves and why, as one sentence; null until measured, and where the job file says how often."
    )
    store_promise: str | None = Field(
        description="What its checkpoint store does where two placements are alive at once, in words; "
        "null until a worker has asked it."
    )
    last_checkpoint_at: datetime | None = Field(
        description="When the state was taken that a resume would go on from; null while there is none."
    )
    lost_steps: int
    paid_micros: int
    on_demand_micros: int = Field(
        description="What the same useful work would have cost on demand."
    )
    simulated: bool = Field(description="True where the prices are simulated and nobody pays them.")
    is_price_estimate: bool = Field(
        default=False, description="True where nobody told a price, so that it is taken to be high."
    )
    exit_code: int | None = Field(description="Null until the program's end was told.")
    tags: dict[str, str]
    notes: list[str] = Field(description="What was put right in the job file.")
    notice: TerminationNoticeOut | None = Field(
        default=None,
        description="The termination notice under which it is now; null without one.",
    )
    last_seen_at: datetime | None = Field(
        description="When the last look at its launcher began that was answered; null before and after."
    )
    trouble: str | None = Field(
        description="Why the last look at it gave nothing; null when it did."
    )
    warning: str | None = Field(
        description="What may still be billed though it should be gone, that its checkpoints cannot be saved, or that old ones are not removed; null for none of these."
    )
    tidying: TidyingOut | None = Field(
        description="How old checkpoints are removed; null for a job without a checkpoint store."
    )
    proof: ProofOut | None = Field(
        default=None,
        description="Its newest comparison with the same job that was left alone; null while there is none.",
    )
    can: dict[str, Can] = Field(
        description="What may be done to it now: cancel, pause, resume, clone, retry, limits, preempt, remove."
    )


class JobPage(Schema):
    """Some jobs, newest first."""

    jobs: list[JobOut]
    next: str | None = Field(description="Pass as `cursor` for the next page; null on the last.")
    total: int = Field(description="How many there are on all pages.")


class CancelIn(Schema):
    """Why a job is to end."""

    reason: str = Field(default="cancelled on request", max_length=500)


class PreemptIn(Schema):
    """A preemption on purpose."""

    node: int | None = Field(
        default=None, ge=0, description="Which node; null lets the market choose."
    )
    notice_s: float | None = Field(
        default=None, ge=0, le=3600, description="Warning in seconds; null gives none."
    )


class EventOut(Schema):
    """One fact of a job's life."""

    cursor: int
    job_id: str
    seq: int
    kind: str
    source: str
    at: datetime
    recorded_at: datetime
    body: dict[str, Any]


class PointOut(Schema):
    """What an attempt measured at a step."""

    attempt: int
    step: int
    at: datetime
    values: dict[str, float | None]


class LogOut(Schema):
    """One log that can be read."""

    attempt: int
    node: int
    rank: int | None = Field(
        description="Null for the node's own log, which holds its ranks' output, too."
    )
    size_bytes: int


class LogChunk(Schema):
    """Some text of a log, as a stream sends it."""

    attempt: int
    text: str


class ReportIn(WorkerSchema):
    """One report of a worker."""

    n: int = Field(ge=1, le=MAX_COUNT)
    at: str
    kind: str
    body: dict[str, Any]


class ReportsIn(WorkerSchema):
    """Reports of one attempt, in order."""

    attempt: int = Field(ge=1, le=MAX_SEQ)
    reports: list[ReportIn] = Field(max_length=1000)
    incarnation: str | None = Field(
        default=None,
        pattern=INCARNATION,
        description="Who sends them, if it had to muster; null where the launcher numbers its placements.",
    )
    oldest: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="Number of the first report, where the worker no longer has the one that the service wants: "
        "the service continues there. Null while the worker has it.",
    )


class ReportsOut(Schema):
    """Where to go on."""

    next: int = Field(description="Number of the report that the service wants next.")
    leave_within_s: float | None = Field(
        description="Seconds in which the worker is to save its work and leave, as on a notice; null while it may stay."
    )


class MusterIn(WorkerSchema):
    """A worker that has to ask which attempt it is."""

    incarnation: str = Field(
        pattern=INCARNATION, description="A name of its own, drawn once for each placement."
    )


class MusterOut(Schema):
    """Which attempt it is."""

    attempt: int
    next: int = Field(description="Number of its next report.")
    before: int = Field(description="Reports of the attempt that others sent before its first.")


class UndecidedOut(Schema):
    """A launch whose nodes may run without a record at its engine, until a person decides."""

    launch: str
    job_id: str
    what: str = Field(description="What may still run, and what to do about it.")
    since: datetime | None = Field(description="When its engine first did not list it.")


class LauncherOut(Schema):
    """A launcher, and what is known of the engine behind it."""

    engine: str
    configured: bool = Field(description="Whether this service launches through it.")
    reachable: bool | None = Field(
        default=None,
        description="Whether its engine answered the newest probe; null before the first one.",
    )
    version: str | None = Field(
        default=None, description="Of its engine; null for one that has none, or was never heard."
    )
    guarantee: str | None = Field(
        default=None,
        description="exactly-once, or at-most-60s-overlap where its engine does not ask before it launches.",
    )
    waits_for_service: bool | None = Field(
        default=None,
        description="Whether its engine neither recovers jobs nor launches anything while this service is down.",
    )
    clouds: list[str] | None = Field(
        default=None,
        description="Where its engine can rent nodes; null while it has not said, as in its first minute.",
    )
    clock_skew_s: float | None = Field(
        default=None, description="How far its engine's clock is ahead of the service's."
    )
    swept: bool | None = Field(
        default=None,
        description="Whether it was searched for `strangers` since the service started; null for one that is not searched.",
    )
    strangers: list[str] = Field(
        default_factory=list,
        description="What runs there for launches that are not in the service's database; it is left alone.",
    )
    strange_launches: list[str] = Field(
        default_factory=list, description="Keys of these launches, by which they can be stopped."
    )
    undecided: list[UndecidedOut] = Field(
        default_factory=list,
        description="Launches of which its engine has lost its records; nothing is launched there until a person decides on each.",
    )
    trouble: str | None = Field(
        default=None, description="Why the newest probe found nothing out; null when it did."
    )
    since: datetime | None = Field(default=None, description="Since when there is trouble.")
    answered_at: datetime | None = Field(
        default=None, description="When its engine last answered; null for one that never did."
    )
    reports_to: str | None = Field(
        default=None, description="The address at which its workers are told to report."
    )
    users_share: str | None = Field(
        default=None,
        description="What jobs of different users share there; null where jobs of users are refused.",
    )


class HealthOut(Schema):
    """That the service answers, and which it is."""

    status: str
    version: str
    revision: str | None = Field(
        default=None, description="Of the database; null where it was not looked at."
    )


class FlawOut(Schema):
    """One mistake in what was sent."""

    pointer: str
    message: str


class Problem(BaseModel):
    """What went wrong: problem details of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FlawOut] = Field(default_factory=list)
    request_id: str | None = None
