"""What the worker and the service say to each other: names, exit codes, reports. Standard library only.

Both sides import this module, so that a worker and the service that launched it cannot drift apart. It is the
only part of the worker that the service may know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

Json: TypeAlias = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Env(StrEnum):
    """Environment variables that a launcher gives to the program of a job, beside SkyPilot's own."""

    JOB = "HOLDFAST_JOB"
    """Id of the job; absent when a script runs with nothing around it."""
    ATTEMPT = "HOLDFAST_ATTEMPT"
    """Number of this placement within the job, from 1. Absent under a launcher that recovers by itself, with the same
    environment each time: then the worker musters, and the service numbers it."""
    EPOCH = "HOLDFAST_EPOCH"
    """Fencing number of this placement; grows with every placement, names the checkpoints it writes. Absent: the worker
    claims the next one in the checkpoint store."""
    STORE = "HOLDFAST_STORE"
    """Checkpoint store: `s3://bucket/prefix` or `file:///path`."""
    FROM = "HOLDFAST_FROM"
    """Id of a job that has ended, and from whose checkpoints in the same store this one goes on while it has none of its own;
    absent: it begins at the beginning."""
    EVERY = "HOLDFAST_EVERY"
    """Checkpoint cadence: `auto`, a duration such as `15m`, or `500 steps`."""
    KEEP = "HOLDFAST_KEEP"
    """How many complete checkpoints stay in the store."""
    MAX_STALL = "HOLDFAST_MAX_STALL"
    """How long no rank may make a step: `auto`, a duration such as `20m`, or `off`; absent means `auto`."""
    ON_SAVE_FAILURE = "HOLDFAST_ON_SAVE_FAILURE"
    """What to do when checkpoints cannot be saved any more: a value of `OnFailure`; absent means `stop`."""
    TIDY = "HOLDFAST_TIDY"
    """Who removes old checkpoints, a `Tidy`; absent means the worker."""
    NAME = "HOLDFAST_NAME"
    """Name of the job, as its file gives it."""
    URL = "HOLDFAST_URL"
    """Address of the service."""
    TOKEN = "HOLDFAST_TOKEN"  # noqa: S105 - the name of a variable, not a secret
    """Token that may report for this one job."""
    SPOOL = "HOLDFAST_SPOOL"
    """Directory where reports wait until the service has them; outlives a placement where it can. Without ATTEMPT the
    wrapper makes one."""
    RUN_DIR = "HOLDFAST_RUN_DIR"
    """Directory of one node of one placement: notice, ranks' process ids, reason of leaving. Without ATTEMPT the wrapper
    makes one."""
    MASTER_PORT = "HOLDFAST_MASTER_PORT"
    """Port of the rendezvous on the first node; absent means the default."""
    SEED = "HOLDFAST_SEED"
    """Seed of all generators; absent means 0."""
    DETERMINISTIC = "HOLDFAST_DETERMINISTIC"
    """`1`: as `Run.start(deterministic=True)`; absent leaves it to the script."""
    MAX_STEPS = "HOLDFAST_MAX_STEPS"
    """The run is over after so many steps, whatever the script says; absent: the script says it."""
    WITNESS = "HOLDFAST_WITNESS"
    """What each step was given is written into the log of its rank; the number is the shortest time of a step in
    milliseconds. Absent: it is not."""
    SYNC_SAVES = "HOLDFAST_SYNC_SAVES"
    """`1`: training waits until a checkpoint is durable; absent: it goes on meanwhile."""
    INIT_METHOD = "HOLDFAST_INIT_METHOD"
    """Where the ranks meet: `env://`, `tcp://host:port` or `file:///path`; absent: as whoever started them says."""
    BACKEND = "HOLDFAST_BACKEND"
    """What the ranks talk by: `gloo` or `nccl`; absent: what suits the device."""


WITNESS: Final = "witness: "
"""How a line about one step begins, after `holdfast: `; JSON follows: `rank`, `step` from 0, the digest of its `batch`, and what
was `logged` of the step before."""


class Tidy(StrEnum):
    """Who removes checkpoints that are not to be kept."""

    SERVICE = "service"
    """After a while, and by all of the rule; the worker deletes none."""
    WORKER = "worker"
    """At once after each commit, and by their number alone. Nobody else would, where no service is."""


class SkyEnv(StrEnum):
    """SkyPilot's variables. Every launcher sets the first five, SkyPilot alone the others."""

    NUM_NODES = "SKYPILOT_NUM_NODES"
    NODE_RANK = "SKYPILOT_NODE_RANK"
    NODE_IPS = "SKYPILOT_NODE_IPS"
    NUM_GPUS_PER_NODE = "SKYPILOT_NUM_GPUS_PER_NODE"
    TASK_ID = "SKYPILOT_TASK_ID"
    INTERNAL_JOB_ID = "SKYPILOT_INTERNAL_JOB_ID"
    """Counts what was run on these machines: another number on the same machines is another placement."""
    MANAGED_JOB_ID = "SKYPILOT_MANAGED_JOB_ID"
    """Present where SkyPilot recovers the job by itself."""
    CLUSTER_INFO = "SKYPILOT_CLUSTER_INFO"
    """JSON that names, among others, the `cloud`."""


class Exit(IntEnum):
    """Exit codes of `holdfast-worker run` and of a rank."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    """The command line or the environment is wrong; running it again will not help."""
    APART = 70
    """The ranks did not train the same model any more (EX_SOFTWARE of sysexits.h). Worth another try, from a checkpoint."""
    UNSAVED = 74
    """Checkpoints could not be saved any more (EX_IOERR of sysexits.h). Another try is worth it if the store is well again,
    which it finds out before its first step."""
    PREEMPTED = 75
    """Left on notice with its work saved (EX_TEMPFAIL of sysexits.h: try again later)."""
    FENCED = 76
    """A newer placement of the job took over; this one saved nothing more (EX_PROTOCOL of sysexits.h)."""
    UNUSABLE_STORE = 78
    """The checkpoint store cannot be used (EX_CONFIG of sysexits.h); running it again will not help."""
    STALLED = 124
    """No rank made a step for too long, and the watchdog ended them (what `timeout` says). Worth another try."""


NO_RETRY: Final = frozenset({Exit.USAGE, Exit.FENCED, Exit.UNUSABLE_STORE})
"""Exit codes after which a restart would only burn money. After FENCED it would do worse: the restart is the newest
placement again and fences the one that took over, and the two go on like this for ever."""

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

# Files in a run directory (Env.RUN_DIR): how a launcher, `holdfast-worker run` and the ranks of one node talk.
NOTICE_FILE: Final = "notice.json"
"""Written by whoever hears of the end first: `{"deadline": RFC 3339 time or null}`."""
LEFT_FILE: Final = "left.json"
"""Written by a rank as it leaves: `{"reason": ..., "exit_code": ..., "step": ..., "detail": ...}`."""
TRAINED_FILE: Final = "trained"
"""Exists once a first step has been finished: what failed later is worth a restart."""


@dataclass(frozen=True, slots=True)
class Mustered:
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


class Guarantee(StrEnum):
    """What a checkpoint store promises where two placements of a job are alive at once."""

    CONDITIONAL = "conditional"
    OVERWRITES = "overwrites"

    @property
    def words(self) -> str:
        """What it does, for people: the rest of a sentence about it."""
        if self is Guarantee.CONDITIONAL:
            return "keeps the first of two writes, so that no two placements of a job hold the same epoch"
        return (
            "overwrites, so that of two placements of a job that begin within the same moment "
            "the service alone can tell which is the older"
        )


class OnFailure(StrEnum):
    """What a run does when checkpoints cannot be saved any more."""

    STOP = "stop"
    """All ranks leave with `Exit.UNSAVED`: work that cannot be saved costs money and is lost with the node."""
    CONTINUE = "continue"
    """Training goes on and saving is tried again."""


@dataclass(frozen=True, slots=True)
class Interval:
    """How often `auto` saves, and what that follows from."""

    interval_s: int
    stall_ms: int
    """How long training stands still for a checkpoint."""
    durable_ms: int
    """What a checkpoint takes at full speed, nine times in ten or less."""
    between_failures_s: int
    """How long the nodes are reckoned to last."""
    losses: int
    """Placements of this job that were cut short so far."""

    @property
    def words(self) -> str:
        """The same as a sentence for people, without its stop."""
        often = {0: "never", 1: "once"}.get(self.losses, f"{self.losses} times")
        return (
            f"every {_span(self.interval_s)}: a checkpoint stops training for {_span(self.stall_ms / 1000)} and is durable "
            f"after {_span(self.durable_ms / 1000)}; nodes are reckoned to last {_span(self.between_failures_s)}, as the job "
            f"was cut short {often} so far"
        )


def _span(seconds: float) -> str:
    """A duration in the unit that fits."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds <= 7200 else f"{seconds / 3600:.3g} h"


class Rhythm(StrEnum):
    """How the checkpoint cadence is counted."""

    AUTO = "auto"
    SECONDS = "seconds"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class Cadence:
    """When a checkpoint is due: `amount` seconds or steps after the last one; 0 with AUTO, which measures."""

    rhythm: Rhythm
    amount: int

    @classmethod
    def parse(cls, text: str) -> Cadence:
        """The cadence of `auto`, `90s`, `15m`, `2h` or `500 steps`.

        Raises:
            ValueError: none of these; the message says what is accepted.
        """
        words = text.strip().lower()
        if words == "auto":
            return cls(Rhythm.AUTO, 0)
        if match := re.fullmatch(r"(\d+)\s*steps?", words):
            amount, rhythm = int(match[1]), Rhythm.STEPS
        else:
            amount, rhythm = _duration_s(words), Rhythm.SECONDS
        if amount < 1:
            msg = f"{text!r} is not a cadence: write auto, a duration such as 90s, 15m or 2h, or a count such as 500 steps"
            raise ValueError(msg)
        return cls(rhythm, amount)


class Watch(StrEnum):
    """How it is known that a run stands still."""

    AUTO = "auto"
    SECONDS = "seconds"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class MaxStall:
    """How long no rank may make a step: `limit_s` seconds; 0 with AUTO, which measures, and with OFF."""

    watch: Watch
    limit_s: int

    @classmethod
    def parse(cls, text: str) -> MaxStall:
        """The limit of `auto`, `off`, `90s`, `20m` or `2h`.

        Raises:
            ValueError: none of these; the message says what is accepted.
        """
        words = text.strip().lower()
        if words in {Watch.AUTO, Watch.OFF}:
            return cls(Watch(words), 0)
        limit_s = _duration_s(words)
        if limit_s < 1:
            raise ValueError(
                f"{text!r} is no time to stand still: write auto, off, or a duration such as 20m or 2h"
            )
        return cls(Watch.SECONDS, limit_s)


def _duration_s(words: str) -> int:
    """The seconds of `90s`, `15m` or `2h`; 0 of what is no duration."""
    match = re.fullmatch(r"(\d+)\s*([smh])", words)
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else 0
