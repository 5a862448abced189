"""Reports that the worker sends to the service, and the routes for them.

Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

Json: TypeAlias = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# Routes for workers below HOLDFAST_URL, with HOLDFAST_TOKEN as bearer token.
REGISTER_PATH: Final = "/v1/jobs/{job}/muster"
"""POST `{incarnation}`, a random name of an attempt without a number.
200: `Registration`. 503: the launcher has not been observed since. 409: `FENCED`, the attempt was replaced."""
RENDEZVOUS_PATH: Final = "/v1/jobs/{job}/rendezvous"
"""POST `{node, group, incarnation, joined, addresses, port}` of a node, if a job has several groups of them. Only node 0 has addresses.
200: `{leader: {group, incarnation, addresses, port} | null, start}`, see `Meeting`. 409: `FENCED`, the node was replaced, or the job stops."""
REPORTS_PATH: Final = "/v1/jobs/{job}/reports"
"""POST `{attempt, reports: [{n, at, kind, body}], incarnation?, oldest?, asks_end?}`.
200: `{next, leave_within_s?, stop?, drills?: [{requested_at, nodes, within_s}], remaining?: {p10_s, p50_s, p90_s}}`. 409: `FENCED` or `NOT_REGISTERED`.

`incarnation` is present if the worker registered. `oldest` is the number of the delivery's first report, if the worker no
longer has the one that the service expects, as after a restored backup: the service continues there. `next` is the number
of the next expected report. `leave_within_s` asks a registered worker to save its work and exit within so many seconds, as
on a termination notice. The launcher notifies workers that did not register. `stop` is a `JobStop`, while the job stops. `drills`: see `GroupDrill`. `remaining` is the time until the expected end of the job,
if the worker `asks_end` and there is an estimate."""
MAX_BODY_BYTES: Final = 1024 * 1024
"""Size of a request that the service accepts.
A lower value rejects a worker's batch; a higher value lets one caller hold the memory of many."""

PROBLEMS: Final = "/docs/errors#"
"""In the `type` of every problem of the service, before one of the names below.
An error response without it comes from a different server, such as a proxy during a restart: it may be temporary."""
FENCED: Final = "fenced"
"""A different incarnation of this job replaced this one."""
NOT_REGISTERED: Final = "not-mustered"
"""This incarnation is unknown, as after a restored backup: it has to register again."""

PERCENTILES: Final = ("p10", "p50", "p90")
"""Percentiles of the expected end of a job."""


class JobStop(StrEnum):
    """What becomes of a job that stops, although its program has not ended by itself."""

    CANCELLED = "cancelled"
    PAUSED = "paused"
    FAILED = "failed"
    """It has reached a limit for good."""

    @classmethod
    def parse(cls, value: object) -> JobStop | None:
        """Return None without a value, and for one of a later version."""
        return cls(str(value)) if value in [*cls] else None


@dataclass(frozen=True, slots=True)
class Registration:
    """The response to the registration of an incarnation."""

    attempt: int
    """Number of the attempt within the job, from 1."""
    next: int
    """Number of its next report.
    It is more than 1 if the worker has reported, or replaced a different incarnation within the attempt."""
    before: int
    """Number of reports of the attempt that other incarnations sent before."""


@dataclass(frozen=True, slots=True)
class GroupDrill:
    """Nodes of one group that have to end as if their machines had gone.

    A user has asked for it.
    """

    requested_at: str
    """Identifies the request, which the service repeats."""
    nodes: Sequence[int]
    within_s: float
    """Seconds that are left of the notice; 0: they end at once."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Node 0 of a job with several groups of nodes, which all others meet."""

    group: str
    incarnation: str
    addresses: Sequence[str]
    """The likeliest first."""
    port: int
    """Port of the rendezvous; the channel between the wrappers is beside it."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a node of a group meets the others, as the service answers."""

    leader: Leader | None
    """None: none has registered yet."""
    start: int
    """How often the node was sent to this leader before, which accepts only the newest start."""


RANK_LINE: Final = "[RANK {rank}] WORLD_SIZE={world_size}"
"""Line that every rank prints as it starts, so that a log shows which ranks have started."""


class ReportKind(StrEnum):
    """Kinds of reports; the body of each is documented at its value."""

    RESTORE_STARTED = "restore_started"
    """`{guarantee | null, store_place}`: the program has started and searches for a checkpoint.
    `guarantee` is null without a store. `store_place` is where the store is, such as aws/us-east-1; absent if unknown."""
    RUN_DESCRIBED = "run_described"
    """`{manifest}`: sources of the run, before its first step; see `docs/reference/manifest.md`."""
    TRAINING_STARTED = "training_started"
    """`{step, total_steps | null, world_size, restored_from | null,
    passed_over: [{checkpoint, reason}], held_at, store_usage}`. A checkpoint of the job in `Env.FROM` has the prefix `<job>/`.
    `held_at` is there if the store does not have the checkpoint, as it is a snapshot in the memory of the nodes: its time.
    `store_usage`: a `StoreUsage` of all ranks since they started."""
    PROGRESS = "progress"
    """`{step, values: {name: number}}`: a metric point.
    At most about one a second, and always the last one."""
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    """`{step, checkpoint, size_bytes, stall_ms, upload_ms, snapshot_at, weights_sha256,
    interval | null, metrics: {name: {value | null, step}}, store_usage}`; `at` is when it was durable. `interval` is an `Interval`; null if
    the job file sets the interval. `metrics` has the last values up to that step."""
    CHECKPOINT_FAILED = "checkpoint_failed"
    """`{step, detail}`: training continues, and older checkpoints are kept."""
    SAVING_FAILED = "saving_failed"
    """`{step, failures, safe_step, policy, detail}`: consecutive checkpoints failed.
    `failures` is their number; the last one failed at `step`. `policy` is the `OnFailure` that applies. The next
    `checkpoint_committed` ends this state."""
    PREEMPTION_NOTICED = "preemption_noticed"
    """`{step, left_s | null}`: seconds until the node is terminated.
    Null if the notice named no time."""
    RANKS_RESTARTED = "ranks_restarted"
    """`{step, exit_code, detail, node_lost}`: a rank failed after `step` completed steps, and all ranks start again within the attempt.
    `node_lost` is there and true if nodes were lost, in whose place there are others before they start.
    Written after all ranks have ended. `restore_started` and `training_started` of the same attempt follow."""
    RANKS_REPLACED = "ranks_replaced"
    """`{step, ranks, cause, paused_ms, hosted_nodes}`: ranks were lost within step `step` + 1 and replaced, while the others waited with
    their state. `paused_ms`: the longest time for which one waited. `hosted_nodes`: the missing nodes whose ranks run on others from now
    on; absent without one. No step is lost, and no other report follows."""
    GPUS_READ = "gpus_read"
    """`{nodes: [{node, host, at, gpus: [...]}]}`: the newest readings of GPUs, see `protocol.gpu_health`."""
    GPU_UNHEALTHY = "gpu_unhealthy"
    """`{node, host, gpu, name, faults, detail, since}`: a GPU has faults (`GpuFault`), some of which were not reported before."""
    NODES_KEPT = "nodes_kept"
    """`{step, until}`: the program has failed, and its nodes are kept for commands of users, at the latest until this time."""
    WORKER_LEFT = "worker_left"
    """`{step, reason: finished | preempted | failed, exit_code, detail}`."""


RUNTIME_METRIC_PREFIX: Final = "holdfast/"
"""Prefix of the names in `RuntimeMetricName`."""


class RuntimeMetricName(StrEnum):
    """Metrics of rank 0 that a run adds to `progress`, in addition to those of its script."""

    STEPS = "holdfast/steps_per_second"
    """Steps per second of training, including the waits for data, for other ranks and for checkpoints, without stalls."""
    SAMPLES = "holdfast/samples_per_second"
    """Samples per second of training, over all ranks."""
    TOKENS = "holdfast/tokens_per_second"
    """Tokens per second of training, over all ranks."""
    MFU = "holdfast/mfu"
    """Share of the GPU's peak that the model's operations use."""
    DATA_SECONDS = "holdfast/data_seconds"
    """Seconds of a step spent waiting for the next batch. The parts of a step do not contain stalls."""
    COMPUTE_SECONDS = "holdfast/compute_seconds"
    """Seconds of a step that are no other part of it; only if all other parts are measured."""
    COMMUNICATION_SECONDS = "holdfast/communication_seconds"
    """Seconds of a step spent waiting for gradients of other ranks without computing."""
    SAVING_SECONDS = "holdfast/saving_seconds"
    """Seconds of a step for which saves hold up training."""
    STALLED = "holdfast/stalled"
    """Share of time by which stalled steps took longer than the usual step."""
    LOADING = "holdfast/loading"
    """Share of time spent waiting for data, including stalls."""
    COMMUNICATION = "holdfast/communication"
    """Share of a pass spent waiting for gradients of other ranks without computing."""
    HOST_MEMORY = "holdfast/host_memory_bytes"
    """Resident memory of the process."""
    GPU_MEMORY = "holdfast/gpu_memory_bytes"
    """Peak of allocated GPU memory."""
    GPU_UTILIZATION = "holdfast/gpu_utilization"
    """Share of time in which the GPU was busy."""


def _parse_kind(name: str) -> ReportKind | str:
    try:
        return ReportKind(name)
    except ValueError:
        return name


@dataclass(frozen=True, slots=True)
class Report:
    """One report of a worker, identified by `(job, attempt, n)`; n counts from 1 without gaps."""

    attempt: int
    """0 in the spool of an attempt without a number."""
    n: int
    at: str
    """RFC 3339 time in UTC, by the worker's clock."""
    kind: str
    """A `ReportKind`, or a kind that a newer version added."""
    body: Mapping[str, Json]

    def line(self) -> str:
        """The report as one line of JSON, without the newline."""
        return json.dumps(
            {
                "attempt": self.attempt,
                "n": self.n,
                "at": self.at,
                "kind": self.kind,
                "body": dict(self.body),
            },
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, line: str) -> Report:
        """Parse one line of a spool.

        Raises:
            ValueError: the line is not a whole report, for example after a crash.
        """
        try:
            raw = json.loads(line)
            return cls(
                int(raw["attempt"]),
                int(raw["n"]),
                str(raw["at"]),
                _parse_kind(str(raw["kind"])),
                dict(raw["body"]),
            )
        except (KeyError, TypeError, OverflowError, RecursionError, json.JSONDecodeError) as error:
            msg = f"not a report: {line[:80]!r}"
            raise ValueError(msg) from error
