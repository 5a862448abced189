"""What the worker and the service say to each other: names, exit codes, reports. Standard library only.

Both sides import this module, so that a worker and the service that launched it cannot drift apart. It is the
only part of the worker that the service may know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

Json: TypeAlias = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# Under HOLDFAST_URL, with HOLDFAST_TOKEN as bearer: where a worker is heard.
MUSTER_PATH: Final = "/v1/jobs/{job}/muster"
"""POST `{incarnation}`, a name drawn once for each placement that nobody numbered: 200 `Mustered`; 503 until the launcher
was looked at since; 409 `FENCED` if it was replaced."""
REPORTS_PATH: Final = "/v1/jobs/{job}/reports"
"""POST `{attempt, reports: [{n, at, kind, body}], incarnation?, oldest?}`: 200 `{next, leave_within_s?}`, 409 `FENCED`, or 409
`NOT_MUSTERED`.

`incarnation` is there if the worker mustered. `oldest` is the number of the first report of the delivery where the worker no
longer has the one that the service wants, as after a backup was restored: the service continues there. `next` is the number of the report that is wanted next. `leave_within_s` asks
a job that mustered to save its work and leave within so many seconds, as on a notice; who did not muster is told by its
launcher."""
LONGEST_BODY_BYTES: Final = 1024 * 1024
"""Of what the service takes in one request. Smaller refuses a worker's batch; bigger lets one caller hold the memory of
many."""

# How the `type` of a problem of the service ends, after `PROBLEMS`.
PROBLEMS: Final = "/docs/errors#"
"""A refusal without it is somebody else's, such as a proxy's whose service is being replaced: it may not last."""
FENCED: Final = "fenced"
"""Another incarnation of this job took over."""
NOT_MUSTERED: Final = "not-mustered"
"""This incarnation is not known any more, as after a backup was restored: it has to muster again."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a placement is told that musters."""

    attempt: int
    """Number of the placement within the job, from 1."""
    next: int
    """Number of its next report; more than 1 if it reported before, or took over within the attempt."""
    before: int
    """How many reports of the attempt others sent before its first."""


RANK_LINE: Final = "[RANK {rank}] WORLD_SIZE={world_size}"
"""What every rank writes as it begins, so that whoever reads a log sees which of them came."""


class ReportKind(StrEnum):
    """Kinds of reports; the body of each is described at its value."""

    RESTORE_STARTED = "restore_started"
    """`{guarantee | null}`: the program is up and begins to look for a checkpoint; what its store promises, null without one."""
    RUN_DESCRIBED = "run_described"
    """`{manifest}`: what the run comes from, before its first step; see `docs/reference/manifest.md`."""
    TRAINING_STARTED = "training_started"
    """`{step, total_steps | null, world_size, restored_from | null, passed_over: [{checkpoint, reason}]}`. A checkpoint of the
    job in `Env.FROM` has that before its name, and a slash between them."""
    PROGRESS = "progress"
    """`{step, values: {name: number}}`: a metric point, at most about one a second and always the last one."""
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    """`{step, checkpoint, size_bytes, stall_ms, upload_ms, snapshot_at, weights_sha256, interval | null, metrics: {name: {value
    | null, step}}}`; `at` is when it was durable. `interval` is an `Interval`; null where the job file says how often to save.
    `metrics` is what was logged last up to that step."""
    CHECKPOINT_FAILED = "checkpoint_failed"
    """`{step, detail}`: training goes on, the older checkpoints stay."""
    SAVING_FAILED = "saving_failed"
    """`{step, failures, safe_step, policy, detail}`: so many checkpoints in a row could not be saved, the last one at `step`.
    `policy` is the `OnFailure` that follows. The next `checkpoint_committed` says that it is over."""
    PREEMPTION_NOTICED = "preemption_noticed"
    """`{step, left_s | null}`: seconds until the node goes, null when the notice did not say."""
    WORKER_LEFT = "worker_left"
    """`{step, reason: finished | preempted | failed, exit_code, detail}`."""


class Vital(StrEnum):
    """What a run tells of itself in `progress`, beside what its script logs, of its first rank."""

    LOADING = "holdfast/loading"
    """Share of the time in which it waited for data."""
    COMMUNICATION = "holdfast/communication"
    """Share of the time in which it waited for the gradients of other ranks, with nothing else to compute meanwhile."""
    HOST_MEMORY = "holdfast/host_memory_bytes"
    """Of the process."""
    GPU_MEMORY = "holdfast/gpu_memory_bytes"
    """The most that was allocated at once so far."""
    GPU_UTILIZATION = "holdfast/gpu_utilization"
    """Share of the time in which the GPU computed anything."""


def _kind(name: str) -> ReportKind | str:
    try:
        return ReportKind(name)
    except ValueError:
        return name


@dataclass(frozen=True, slots=True)
class Report:
    """One thing a worker has to say. `(job, attempt, n)` is its identity; n counts from 1 without gaps."""

    attempt: int
    """0 in the spool of a placement that is not numbered yet."""
    n: int
    at: str
    """RFC 3339 time in UTC, by the worker's clock."""
    kind: str
    """A `ReportKind`, or one that a newer version added."""
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
        """The report of one line of a spool.

        Raises:
            ValueError: the line is not a whole report (torn by a crash, or not ours).
        """
        try:
            raw = json.loads(line)
            return cls(
                int(raw["attempt"]),
                int(raw["n"]),
                str(raw["at"]),
                _kind(str(raw["kind"])),
                dict(raw["body"]),
            )
        except (KeyError, TypeError, OverflowError, RecursionError, json.JSONDecodeError) as error:
            msg = f"not a report: {line[:80]!r}"
            raise ValueError(msg) from error
