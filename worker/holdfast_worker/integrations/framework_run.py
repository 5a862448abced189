"""A run whose loop belongs to a framework, which writes checkpoints into directories."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, NoReturn, Self

from holdfast_worker import rng
from holdfast_worker.checkpoint.checkpointer import Checkpointer
from holdfast_worker.console import log_info
from holdfast_worker.data.resumable_loader import ResumableLoader
from holdfast_worker.distributed.ddp_warmup import warm_up_ddp
from holdfast_worker.distributed.step_vote import StepDecision
from holdfast_worker.integrations.directory_checkpoint import DirectoryCheckpoint
from holdfast_worker.preemption.notice import NOTICE
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run import Run
from holdfast_worker.storage.base import StoreError
from holdfast_worker.watchdog.heartbeat import Phase

SAVING_DECISIONS: Final = frozenset(
    {StepDecision.SAVE, StepDecision.SAVE_AND_LEAVE, StepDecision.FINISH_AND_LEAVE}
)
"""Decisions that need a save of the framework first."""


class FrameworkRun(Run):
    """One rank of a run in a framework's loop.

    Call `create`, `track_directory`, `start_steps`, then `end_step` after each step and `on_saved` if it returns True, then
    `finish`.
    """

    _directory: DirectoryCheckpoint | None = None
    _total: int | None = None
    _decision: StepDecision | None = None

    @classmethod
    def create(cls) -> Self:
        """Start a run from the environment, without a change of the seeds, which the framework sets."""
        with rng.preserved():
            return cls.start()

    def checkpoint_dir(self, below: Path) -> Path:
        """A directory for checkpoints of this placement on this node."""
        folder = self._config.run_dir or below / f"holdfast-{self._nonce}"
        return folder / "checkpoints"

    def track_directory(self, root: Path) -> None:
        """Track the framework's checkpoints, and restore the newest one below `root` on each node."""
        if self._recovery:
            self._recovery.rule_out()
        self._directory = DirectoryCheckpoint(self._ranks, self._config.local_rank, root)
        with rng.preserved():
            self.track(checkpoint=self._directory)

    @property
    def newest(self) -> Path | None:
        """The directory from which the framework has to resume; None: start at step 0."""
        return self._directory.restored if self._directory else None

    @property
    def has_store(self) -> bool:
        """Whether the run has a checkpoint store."""
        return self._repository is not None

    def start_steps(self, step: int, total: int | None, hint: str) -> None:
        """Start after the framework's `step`; `hint` is the hint for a resume in its API.

        Raises:
            SystemExit: the framework does not resume from the newest checkpoint.
        """
        if self.newest and step != self.step:
            self.abort_unsupported(
                f"the newest checkpoint is of step {self.step}, but training starts at step {step}: {hint}"
            )
        self._total, self.step = total, step
        # An empty loader: the framework restores its own data position.
        self._start_steps(ResumableLoader(()), total)
        self._heartbeat.enter(Phase.STEPPING)

    def restore_rng(self) -> None:
        """Restore the random generators, for a framework that does not save them."""
        if self._position:
            rng.restore(self._position.present["global"])

    def warm_up_ddp(self, model: object) -> None:
        """Make a framework's DDP sum gradients in the same order from the first step on.

        All ranks call it.
        """
        warm_up_ddp([model], self._ranks)

    def count_batch(self, batch: object) -> None:
        """Count the samples and tokens of a batch of this rank."""
        self._runtime_metrics.count_batch(batch)

    def count_samples(self, samples: int) -> None:
        """Count the samples of a step of this rank."""
        self._runtime_metrics.count_samples(samples)

    def reinstall_signal_handler(self) -> None:
        """Handle SIGTERM again after the framework has replaced the handler."""
        NOTICE.handle_sigterm(self._run_dir)

    def end_step(self, step: int) -> bool:
        """Vote after a step.

        True if the framework has to save and call `on_saved`, the same on all ranks.

        Raises:
            SystemExit: all ranks exit, and no save is needed first.
        """
        # A framework may count several steps between two calls.
        self._runtime_metrics.count_other_steps(step - 1 - self.step)
        self.step = step - 1
        self._end_step()
        if self.step == self._total:
            self._decision = None  # `finish` handles the last step.
            return self._checkpointer is not None
        decision = self._step_boundary.decide(self.step)
        if decision in SAVING_DECISIONS:
            self._decision = decision
            return True
        if decision is StepDecision.SNAPSHOT:
            return False  # Only the framework can capture its state, and a save of it costs more.
        self._step_boundary.act(self.step, decision)
        return False

    def on_saved(self, path: Path, *, keep: bool) -> None:
        """Upload the framework's save of this step in `path`, on all ranks.

        Remove it unless `keep` is set.

        Raises:
            SystemExit: all ranks exit with their work saved.
        """
        assert self._directory, "track_directory() precedes the first step"
        try:
            self._directory.pack(path, self.step)
        except StoreError as error:
            self._shutdown.abort(Exit.UNSAVED, self.step, str(error))
        if not keep and self._config.local_rank == 0:
            shutil.rmtree(path, ignore_errors=True)
        decision, self._decision = self._decision, None
        if decision:
            self._step_boundary.act(self.step, decision)
        self._heartbeat.enter(Phase.STEPPING)

    def abort_unsupported(self, reason: str) -> NoReturn:
        """End the run on all ranks, as the framework has an unsupported configuration.

        Raises:
            SystemExit: always.
        """
        self._shutdown.abort(Exit.USAGE, self.step, reason)

    def _save_last_step(self, checkpointer: Checkpointer) -> bool:
        is_packed = self._directory is not None and self._directory.step == self.step
        if is_packed or checkpointer.has_saved(self.step):
            return super()._save_last_step(checkpointer)
        if self.rank == 0:
            log_info(f"training stopped at step {self.step}, which no checkpoint contains")
        checkpointer.wait_for_outcome()
        return True
