"""A run whose loop belongs to a framework, which also makes its checkpoints: into folders, when it is told to."""

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

WITH_STATE: Final = frozenset(
    {StepDecision.SAVE, StepDecision.SAVE_AND_LEAVE, StepDecision.FINISH_AND_LEAVE}
)
"""What cannot be done before the framework has saved."""


class FrameworkRun(Run):
    """One rank of such a run: `begin`, `keep_below`, `begin_steps`; after every step `end_step`, and `saved` if that says so;
    `finish`."""

    _folder: DirectoryCheckpoint | None = None
    _total: int | None = None
    _verdict: StepDecision | None = None

    @classmethod
    def begin(cls) -> Self:
        """A run as the environment describes it. The seeds are the framework's business, and stay as they are."""
        with rng.undisturbed():
            return cls.start()

    def own_folder(self, below: Path) -> Path:
        """A folder of this placement on this node, which goes with it."""
        folder = self._config.run_dir or below / f"holdfast-{self._nonce}"
        return folder / "checkpoints"

    def keep_below(self, root: Path) -> None:
        """Keep the framework's checkpoints, and put the newest complete one below `root`, on each node."""
        self._folder = DirectoryCheckpoint(self._ranks, self._config.local_rank, root)
        with rng.undisturbed():
            self.track(checkpoint=self._folder)

    @property
    def newest(self) -> Path | None:
        """The folder from which the framework has to go on; None: from the beginning."""
        return self._folder.restored if self._folder else None

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether there is a store for them."""
        return self._archive is not None

    def begin_steps(self, step: int, total: int | None, how: str) -> None:
        """The first step comes, after `step` that the framework counts. `how` is how one tells it to go on.

        Raises:
            SystemExit: the framework does not go on where the newest checkpoint is.
        """
        if self.newest and step != self.step:
            self.refuse(
                f"the newest checkpoint is of step {self.step}, and the training begins at step {step}: {how}"
            )
        self._total, self.step = total, step
        # There is no data to be fed: the framework knows its own position.
        self._begin_steps(ResumableLoader(()), total)
        self._beat.enter(Phase.STEPPING)

    def take_generators(self) -> None:
        """Put the random generators where they were at the newest checkpoint: for a framework that does not keep them."""
        if self._position:
            rng.restore(self._position.present["global"])

    def rehearse(self, model: object) -> None:
        """Let DDP, if a framework put it around the model, sum gradients in the same order from the first step on; all ranks
        call it."""
        warm_up_ddp([model], self._ranks)

    def take_notice(self) -> None:
        """Hear SIGTERM again, which a framework took over."""
        NOTICE.listen(self._run_dir)

    def end_step(self, step: int) -> bool:
        """Whether the framework is to save now that it counts so many steps, and to call `saved` then; the same on all ranks.

        Raises:
            SystemExit: all ranks leave, and there is nothing that has to be saved before.
        """
        self.step = step - 1  # A framework may count several where it comes by once.
        self._end_step()
        if self.step == self._total:
            self._verdict = None  # What is decided now is up to `finish`.
            return self._keeper is not None
        verdict = self._interlude.decide(self.step)
        if verdict in WITH_STATE:
            self._verdict = verdict
            return True
        self._interlude.act(self.step, verdict)
        return False

    def saved(self, path: Path, *, keep: bool) -> None:
        """The framework has saved this step into `path`, on all ranks; the folder is removed if nobody else is to `keep` it.

        Raises:
            SystemExit: all ranks leave, with their work saved.
        """
        assert self._folder, "a folder is kept before the first step"
        try:
            self._folder.pack(path, self.step)
        except StoreError as error:
            self._departure.abort(Exit.UNSAVED, self.step, str(error))
        if not keep and self._config.local_rank == 0:
            shutil.rmtree(path, ignore_errors=True)
        verdict, self._verdict = self._verdict, None
        if verdict:
            self._interlude.act(self.step, verdict)
        self._beat.enter(Phase.STEPPING)

    def refuse(self, why: str) -> NoReturn:
        """End the run, on all ranks, as the framework is set up in a way in which it cannot be kept.

        Raises:
            SystemExit: always.
        """
        self._departure.abort(Exit.USAGE, self.step, why)

    def _save_the_last(self, keeper: Checkpointer) -> bool:
        is_packed = self._folder is not None and self._folder.step == self.step
        if is_packed or keeper.has_saved(self.step):
            return super()._save_the_last(keeper)
        if self.rank == 0:
            log_info(f"step {self.step}, at which the training was stopped, is in no checkpoint")
        keeper.settle()
        return True
