"""Variables of an environment, as what they stand for.

What the worker and the service say to each other: names, exit codes, reports. Standard library only.

Both sides import this module, so that a worker and the service that launched it cannot drift apart. It is the
only part of the worker that the service may know.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final


def number(env: Mapping[str, str], name: str, otherwise: int) -> int:
    """The whole number that a variable says; `otherwise` where it is absent or empty.

    Raises:
        ValueError: it says something else.
    """
    text = env.get(name, "")
    if not text:
        return otherwise
    if not text.isdecimal():
        msg = f"{name} is {text!r}, which is not a number"
        raise ValueError(msg)
    return int(text)


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

# Files in a run directory (Env.RUN_DIR): how a launcher, `holdfast-worker run` and the ranks of one node talk.
NOTICE_FILE: Final = "notice.json"
"""Written by whoever hears of the end first: `{"deadline": RFC 3339 time or null}`."""
LEFT_FILE: Final = "left.json"
"""Written by a rank as it leaves: `{"reason": ..., "exit_code": ..., "step": ..., "detail": ...}`."""
TRAINED_FILE: Final = "trained"
"""Exists once a first step has been finished: what failed later is worth a restart."""
