"""Schemas of jobs, submissions, control, events, logs and previews; shared with the client.

Times are RFC 3339 in UTC. Money is integer micro-dollars; `simulated` marks amounts that are not billed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictFloat, StrictInt

from holdfast.api.schemas.base import Schema
from holdfast.api.schemas.checkpoints import RetentionOut
from holdfast.api.schemas.diagnostics import ProofOut
from holdfast.api.schemas.throughput import EtaOut, RatesOut
from holdfast.domain.events.values import MAX_PRIORITY

_WITHOUT = "null removes it."
Amount = StrictInt | StrictFloat | str


class LimitsOut(Schema):
    """The limits of a job, in the format of the job file; null means no limit."""

    max_cost_usd: str | None = Field(description="Maximum total cost of the nodes in US dollars.")
    max_hourly_cost_usd: str | None = Field(description="Maximum cost per hour in US dollars.")
    deadline: str | None = Field(description="A duration from its submission, or a time.")
    max_duration: str | None = Field(description="Maximum total time with nodes.")
    max_wait: str = Field(description="Maximum uninterrupted time without nodes.")
    max_failures: int = Field(description="Maximum number of failures of the program.")
    max_fruitless: int = Field(
        description="Maximum consecutive attempts without a new highest step."
    )
    max_stall: str = Field(description="Maximum time without a step: auto, off, or a duration.")


class LimitsIn(Schema):
    """Changed limits; the others stay."""

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
        description="auto, off, or a duration; null: auto. Takes effect with the next launch.",
    )


class PauseIn(Schema):
    """Reason for a pause."""

    reason: str = Field(default="paused on request", max_length=500)


class CloneIn(Schema):
    """Changes in a copy of a job."""

    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Name instead of the original job's.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Values that override those of `envs`."
    )
    secrets: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="All secrets of the job, by name: their values are not copied.",
        json_schema_extra={"writeOnly": True},
    )
    limits: LimitsIn = Field(default_factory=LimitsIn, description="Changed limits.")
    force: StrictBool = Field(
        default=False,
        description="Run on spot without checkpoints (progress is lost on preemption), or with limits that no plan can keep.",
    )


class RemovalOut(Schema):
    """A removed job."""

    job_id: str
    removed_at: datetime
    checkpoints: str | None = Field(
        description="Its prefix in the checkpoint store; null for a job without a store."
    )
    removes_checkpoints: bool = Field(description="Whether its checkpoints are also deleted.")
    done_at: datetime | None = Field(
        description="When its last row and file were deleted; null before that."
    )
    trouble: str | None = Field(
        description="Why the last try left files, which is retried; null if it succeeded."
    )


class CheckoutIn(Schema):
    """The Git checkout of a job's working directory."""

    commit: str = Field(pattern=r"^[0-9a-f]{7,64}$", description="Output of `git rev-parse HEAD`.")
    is_dirty: StrictBool = Field(description="Whether tracked files have been modified.")
    folder: str = Field(
        default="",
        max_length=4096,
        description="Path below the top of the repository; empty: the top.",
    )


class TaskIn(Schema):
    """A job file to submit."""

    task: str = Field(
        description="The job file: YAML of a SkyPilot task with a `holdfast` block.",
        examples=["name: tiny\nresources: {infra: local}\nrun: 'true'\n"],
    )
    base_dir: str | None = Field(
        default=None,
        description="Absolute base directory for a relative `workdir` or mount source.",
    )
    home_dir: str | None = Field(
        default=None, description="Absolute directory for `~` in those paths."
    )
    name: str | None = Field(default=None, description="Name of the job instead of the file's.")
    project: str | None = Field(default=None, description="Project instead of the file's.")
    default_project: str | None = Field(
        default=None, description="Project if neither `project` nor the file names one."
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Values that override those of `envs`."
    )
    limits: LimitsIn | None = Field(
        default=None, description="Limits that override those of `holdfast.limits`."
    )
    priority: Annotated[StrictInt, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = Field(
        default=None, description="Priority in the queue instead of the file's."
    )
    keep_failed: str | None = Field(
        default=None, description="Value of `holdfast.keep_failed` instead of the file's."
    )
    force: StrictBool = Field(
        default=False,
        description="Run on spot without checkpoints (progress is lost on preemption), or with limits that no plan can "
        "keep; adds a note.",
    )
    checkout: CheckoutIn | None = Field(
        default=None, description="Git checkout of `workdir`, for the manifest."
    )
    code: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="Id of a directory uploaded by the caller, which replaces `workdir`.",
    )
    secrets: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Values that override those of `secrets`. They are stored encrypted and appear in no response.",
        json_schema_extra={"writeOnly": True},
    )


class Can(Schema):
    """Whether an action is possible now."""

    allowed: bool
    reason: str | None = Field(default=None, description="Reason why not; null if it is possible.")


class TerminationNoticeOut(Schema):
    """A pending termination notice."""

    at: datetime
    left_s: float | None = Field(
        description="Seconds from `at` until the nodes stop; null if unknown."
    )
    step: int = Field(description="Step of the job at the notice.")
    phase: str = Field(
        description="saving: the last checkpoint is not durable yet; leaving: it is, or the worker has exited; "
        "noticed: the job saves no checkpoints."
    )


class JobGroupOut(Schema):
    """A node group of a job."""

    name: str
    nodes: int


class JobOut(Schema):
    """The current state of a job."""

    id: str
    name: str
    state: str = Field(
        description="queued, provisioning, starting, training, degraded, recovering, moving, pausing, paused, stopping, succeeded, failed or cancelled."
    )
    detail: str = Field(description="Explanation of the state; may be empty.")
    project: str
    owner: str | None = Field(
        description="Name of the submitter; null for the service's owner, or if unknown."
    )
    from_job: str | None = Field(
        default=None,
        description="The job it resumes from while it has no checkpoint of its own; null if it starts at step 0.",
    )
    engine: str
    sweep: str | None = Field(default=None, description="The sweep it belongs to, if any.")
    submitted_at: datetime
    updated_at: datetime = Field(
        description="When its newest event was recorded; an ended job may still get some, such as deletions of old checkpoints."
    )
    ended_at: datetime | None = Field(default=None, description="Null until it has ended.")
    step: int
    total_steps: int | None = Field(description="Null until a worker reports it.")
    attempt: int
    zone: str | None = Field(description="Null before the first attempt.")
    nodes: int = Field(
        default=1,
        description="Number requested by its job file; the maximum if it is a range.",
    )
    min_nodes: int | None = Field(
        default=None,
        description="Number with which training continues after a loss; null if it needs all.",
    )
    groups: list[JobGroupOut] = Field(
        default=[], description="Node groups of its job file, in the order of their nodes."
    )
    is_planned: bool = Field(
        default=False, description="Whether a plan chooses its nodes, as its job file asks for."
    )
    gpus: int = Field(
        default=0,
        description="Accelerators of all nodes together, by the first choice of its job file; 0 without any.",
    )
    priority: int = Field(
        default=0, description="In the queue of jobs that wait for room in quotas; higher is first."
    )
    preemptions: int = Field(
        description="Attempts that were preempted or failed without a notice, and single nodes that were replaced; the bill shows which."
    )
    drills: int = Field(default=0, description="Those of the preemptions that users requested.")
    resumes: int
    failures: int
    max_failures: int
    limits: LimitsOut = Field(description="Current limits.")
    guard: str | None = Field(description="The guard that paused or stopped it; null without one.")
    last_checkpoint_step: int | None = Field(
        description="Step of the checkpoint that a resume would use; null if there is none."
    )
    saves: str | None = Field(
        description="The checkpoint interval and its reason, as one sentence; null until measured, or if the job file sets it."
    )
    store_promise: str | None = Field(
        description="How its checkpoint store handles two concurrent attempts, in words; "
        "null until a worker has tested it."
    )
    last_checkpoint_at: datetime | None = Field(
        description="Snapshot time of the checkpoint that a resume would use; null if there is none."
    )
    lost_steps: int
    paid_micros: int
    on_demand_micros: int = Field(description="On-demand cost of the same useful work.")
    simulated: bool = Field(description="True if the prices are simulated and nothing is billed.")
    is_price_estimate: bool = Field(
        default=False, description="True if a price is unknown and assumed high."
    )
    exit_code: int | None = Field(description="Null until the exit of the program was reported.")
    tags: dict[str, str]
    notes: list[str] = Field(description="Corrections of the job file.")
    notice: TerminationNoticeOut | None = Field(
        default=None,
        description="Its pending termination notice; null without one.",
    )
    last_seen_at: datetime | None = Field(
        description="Start of the last successful observation at its launcher; null before the first and after the job."
    )
    trouble: str | None = Field(
        description="Why the last observation failed; null if it succeeded."
    )
    warning: str | None = Field(
        description="Warning: nodes that may still be billed, checkpoints that cannot be saved, or old ones that are not deleted; null without any."
    )
    tidying: RetentionOut | None = Field(
        description="Deletion of old checkpoints; null for a job without a checkpoint store."
    )
    proof: ProofOut | None = Field(
        default=None,
        description="Its newest comparison with an uninterrupted copy; null if there is none.",
    )
    rates: RatesOut | None = Field(
        default=None, description="Its newest rates; null unless it trains and reports them."
    )
    eta: EtaOut | None = Field(
        default=None, description="Its expected end; null from services that do not estimate it."
    )
    can: dict[str, Can] = Field(
        description="Possible actions: cancel, pause, resume, clone, retry, limits, preempt, remove."
    )


class JobPage(Schema):
    """A page of jobs, newest first."""

    jobs: list[JobOut]
    next: str | None = Field(description="Pass as `cursor` for the next page; null on the last.")
    total: int = Field(description="Total on all pages.")


class CancelIn(Schema):
    """Reason for a cancellation."""

    reason: str = Field(default="cancelled on request", max_length=500)


class PreemptIn(Schema):
    """A deliberate preemption."""

    node: int | None = Field(
        default=None,
        ge=0,
        description="Node to preempt; null: the last one. With node groups, the whole group of the node is preempted.",
    )
    group: str | None = Field(
        default=None, max_length=64, description="Node group to preempt, in place of `node`."
    )
    notice_s: float | None = Field(
        default=None, ge=0, le=3600, description="Notice in seconds; null gives none."
    )
    force: bool = Field(
        default=False,
        description="Preempt the node even if the job would lose steps that it has not saved.",
    )


class EventOut(Schema):
    """One event of a job."""

    cursor: int
    job_id: str
    seq: int
    kind: str
    source: str
    at: datetime
    recorded_at: datetime
    body: dict[str, Any]


class PointOut(Schema):
    """Measurements of an attempt at a step."""

    attempt: int
    step: int
    at: datetime
    values: dict[str, float | None]


class LogOut(Schema):
    """A readable log."""

    attempt: int
    node: int
    rank: int | None = Field(
        description="Null for the node's own log, which also contains the output of its ranks."
    )
    size_bytes: int


class LogChunk(Schema):
    """A part of a log in a stream."""

    attempt: int
    text: str


Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]+$", max_length=253)]


class ByHandIn(Schema):
    """Hosts for a launch with torchrun on each node."""

    hosts: list[Host] = Field(
        default_factory=list,
        max_length=1000,
        description="Name or address of each node; the first is the rendezvous. Empty: all are this machine.",
    )
    ranks: list[Annotated[int, Field(ge=1, le=1024)]] = Field(
        default_factory=list,
        max_length=1000,
        description="Processes on each node, or one number for all. Empty: one for each accelerator.",
    )
    port: int = Field(default=29400, ge=1024, le=65535, description="Rendezvous port.")
    nodes: int | None = Field(
        default=None, ge=1, le=1000, description="Number of nodes; null: as in the job file."
    )
    least_nodes: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Minimum number of nodes with which training continues; null: all.",
    )


class RenderTaskIn(TaskIn):
    """A job file to preview."""

    by_hand: ByHandIn | None = Field(
        default=None, description="Also return the commands for torchrun."
    )
    sbatch: StrictBool = Field(default=False, description="Also return the script for sbatch.")
    prices: StrictBool = Field(
        default=False, description="Also return the cheapest known placement and its price."
    )


class NodeCommandOut(Schema):
    """The command of one node."""

    host: str
    ranks: int = Field(description="Number of processes.")
    command: str = Field(description="Text for a shell.")


class NodesEstimateOut(Schema):
    """The cheapest known placement of a node group before its launch."""

    name: str = Field(description="Name of the group in the job file.")
    nodes: int
    node: str | None = Field(
        description="Instance type, else accelerators of a node; null if the job file names neither."
    )
    place: str | None = Field(description="Cloud and region; null if any is possible.")
    is_pinned: bool = Field(
        description="True if the job file names the place; false if it is merely the cheapest."
    )
    is_spot: bool
    micros_per_hour: int | None = Field(
        description="Price of the group's nodes in micro-dollars; null if unknown."
    )
    is_old: bool = Field(description="True if the price is older than 90 days.")


class LaunchEstimateOut(Schema):
    """The cheapest known placement of a job before its launch."""

    nodes: int
    node: str | None = Field(
        description="Instance type, else accelerators of a node; null if the job file names neither, or node groups differ."
    )
    place: str | None = Field(
        description="Cloud and region; null if any is possible, or node groups differ."
    )
    is_pinned: bool = Field(
        description="True if the job file names the place; false if it is merely the cheapest."
    )
    is_spot: bool
    micros_per_hour: int | None = Field(
        description="Price of all nodes in micro-dollars; null if unknown."
    )
    is_old: bool = Field(description="True if the price is older than 90 days.")
    simulated: bool = Field(description="True if nothing is billed, as the nodes are not rented.")
    max_cost_usd: str | None = Field(description="The job's limit; null without one.")
    groups: list[NodesEstimateOut] = Field(
        default_factory=list,
        description="The placement of each node group; empty if the job has none.",
    )


class RenderOut(Schema):
    """Preview of a launch."""

    engine: str = Field(description="Launcher of the job.")
    task: str = Field(description="The SkyPilot task as YAML.")
    by_hand: list[NodeCommandOut] = Field(
        default_factory=list, description="Commands of each node, if requested."
    )
    sbatch: str = Field(default="", description="The script, if requested; else empty.")
    notes: list[str] = Field(description="Corrections, and settings without effect, as sentences.")
    refused: list[str] = Field(
        default_factory=list,
        description="Reasons why submit would refuse the same request now; empty if it would accept.",
    )
    estimate: LaunchEstimateOut | None = Field(
        default=None, description="Placement and price, if requested."
    )
