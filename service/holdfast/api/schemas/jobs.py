"""What travels over the API when a running job is paused, resumed, or given other limits. The client reads these, too.

What the API shows of removed jobs.

What travels over the API. The client reads these, too; nothing here knows how the service works.

Times are RFC 3339 in UTC. Money is integer micro-dollars; `simulated` says that nobody pays it.

What travels over the API when a job file is rendered. The client reads these, too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictFloat, StrictInt

from holdfast.api.schemas.base import Schema
from holdfast.api.schemas.checkpoints import RetentionOut
from holdfast.api.schemas.diagnostics import ProofOut

_WITHOUT = "null takes it away."
Amount = StrictInt | StrictFloat | str


class LimitsOut(Schema):
    """Where a job is given up or paused, as people write it; null where nothing limits."""

    max_cost_usd: str | None = Field(description="What its nodes may cost in all, in US dollars.")
    max_hourly_cost_usd: str | None = Field(description="The same for an hour.")
    deadline: str | None = Field(description="A duration from its submission, or a time.")
    max_duration: str | None = Field(description="How long it may have nodes, in all.")
    max_wait: str = Field(description="How long it may be without nodes at a stretch.")
    max_failures: int = Field(description="How often the program itself may fail.")
    max_fruitless: int = Field(
        description="How many placements in a row may come to no step that was not reached before."
    )
    max_stall: str = Field(description="How long its ranks may make no step: auto, off, or so.")


class LimitsIn(Schema):
    """Limits that are to be other ones. What is not named stays as it is."""

    max_cost_usd: Amount | None = Field(default=None, description=f"US dollars. {_WITHOUT}")
    max_hourly_cost_usd: Amount | None = Field(default=None, description=f"US dollars. {_WITHOUT}")
    deadline: str | None = Field(
        default=None,
        description=f"A duration from the submission, or a time with its zone. {_WITHOUT}",
    )
    max_duration: str | None = Field(default=None, description=f"A duration. {_WITHOUT}")
    max_wait: str | None = Field(default=None, description="A duration; null: 24h.")
    max_failures: StrictInt | None = Field(default=None, description="1 to 100; null: 3.")
    max_fruitless: StrictInt | None = Field(default=None, description="1 to 1000; null: 10.")
    max_stall: str | None = Field(
        default=None,
        description="auto, off, or a duration; null: auto. The program knows it from the next launch on.",
    )


class PauseIn(Schema):
    """Why a job is to be paused."""

    reason: str = Field(default="paused on request", max_length=500)


class CloneIn(Schema):
    """What is to be other in a copy of a job."""

    name: str | None = Field(
        default=None, min_length=1, max_length=200, description="Name instead of the job's."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Values over those of `envs`.")
    secrets: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="All secrets of the job, by name: their values are not copied.",
        json_schema_extra={"writeOnly": True},
    )
    limits: LimitsIn = Field(default_factory=LimitsIn, description="Limits that are to be other.")
    force: StrictBool = Field(
        default=False, description="Accept a job that would lose its work on spot nodes."
    )


class ResumeIn(Schema):
    """How a paused job is to go on."""

    reason: str = Field(default="resumed on request", max_length=500)
    limits: LimitsIn = Field(
        default_factory=LimitsIn, description="Limits that are to be other ones from now on."
    )


class RemovalOut(Schema):
    """A job that was removed."""

    job_id: str
    removed_at: datetime
    checkpoints: str | None = Field(
        description="Its part of the checkpoint store; null for a job without a store."
    )
    removes_checkpoints: bool = Field(description="Whether its checkpoints are removed as well.")
    done_at: datetime | None = Field(
        description="When its last row and file were removed; null before."
    )
    trouble: str | None = Field(
        description="Why the last try left files, which are tried again; null if none failed."
    )


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
    tidying: RetentionOut | None = Field(
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


Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]+$", max_length=253)]


class ByHandIn(Schema):
    """Where a job is to be started by hand, by one torchrun for each node."""

    hosts: list[Host] = Field(
        default_factory=list,
        max_length=1000,
        description="Name or address of each node; they meet at the first. Empty: all are this machine.",
    )
    ranks: list[Annotated[int, Field(ge=1, le=1024)]] = Field(
        default_factory=list,
        max_length=1000,
        description="Processes on each node, or one number for all. Empty: one for each accelerator.",
    )
    port: int = Field(default=29400, ge=1024, le=65535, description="Where they meet.")
    nodes: int | None = Field(
        default=None, ge=1, le=1000, description="How many; null: as many as the job file says."
    )
    least_nodes: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="With how many it goes on where others are lost; null: with all alone.",
    )


class RenderTaskIn(TaskIn):
    """A job file to be rendered."""

    by_hand: ByHandIn | None = Field(
        default=None, description="Tell the commands, too, with which people start it themselves."
    )
    sbatch: StrictBool = Field(
        default=False, description="Tell the script, too, that people hand to sbatch themselves."
    )


class NodeCommandOut(Schema):
    """What is typed on one node."""

    host: str
    ranks: int = Field(description="Processes there.")
    command: str = Field(description="Text for a shell.")


class RenderOut(Schema):
    """What would be launched."""

    engine: str = Field(description="Which launcher it would go to.")
    task: str = Field(description="The SkyPilot task as YAML.")
    by_hand: list[NodeCommandOut] = Field(
        default_factory=list, description="Of each node, if it was asked for."
    )
    sbatch: str = Field(default="", description="The script, if it was asked for; else empty.")
    notes: list[str] = Field(description="What was put right or has no effect, as sentences.")
    refused: list[str] = Field(
        default_factory=list,
        description="Why submit would refuse the same request now, one reason each; empty: it would not.",
    )
