"""Environment variables, exit codes and files that the worker and the service share.

Standard library only.

Both sides import this package, so that a worker and the service that launched it use the same names. The service
imports nothing else of the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final


def int_variable(env: Mapping[str, str], name: str, default: int) -> int:
    """Parse a variable as a non-negative integer; `default` if it is absent or empty.

    Raises:
        ValueError: it has a different value.
    """
    text = env.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        msg = f"{name} is {text!r}, which is not a number"
        raise ValueError(msg)
    return int(text)


class Env(StrEnum):
    """Environment variables that a launcher sets for a job, in addition to SkyPilot's."""

    JOB = "HOLDFAST_JOB"
    """Id of the job; absent if a script runs without a launcher."""
    ATTEMPT = "HOLDFAST_ATTEMPT"
    """Number of this attempt within the job, from 1.
    Absent under a launcher that recovers by itself, with the same environment each time: then the worker registers, and the
    service numbers it."""
    EPOCH = "HOLDFAST_EPOCH"
    """Fencing token of this attempt.
    It increases with every attempt and is part of its checkpoint names. Absent: the worker claims the next one in the
    checkpoint store."""
    STORE = "HOLDFAST_STORE"
    """Checkpoint store: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `file:///path`."""
    FROM = "HOLDFAST_FROM"
    """Id of an ended job: this one starts from its checkpoints in the same store.
    They are used until this job has a checkpoint. Absent: it starts at step 0."""
    EVERY = "HOLDFAST_EVERY"
    """Checkpoint cadence: `auto`, a duration such as `15m`, or `500 steps`."""
    KEEP = "HOLDFAST_KEEP"
    """Number of complete checkpoints to keep in the store."""
    MAX_STALL = "HOLDFAST_MAX_STALL"
    """Maximum time without a step of any rank: `auto`, a duration such as `20m`, or `off`;
    absent means `auto`."""
    OUTPUTS = "HOLDFAST_OUTPUTS"
    """Patterns of output files that each node sends to the store at the end of an attempt, as a JSON list. Absent: none."""
    KEEP_FAILED = "HOLDFAST_KEEP_FAILED"
    """Seconds for which nodes are kept after a failure of the program, for commands of users. Absent: none."""
    ON_SAVE_FAILURE = "HOLDFAST_ON_SAVE_FAILURE"
    """What to do when checkpoints can no longer be saved: a value of `OnFailure`;
    absent means `stop`."""
    TIDY = "HOLDFAST_TIDY"
    """The component that deletes old checkpoints, a `RetentionOwner`; absent means the worker."""
    NAME = "HOLDFAST_NAME"
    """Name of the job in its job file."""
    URL = "HOLDFAST_URL"
    """Address of the service."""
    TOKEN = "HOLDFAST_TOKEN"  # noqa: S105 - the name of a variable, not a secret
    """Access token for the reports of this job only."""
    SPOOL = "HOLDFAST_SPOOL"
    """Directory of reports that the service does not have yet.
    It outlives an attempt where possible. Without ATTEMPT the wrapper creates one."""
    RUN_DIR = "HOLDFAST_RUN_DIR"
    """Directory of one node of one attempt: notice, process ids of ranks, exit reason.
    Without ATTEMPT the wrapper creates one."""
    MASTER_PORT = "HOLDFAST_MASTER_PORT"
    """Port of the rendezvous on the first node; absent means the default."""
    SEED = "HOLDFAST_SEED"
    """Seed of all generators; absent means 0."""
    DETERMINISTIC = "HOLDFAST_DETERMINISTIC"
    """`1`: same as `Run.start(deterministic=True)`; absent: the script decides."""
    MAX_STEPS = "HOLDFAST_MAX_STEPS"
    """Maximum number of steps, also if the script asks for more; absent: the script decides."""
    WITNESS = "HOLDFAST_WITNESS"
    """Write a trace of each step's batch to the log of its rank.
    The value is the minimum duration of a step in milliseconds. Absent: no trace."""
    SYNC_SAVES = "HOLDFAST_SYNC_SAVES"
    """`1`: training waits until a checkpoint is durable; absent: it continues during the upload."""
    WARM = "HOLDFAST_WARM"
    """`0`: each rank is a new interpreter; absent: ranks are forked from one that has imported torch."""
    MAX_RESTARTS = "HOLDFAST_MAX_RESTARTS"
    """How often ranks start again on the same nodes without getting further than before.
    `0`: each failure of a rank ends the attempt. Absent means 1 for jobs of a launcher, and otherwise 0."""
    RECOVERY = "HOLDFAST_RECOVERY"
    """What the ranks of other nodes do if ranks are lost: a value of `RecoveryMode`; absent means `in_process`."""
    NODE_START = "HOLDFAST_NODE_START"
    """How often the launcher has replaced this node within its attempt: `0` for the first one.
    Absent: the loss of a node ends the attempt."""
    MIN_NODES = "HOLDFAST_MIN_NODES"
    """With at least this many nodes, the ranks of lost ones run on the others until they are replaced. Absent: all nodes are needed."""
    GROUP = "HOLDFAST_GROUP"
    """Name of this node's group, if the launcher starts and replaces several groups of nodes independently of each other.
    SkyPilot's variables are those of the group, and the nodes meet through the service. Absent: all nodes are one placement."""
    FIRST_NODE = "HOLDFAST_FIRST_NODE"
    """Number of the group's first node among all nodes, with GROUP."""
    TOTAL_NODES = "HOLDFAST_TOTAL_NODES"
    """Number of nodes of all groups, with GROUP."""
    MEMORY = "HOLDFAST_MEMORY"
    """How often snapshots are copied into the memory of the nodes: `auto`, a duration such as `30s`, `20 steps`, or `off`;
    absent means `auto`."""
    INIT_METHOD = "HOLDFAST_INIT_METHOD"
    """Rendezvous of the ranks: `env://`, `tcp://host:port` or `file:///path`;
    absent: from the launcher of the ranks."""
    BACKEND = "HOLDFAST_BACKEND"
    """Backend of torch.distributed: `gloo` or `nccl`; absent: chosen by device."""


BATCH_TRACE_PREFIX: Final = "witness: "
"""Prefix of the trace line of a step, after `holdfast: `.
JSON follows: `rank`, `step` from 0, the digest of its `batch`, and the metrics `logged` for the previous step."""


class SkyEnv(StrEnum):
    """Environment variables of SkyPilot.

    Every launcher sets the first five, only SkyPilot the others.
    """

    NUM_NODES = "SKYPILOT_NUM_NODES"
    NODE_RANK = "SKYPILOT_NODE_RANK"
    NODE_IPS = "SKYPILOT_NODE_IPS"
    NUM_GPUS_PER_NODE = "SKYPILOT_NUM_GPUS_PER_NODE"
    TASK_ID = "SKYPILOT_TASK_ID"
    INTERNAL_JOB_ID = "SKYPILOT_INTERNAL_JOB_ID"
    """Counts the runs on these machines.
    A different number on the same machines is a different placement."""
    MANAGED_JOB_ID = "SKYPILOT_MANAGED_JOB_ID"
    """Present if SkyPilot recovers the job by itself."""
    CLUSTER_INFO = "SKYPILOT_CLUSTER_INFO"
    """JSON with the `cloud` and other properties."""


class Exit(IntEnum):
    """Exit codes of `holdfast-worker run` and of a rank."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    """The command line or the environment is invalid; a retry would fail again."""
    APART = 70
    """Desync: the models of the ranks have diverged (EX_SOFTWARE of sysexits.h).
    A retry restarts from a checkpoint."""
    UNSAVED = 74
    """Checkpoints could no longer be saved (EX_IOERR of sysexits.h).
    A retry checks the store before its first step."""
    PREEMPTED = 75
    """Exited on a termination notice with its work saved.
    EX_TEMPFAIL of sysexits.h: try again later."""
    FENCED = 76
    """A newer attempt of the job replaced this one, which saved nothing more.
    EX_PROTOCOL of sysexits.h."""
    UNUSABLE_STORE = 78
    """The checkpoint store is unusable (EX_CONFIG of sysexits.h); a retry would fail again."""
    STALLED = 124
    """No rank made a step within the stall limit, and the watchdog ended them.
    The code of `timeout`. Worth a retry."""


NO_RETRY: Final = frozenset({Exit.USAGE, Exit.FENCED, Exit.UNUSABLE_STORE})
"""Exit codes after which a restart only costs money.
After FENCED it would do worse: the restarted attempt is the newest again and fences out the one that replaced it, and the two
would alternate forever."""

# Files in a run directory (Env.RUN_DIR), shared by a launcher, `holdfast-worker run` and the ranks of one node.
NOTICE_FILE: Final = "notice.json"
"""Written by the first process that receives a termination notice.
Format: `{"deadline": RFC 3339 time or null}`."""
LEFT_FILE: Final = "left.json"
"""Written by a rank as it exits.
Format: `{"reason": ..., "exit_code": ..., "step": ..., "detail": ...}`."""
WAITS_FILE: Final = "waits-for-nodes"
"""Exists on node 0 while its ranks, and those of the other nodes, would wait for the replacement of a lost node."""
HOSTED_LOG_SUFFIX: Final = ".hosted.log"
"""Suffix of the logs in `ranks` of ranks of missing nodes that run on this one, such as `rank-3.hosted.log`."""
JOINED_FILE: Final = "joined"
"""Exists once the ranks of this node take part in the run with those of other nodes, which can replace them."""
TRAINED_FILE: Final = "trained"
"""Exists once a first step has been completed: a later failure is worth a restart."""
