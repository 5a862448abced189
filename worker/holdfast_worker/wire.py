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
    """Number of this placement within the job, from 1."""
    EPOCH = "HOLDFAST_EPOCH"
    """Fencing number of this placement; grows with every placement, names the checkpoints it writes."""
    STORE = "HOLDFAST_STORE"
    """Checkpoint store: `s3://bucket/prefix` or `file:///path`."""
    EVERY = "HOLDFAST_EVERY"
    """Checkpoint cadence: `auto`, a duration such as `15m`, or `500 steps`."""
    KEEP = "HOLDFAST_KEEP"
    """How many complete checkpoints stay in the store."""
    NAME = "HOLDFAST_NAME"
    """Name of the job, as its file gives it."""
    URL = "HOLDFAST_URL"
    """Address of the service."""
    TOKEN = "HOLDFAST_TOKEN"  # noqa: S105 - the name of a variable, not a secret
    """Token that may report for this one job."""
    SPOOL = "HOLDFAST_SPOOL"
    """Directory where reports wait until the service has them; outlives a placement where it can."""
    RUN_DIR = "HOLDFAST_RUN_DIR"
    """Directory of one node of one placement: notice, ranks' process ids, reason of leaving."""
    MASTER_PORT = "HOLDFAST_MASTER_PORT"
    """Port of the rendezvous on the first node; absent means the default."""
    SEED = "HOLDFAST_SEED"
    """Seed of all generators; absent means 0."""


class SkyEnv(StrEnum):
    """SkyPilot's variables, which every launcher sets."""

    NUM_NODES = "SKYPILOT_NUM_NODES"
    NODE_RANK = "SKYPILOT_NODE_RANK"
    NODE_IPS = "SKYPILOT_NODE_IPS"
    NUM_GPUS_PER_NODE = "SKYPILOT_NUM_GPUS_PER_NODE"
    TASK_ID = "SKYPILOT_TASK_ID"


class Exit(IntEnum):
    """Exit codes of `holdfast-worker run` and of a rank."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    """The command line or the environment is wrong; running it again will not help."""
    PREEMPTED = 75
    """Left on notice with its work saved (EX_TEMPFAIL of sysexits.h: try again later)."""
    UNUSABLE_STORE = 78
    """The checkpoint store cannot be used (EX_CONFIG of sysexits.h); running it again will not help."""


NO_RETRY: Final = frozenset({Exit.USAGE, Exit.UNUSABLE_STORE})
"""Exit codes after which a restart would only burn money."""

# Files in a run directory (Env.RUN_DIR): how a launcher, `holdfast-worker run` and the ranks of one node talk.
NOTICE_FILE: Final = "notice.json"
"""Written by whoever hears of the end first: `{"deadline": RFC 3339 time or null}`."""
LEFT_FILE: Final = "left.json"
"""Written by a rank as it leaves: `{"reason": ..., "exit_code": ..., "step": ..., "detail": ...}`."""
TRAINED_FILE: Final = "trained"
"""Exists once a first step has been finished: what failed later is worth a restart."""


class ReportKind(StrEnum):
    """Kinds of reports; the body of each is described at its value."""

    RESTORE_STARTED = "restore_started"
    """`{}`: the program is up and begins to look for a checkpoint."""
    TRAINING_STARTED = "training_started"
    """`{step, total_steps | null, world_size, restored_from | null, passed_over: [{checkpoint, reason}]}`."""
    PROGRESS = "progress"
    """`{step, values: {name: number}}`: a metric point, at most about one a second and always the last one."""
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    """`{step, checkpoint, size_bytes, stall_ms, upload_ms, snapshot_at, weights_sha256}`; `at` is when it was durable."""
    CHECKPOINT_FAILED = "checkpoint_failed"
    """`{step, detail}`: training goes on, the older checkpoints stay."""
    PREEMPTION_NOTICED = "preemption_noticed"
    """`{step, left_s | null}`: seconds until the node goes, null when the notice did not say."""
    WORKER_LEFT = "worker_left"
    """`{step, reason: finished | preempted | failed, exit_code, detail}`."""


@dataclass(frozen=True, slots=True)
class Report:
    """One thing a worker has to say. `(job, attempt, n)` is its identity; n counts from 1 without gaps."""

    attempt: int
    n: int
    at: str
    """RFC 3339 time in UTC, by the worker's clock."""
    kind: ReportKind
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
                ReportKind(raw["kind"]),
                dict(raw["body"]),
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            msg = f"not a report: {line[:80]!r}"
            raise ValueError(msg) from error


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
        elif match := re.fullmatch(r"(\d+)\s*([smh])", words):
            amount, rhythm = int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]], Rhythm.SECONDS
        else:
            amount, rhythm = 0, Rhythm.AUTO
        if amount < 1:
            msg = f"{text!r} is not a cadence: write auto, a duration such as 90s, 15m or 2h, or a count such as 500 steps"
            raise ValueError(msg)
        return cls(rhythm, amount)
