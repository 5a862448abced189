"""Connects a run to its in-process recovery: its state, its position and its reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final, Self

from torch import Tensor

from holdfast_worker.checkpoint.checkpointer import Checkpointer, SaveProgress
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.config import Config
from holdfast_worker.console import log_info
from holdfast_worker.data.resumable_loader import Position
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.recovery_plan import NotRecoverable, Place
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import Json
from holdfast_worker.recovery.recovery import Hooks, Recovered, Recovery
from holdfast_worker.recovery.replication import Replication
from holdfast_worker.recovery.run_state import RunState
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.topology.rendezvous import address_of_this_node
from holdfast_worker.watchdog.group_files import GroupFiles
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter

UNTRACKED: Final = "the script calls no track(), so that a new rank cannot get the state of others"


@dataclass(frozen=True, slots=True)
class Joined:
    """Where a new rank continues."""

    step: int
    place: Place
    position: Position
    nonce: str
    epoch: int
    saves: SaveProgress | None
    """None: the run makes no checkpoints."""


class RunRecovery:
    """The recovery of one run on this rank."""

    def __init__(self, recovery: Recovery, reports: Reporter, run_dir: RunDir) -> None:
        self._recovery = recovery
        self._run_dir = run_dir
        self._reports = reports
        self._run_state: RunState | None = None
        self._is_ruled_out = False
        self._replication: Replication | None = None
        self._slots: tuple[int, bool] | None = None
        self._checkpointer: Checkpointer | None = None

    @classmethod
    def open(
        cls,
        config: Config,
        ranks: ProcessGroup,
        run_dir: RunDir | None,
        reports: Reporter,
        *,
        heartbeat: HeartbeatWriter,
        timeout: timedelta | None,
    ) -> Self | None:
        """The recovery of a run; None if the run starts again from a checkpoint instead."""
        if not (ranks.recoverable and config.node_ranks and run_dir):
            return None
        recovery = Recovery(
            ranks.recoverable,
            GroupFiles(run_dir),
            address=address_of_this_node(config.node_ranks.master_address),
            timeout=timeout,
            is_new=config.joins,
            on_wait=heartbeat.mark_alive,
        )
        run = cls(recovery, reports, run_dir)
        if not config.joins:
            recovery.start(run._give_up)
        return run

    @property
    def replication(self) -> Replication:
        """The exchange of what each rank has alone."""
        assert self._replication, "the loop has begun"
        return self._replication

    def rule_out(self) -> None:
        """Start all ranks again after a loss.

        Another program owns the loop, and a new rank cannot enter it. Call this before `track`.
        """
        self._is_ruled_out = True

    @property
    def can_replace_ranks(self) -> bool:
        """Whether a new rank can take the place of a lost one, judging by the tracked objects."""
        return self._run_state is not None and not self._run_state.obstacle

    def track(self, tracked: TrackedState, objects: Iterable[object]) -> None:
        """Keep what a new rank needs of these objects, which still have their wrappers."""
        if not self._is_ruled_out:
            self._run_state = RunState(tracked, self._recovery.group, objects)

    def join(self) -> Joined:
        """Join the other ranks in place of a lost one, with the state of a survivor.

        Raises:
            NotRecoverable: the ranks have to start again from a checkpoint.
        """
        assert self._run_state, "a rank joins when it has its objects"
        received = self._recovery.join()
        position = self._run_state.load(received.tree["state"], received.tensors, received.own)
        slot_bytes, changes_late = received.tree["slots"]
        self._slots = slot_bytes, changes_late
        saves = received.tree["saves"]
        return Joined(
            received.plan.step,
            received.plan.place,
            position,
            *self._recovery.run,
            SaveProgress(**saves) if saves else None,
        )

    def start(
        self,
        run: tuple[str, int],
        step: Callable[[], int],
        position: Callable[[], Position | None],
        checkpointer: Checkpointer | None,
    ) -> Self | None:
        """Survive the loss of other ranks from now on; None if the script tracks nothing.

        `run`: its nonce and epoch. `step`: the number of completed steps. `position`: this rank's position in its data; None
        until the first batch shows what a changed number of ranks has left for it.
        """
        if not self._run_state:
            if self._recovery.is_new:
                raise NotRecoverable(UNTRACKED)
            return None
        recovery, run_state = self._recovery, self._run_state
        recovery.run = run
        self._checkpointer = checkpointer

        def capture() -> bytes:
            """The state of this rank; empty without a position, so that no rank can be replaced yet."""
            known = position()
            return run_state.capture_own(known) if known else b""

        replication = Replication(recovery.group, capture)
        if self._slots:
            replication.adopt(*self._slots)
        self._replication = recovery.replication = replication
        run_state.before_optimizer = replication.wait
        recovery.group.before_gradients = lambda: replication.exchange(step() + 1)
        recovery.hooks = Hooks(
            step=step,
            obstacle=run_state.why_not,
            abandon=self.abandon,
            capture=self._capture,
            report=self._report,
        )
        if not run_state.obstacle:
            self._run_dir.mark_replaceable()
        self._run_dir.mark_joined()
        if recovery.recovered:
            self._report(recovery.recovered)
        if self._slots:
            recovery.start(self._give_up)
        return self

    @property
    def moves(self) -> bool:
        """Whether the wrapper of this node asks all ranks to meet again, so that some can move."""
        return self._run_dir.is_move_requested()

    def leave_group(self) -> None:
        """Leave the group at a boundary, as all ranks do, so that some can move to another node."""
        self._recovery.leave_group()

    def enter_boundary(self) -> None:
        """Copy what the next step may change before it changes the parameters."""
        if self._run_state:
            self._run_state.enter_boundary()

    def abandon(self) -> None:
        """Give up a save that depends on a lost rank."""
        if self._checkpointer:
            self._checkpointer.abandon()

    def close(self) -> None:
        """Stop: the rank ends."""
        self._recovery.close()

    def _capture(self) -> tuple[Json, Sequence[Tensor]]:
        assert self._run_state, "the loop has begun"
        state, tensors = self._run_state.capture()
        saves = asdict(self._checkpointer.progress()) if self._checkpointer else None
        slots = list[Json](self.replication.settings)
        return {"state": state, "saves": saves, "slots": slots}, tensors

    def _give_up(self, reason: str) -> None:
        """End this process at once.

        Its main thread may wait in torch for a result that never comes.
        """
        log_info(f"this rank cannot continue in its process: {reason}")
        hooks, rank = self._recovery.hooks, self._recovery.group.rank()
        step = hooks.step() if hooks else 0
        detail = f"{NotRecoverable.__name__}: {reason}"
        with suppress(OSError):
            self._run_dir.record_exit(ExitReason("failed", Exit.FAILED, step, detail, rank))
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(Exit.FAILED)

    def _report(self, recovered: Recovered) -> None:
        if self._recovery.group.rank():
            return
        ranks = ", ".join(map(str, recovered.ranks)) or "none"
        log_info(
            f"training continues at step {recovered.step} after {recovered.paused_s:.1f} s; replaced ranks: {ranks}"
        )
        self._reports.ranks_replaced(
            recovered.step,
            recovered.ranks,
            recovered.cause,
            recovered.paused_s,
            recovered.hosted_nodes,
        )
