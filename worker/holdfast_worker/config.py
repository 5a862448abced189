"""What the environment asks of a worker, read once. No other module of the worker looks at the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from holdfast_worker.protocol.environment import Env, SkyEnv, number
from holdfast_worker.protocol.policies import Cadence, MaxStall, OnFailure, RetentionOwner
from holdfast_worker.topology.identity import ALONE, RankIdentity

COURIER: Final = "HOLDFAST_COURIER"
"""Set by `holdfast-worker run` for its ranks: the reports are delivered by the wrapper, not by rank 0."""

WRAPPER: Final = "HOLDFAST_WRAPPER"
"""Set by `holdfast-worker run` for its ranks: its process id. It watches them, and reports for those that fell."""

AGENT: Final = "HOLDFAST_AGENT"
"""Set by the process around torchrun for its ranks: its process id. A rank with another parent has lost it."""

BARE: Final = "bare"
"""Where a script that runs with nothing around it keeps its checkpoints; what stands for a number that is not given."""

FEWEST_KEPT: Final = 2
"""With one, a checkpoint damaged in the store would be the end of the job."""


def environment() -> Mapping[str, str]:
    """The environment of this process, to be read by `Config` and `Topology`, and handed on to children."""
    return os.environ


def hand_down(name: str, value: str) -> None:
    """Put a variable into the environment of what this process starts from now on."""
    os.environ[name] = value


def ask_cublas() -> None:
    """Have cuBLAS give the same bits each time. It looks once, before the first GPU is used; what somebody chose stays."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one rank. A script with nothing around it gets rank 0 of 1 and no store."""

    job: str
    attempt: int
    """0: the launcher recovers by itself and numbers nothing; the service will."""
    epoch: int | None
    """Fencing number of the placement; names its checkpoints. None: claimed in the store."""
    store: str | None
    """None: no checkpoints."""
    forebear: str | None
    """The job whose checkpoints in that store come after its own; None: none do."""
    cadence: Cadence
    keep: int | None
    """How many complete checkpoints this worker leaves; None: it deletes none, the service does."""
    max_stall: MaxStall
    on_save_failure: OnFailure
    saves_wait: bool
    """Whether training waits until a checkpoint is durable."""
    url: str | None
    """None: reports stay in the spool."""
    token: str
    spool: Path | None
    """None: reports are dropped."""
    run_dir: Path | None
    """None: nobody around the script waits for its files."""
    seed: int
    is_deterministic: bool
    """Whether algorithms that give the same bits each time are asked for, whatever the script says."""
    max_steps: int | None
    """None: the script says how far it goes."""
    witness_ms: int | None
    """Shortest time of a step whose batch is written down; None: nobody asked for that."""
    identity: RankIdentity
    has_courier: bool
    """Whether somebody else delivers the reports."""
    wrapper: int | None
    """Process id of the wrapper that looks after this rank; None: nobody does."""
    agent: int | None
    """Process id of what started this rank; None: nobody said."""
    home: Path
    """Where a placement that nobody gave a folder makes its own."""
    placement: str
    """What tells this placement from others on the same machines."""
    is_managed: bool
    """Whether the launcher takes our end for that of the job, unless the machines are gone by then."""
    cloud: str | None
    """Name of the cloud in lower case; None when the launcher does not say."""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Config:
        """The settings in `env`, for a rank.

        Raises:
            ValueError: a variable does not read as what it should be; the message names it.
        """
        return replace(cls.of_node(env), identity=RankIdentity.read(env))

    @classmethod
    def of_node(cls, env: Mapping[str, str]) -> Config:
        """The settings in `env`, for who starts ranks and is none of them, wherever that is.

        Raises:
            ValueError: a variable does not read as what it should be; the message names it.
        """
        return cls(
            job=env.get(Env.JOB) or BARE,
            attempt=number(env, Env.ATTEMPT, 0 if env.get(Env.JOB) else 1),
            epoch=number(env, Env.EPOCH, 0) or None,
            store=env.get(Env.STORE) or None,
            forebear=env.get(Env.FROM) or None,
            cadence=_cadence(env),
            keep=_keep(env),
            max_stall=_max_stall(env),
            on_save_failure=_on_save_failure(env),
            saves_wait=env.get(Env.SYNC_SAVES) == "1",
            url=env.get(Env.URL) or None,
            token=env.get(Env.TOKEN, ""),
            spool=_path(env, Env.SPOOL),
            run_dir=_path(env, Env.RUN_DIR),
            seed=number(env, Env.SEED, 0),
            is_deterministic=env.get(Env.DETERMINISTIC) == "1",
            max_steps=number(env, Env.MAX_STEPS, 0) or None,
            witness_ms=number(env, Env.WITNESS, 0) if env.get(Env.WITNESS) else None,
            identity=ALONE,
            has_courier=env.get(COURIER) == "1",
            wrapper=number(env, WRAPPER, 0) or None,
            agent=number(env, AGENT, 0) or None,
            home=Path(env.get("HOME") or "~").expanduser(),
            placement=env.get(SkyEnv.INTERNAL_JOB_ID) or BARE,
            is_managed=bool(env.get(SkyEnv.MANAGED_JOB_ID)),
            cloud=_cloud(env),
        )

    def at_most(self, total: int | None) -> int | None:
        """How far a run goes whose script says `total`."""
        if self.max_steps is None or total is None:
            return self.max_steps or total
        return min(total, self.max_steps)

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        return self.identity.rank

    @property
    def local_rank(self) -> int:
        """This rank's number on its node."""
        return self.identity.local_rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.identity.world_size

    @property
    def is_launched(self) -> bool:
        """Whether there are others to be met, or would be if there were more ranks."""
        return self.identity.meeting is not None

    @property
    def is_numbered(self) -> bool:
        """Whether the launcher numbers the placements of the job, and looks after each of them."""
        return self.attempt > 0


def _path(env: Mapping[str, str], name: str) -> Path | None:
    text = env.get(name, "")
    return Path(text) if text else None


def _keep(env: Mapping[str, str]) -> int | None:
    text = env.get(Env.TIDY) or RetentionOwner.WORKER
    if text not in frozenset(RetentionOwner):
        msg = f"{Env.TIDY} is {text!r}, which is neither {RetentionOwner.SERVICE} nor {RetentionOwner.WORKER}"
        raise ValueError(msg)
    keep = max(FEWEST_KEPT, number(env, Env.KEEP, 3))
    return None if text == RetentionOwner.SERVICE else keep


def _cadence(env: Mapping[str, str]) -> Cadence:
    try:
        return Cadence.parse(env.get(Env.EVERY) or "auto")
    except ValueError as error:
        msg = f"{Env.EVERY}: {error}"
        raise ValueError(msg) from error


def _max_stall(env: Mapping[str, str]) -> MaxStall:
    try:
        return MaxStall.parse(env.get(Env.MAX_STALL) or "auto")
    except ValueError as error:
        msg = f"{Env.MAX_STALL}: {error}"
        raise ValueError(msg) from error


def _on_save_failure(env: Mapping[str, str]) -> OnFailure:
    text = env.get(Env.ON_SAVE_FAILURE) or OnFailure.STOP
    try:
        return OnFailure(text)
    except ValueError as error:
        msg = f"{Env.ON_SAVE_FAILURE} is {text!r}; write {' or '.join(OnFailure)}"
        raise ValueError(msg) from error


def _cloud(env: Mapping[str, str]) -> str | None:
    """The cloud that SkyPilot names. What cannot be read is no reason not to train."""
    try:
        return str(json.loads(env.get(SkyEnv.CLUSTER_INFO, ""))["cloud"]).lower()
    except (ValueError, KeyError, TypeError):
        return None
