"""Configuration of a worker, read once from the environment. No other module reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from holdfast_worker.node_memory.wire import HolderAddress
from holdfast_worker.protocol.environment import Env, SkyEnv, int_variable
from holdfast_worker.protocol.output_files import check_output_pattern
from holdfast_worker.protocol.policies import (
    Cadence,
    MaxStall,
    OnFailure,
    RecoveryMode,
    RetentionOwner,
    parse_memory_cadence,
)
from holdfast_worker.topology.identity import SINGLE_PROCESS, RankIdentity
from holdfast_worker.topology.nodes import LeaderAddress, NodeRanks

DELIVERED_BY_WRAPPER: Final = "HOLDFAST_COURIER"
"""Set by `holdfast-worker run` for its ranks.
The wrapper delivers the reports, not rank 0."""

WRAPPER: Final = "HOLDFAST_WRAPPER"
"""Set by `holdfast-worker run` for its ranks: its process id.
It monitors them, and reports for those that failed."""

AGENT: Final = "HOLDFAST_AGENT"
"""Set by the torchrun agent for its ranks: its process id.
A rank with a different parent has lost its agent."""

NODE_RANKS: Final = "HOLDFAST_NODE_RANKS"
"""Set by `holdfast-worker run` for its ranks if each node has an agent of its own: a `NodeRanks` as JSON."""

JOINS: Final = "HOLDFAST_JOINS"
"""Set to 1 by `holdfast-worker run` for ranks that replace others, which wait for them."""

HOLDER: Final = "HOLDFAST_HOLDER"
"""Set by `holdfast-worker run` for its ranks: where they put copies of snapshots, a `HolderAddress` as JSON."""

HOSTED_START: Final = "HOLDFAST_HOSTED_START"
"""Set by `holdfast-worker run` for the wrapper of a missing node that it hosts: the number of that node's start."""

HOSTED_LEADER: Final = "HOLDFAST_HOSTED_LEADER"
"""Set by `holdfast-worker run` for the wrapper of a missing node that it hosts: a `LeaderAddress` as JSON, with several groups of nodes."""

DEFAULT_RESTARTS: Final = 1
"""Default of `Config.max_restarts` for jobs of a launcher.
A lower value needs new nodes for each failure of a rank; a higher value repeats a failure that new nodes might avoid."""

STANDALONE_JOB: Final = "bare"
"""Checkpoint directory of a script that runs without a launcher.
Also the default of an absent id."""

MIN_KEPT_CHECKPOINTS: Final = 2
"""Minimum number of checkpoints that a worker keeps, whatever the setting.
A lower value would lose the job to a single corrupt checkpoint; a higher value costs storage."""


C = TypeVar("C", bound=StrEnum)


def environment() -> Mapping[str, str]:
    """The environment of this process, for `Config`, `RankIdentity` and child processes."""
    return os.environ


def export_variable(name: str, value: str) -> None:
    """Set a variable for the processes that this process starts from now on."""
    os.environ[name] = value


def replace_environment(env: Mapping[str, str]) -> None:
    """Replace the environment of this process, for it and for the libraries in it."""
    # A copy, as `env` may be the environment itself.
    given = dict(env)
    for name in os.environ.keys() - given.keys():
        del os.environ[name]
    os.environ.update(given)


@contextmanager
def temporary_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment in this block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def enable_deterministic_cublas() -> None:
    """Make cuBLAS deterministic. It reads the variable once, before the first use of a GPU.

    A value that the user has set is kept.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one rank. A script without a launcher is rank 0 of 1 and has no store."""

    job: str
    attempt: int
    """0: the launcher recovers by itself, and the service numbers the attempts."""
    epoch: int | None
    """Fencing token of the attempt, part of its checkpoint names. None: claimed in the store."""
    store: str | None
    """None: no checkpoints."""
    parent_job: str | None
    """The job from whose checkpoints in that store this one starts while it has none of its own."""
    cadence: Cadence
    keep_checkpoints: int | None
    """Number of complete checkpoints that this worker keeps.
    None: the service deletes checkpoints."""
    outputs: Sequence[str]
    """Patterns of output files that each node sends to the store at the end."""
    keep_failed_s: int
    max_stall: MaxStall
    on_save_failure: OnFailure
    sync_saves: bool
    """Whether training waits until a checkpoint is durable."""
    url: str | None
    """None: reports stay in the spool."""
    token: str
    spool: Path | None
    """None: reports are dropped."""
    run_dir: Path | None
    """None: the script runs without a wrapper or launcher."""
    is_warm: bool
    """Whether ranks are forked from a process that has imported torch."""
    recovery: RecoveryMode
    """What happens with the other ranks if some are lost."""
    node_ranks: NodeRanks | None
    """The ranks of this node if its agent knows of no other node; None if it does."""
    joins: bool
    """Whether this rank replaces one that others wait for."""
    node_start: int | None
    """How often the launcher has replaced this node within its attempt; None if it replaces no single nodes."""
    min_nodes: int | None
    """With at least this many nodes, the ranks of lost ones run on the others; None: all nodes are needed."""
    hosted_start: int | None
    """Number of this node's start on a node that hosts it; None if it is a node of its own."""
    hosted_leader: LeaderAddress | None
    """Node 0, as the host of this node has found it; None if it is a node of its own, or all nodes are one placement."""
    memory: Cadence | None
    """How often snapshots are copied into the memory of the nodes; None: never."""
    holder: HolderAddress | None
    """The memory of this node; None without a wrapper that has some."""
    max_restarts: int
    """How often ranks start again on the same nodes without getting further than before."""
    seed: int
    is_deterministic: bool
    """Whether to select deterministic algorithms, also if the script does not."""
    max_steps: int | None
    """None: the script determines the number of steps."""
    batch_trace_ms: int | None
    """Minimum duration of a step in milliseconds, with a trace of its batch; None: no trace."""
    identity: RankIdentity
    is_delivered_by_wrapper: bool
    """Whether the wrapper delivers the reports."""
    wrapper: int | None
    """Process id of the wrapper that monitors this rank; None without a wrapper."""
    agent: int | None
    """Process id of the agent that started this rank; None without an agent."""
    home: Path
    """Parent of the run directory and the spool if the launcher gives none."""
    placement: str
    """Distinguishes this placement from others on the same machines."""
    is_managed: bool
    """Whether the exit of this worker ends the job for the launcher.
    It does not if the nodes are lost by then."""
    cloud: str | None
    """Name of the cloud in lower case; None if the launcher does not name it."""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Config:
        """Read the settings of a rank.

        Raises:
            ValueError: a variable has an invalid value; the message names it.
        """
        return replace(cls.of_node(env), identity=RankIdentity.read(env))

    @classmethod
    def of_node(cls, env: Mapping[str, str]) -> Config:
        """Read the settings of a process that starts ranks and is not a rank itself.

        Raises:
            ValueError: a variable has an invalid value; the message names it.
        """
        return cls(
            job=env.get(Env.JOB) or STANDALONE_JOB,
            attempt=int_variable(env, Env.ATTEMPT, 0 if env.get(Env.JOB) else 1),
            epoch=int_variable(env, Env.EPOCH, 0) or None,
            store=env.get(Env.STORE) or None,
            parent_job=env.get(Env.FROM) or None,
            cadence=_cadence(env),
            keep_checkpoints=_keep_checkpoints(env),
            outputs=_outputs(env),
            keep_failed_s=int_variable(env, Env.KEEP_FAILED, 0),
            max_stall=_max_stall(env),
            on_save_failure=_choice(env, Env.ON_SAVE_FAILURE, OnFailure.STOP),
            sync_saves=env.get(Env.SYNC_SAVES) == "1",
            url=env.get(Env.URL) or None,
            token=env.get(Env.TOKEN, ""),
            spool=_path(env, Env.SPOOL),
            run_dir=_path(env, Env.RUN_DIR),
            is_warm=env.get(Env.WARM) != "0",
            recovery=_choice(env, Env.RECOVERY, RecoveryMode.IN_PROCESS),
            node_ranks=NodeRanks.parse(env[NODE_RANKS]) if env.get(NODE_RANKS) else None,
            joins=env.get(JOINS) == "1",
            node_start=int_variable(env, Env.NODE_START, 0) if env.get(Env.NODE_START) else None,
            min_nodes=int_variable(env, Env.MIN_NODES, 0) or None,
            hosted_start=int_variable(env, HOSTED_START, 0) or None,
            hosted_leader=LeaderAddress.parse(env[HOSTED_LEADER])
            if env.get(HOSTED_LEADER)
            else None,
            memory=_memory(env),
            holder=HolderAddress.parse(env[HOLDER]) if env.get(HOLDER) else None,
            # A script that a person starts by hand ends with its first error.
            max_restarts=int_variable(
                env, Env.MAX_RESTARTS, DEFAULT_RESTARTS if env.get(Env.JOB) else 0
            ),
            seed=int_variable(env, Env.SEED, 0),
            is_deterministic=env.get(Env.DETERMINISTIC) == "1",
            max_steps=int_variable(env, Env.MAX_STEPS, 0) or None,
            batch_trace_ms=int_variable(env, Env.WITNESS, 0) if env.get(Env.WITNESS) else None,
            identity=SINGLE_PROCESS,
            is_delivered_by_wrapper=env.get(DELIVERED_BY_WRAPPER) == "1",
            wrapper=int_variable(env, WRAPPER, 0) or None,
            agent=int_variable(env, AGENT, 0) or None,
            home=Path(env.get("HOME") or "~").expanduser(),
            placement=env.get(SkyEnv.INTERNAL_JOB_ID) or STANDALONE_JOB,
            is_managed=bool(env.get(SkyEnv.MANAGED_JOB_ID)),
            cloud=_cloud(env),
        )

    def limit_steps(self, total: int | None) -> int | None:
        """The lower of the script's `total` and the configured maximum number of steps."""
        if self.max_steps is None or total is None:
            return self.max_steps or total
        return min(total, self.max_steps)

    @property
    def keeps_snapshots(self) -> bool:
        """Whether snapshots outlive the ranks, for those that start again, in memory of the nodes."""
        return bool(self.memory and self.max_restarts and self.store)

    @property
    def rank(self) -> int:
        """The global rank of this process."""
        return self.identity.rank

    @property
    def local_rank(self) -> int:
        """The rank of this process on its node."""
        return self.identity.local_rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.identity.world_size

    @property
    def is_launched(self) -> bool:
        """Whether a launcher has configured a rendezvous, also for a single rank."""
        return self.identity.init_method is not None

    @property
    def is_numbered(self) -> bool:
        """Whether the launcher numbers the attempts of the job and supervises each of them."""
        return self.attempt > 0


def _path(env: Mapping[str, str], name: str) -> Path | None:
    text = env.get(name, "")
    return Path(text) if text else None


def _keep_checkpoints(env: Mapping[str, str]) -> int | None:
    text = env.get(Env.TIDY) or RetentionOwner.WORKER
    if text not in frozenset(RetentionOwner):
        msg = f"{Env.TIDY} is {text!r}; write {RetentionOwner.SERVICE} or {RetentionOwner.WORKER}"
        raise ValueError(msg)
    keep = max(MIN_KEPT_CHECKPOINTS, int_variable(env, Env.KEEP, 3))
    return None if text == RetentionOwner.SERVICE else keep


def _cadence(env: Mapping[str, str]) -> Cadence:
    try:
        return Cadence.parse(env.get(Env.EVERY) or "auto")
    except ValueError as error:
        msg = f"{Env.EVERY}: {error}"
        raise ValueError(msg) from error


def _memory(env: Mapping[str, str]) -> Cadence | None:
    try:
        return parse_memory_cadence(env.get(Env.MEMORY) or "auto")
    except ValueError as error:
        msg = f"{Env.MEMORY}: {error}"
        raise ValueError(msg) from error


def _outputs(env: Mapping[str, str]) -> tuple[str, ...]:
    try:
        patterns = tuple(map(str, json.loads(env.get(Env.OUTPUTS) or "[]")))
        for pattern in patterns:
            check_output_pattern(pattern)
    except (ValueError, TypeError) as error:
        msg = f"{Env.OUTPUTS}: {error}"
        raise ValueError(msg) from error
    return patterns


def _max_stall(env: Mapping[str, str]) -> MaxStall:
    try:
        return MaxStall.parse(env.get(Env.MAX_STALL) or "auto")
    except ValueError as error:
        msg = f"{Env.MAX_STALL}: {error}"
        raise ValueError(msg) from error


def _choice(env: Mapping[str, str], name: str, default: C) -> C:
    """The value of a variable that names a member of the default's class."""
    text = env.get(name) or default
    kind = type(default)
    try:
        return kind(text)
    except ValueError as error:
        msg = f"{name} is {text!r}; write {' or '.join(kind)}"
        raise ValueError(msg) from error


def _cloud(env: Mapping[str, str]) -> str | None:
    """The cloud that SkyPilot names; None if it is unreadable, as training works without it."""
    try:
        return str(json.loads(env.get(SkyEnv.CLUSTER_INFO, ""))["cloud"]).lower()
    except (ValueError, KeyError, TypeError):
        return None
