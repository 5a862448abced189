"""Lightning Trainer integration: the Trainer saves on request, and Holdfast uploads."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from holdfast_worker.data.loader_introspection import StatefulLoader
from holdfast_worker.integrations.framework_run import FrameworkRun
from holdfast_worker.optional_imports import import_optional
from holdfast_worker.protocol.release import requirement

# The library has two names, and the callback has to come from the one that the script imports.
_NAME: Final = "lightning.pytorch" if "lightning" in sys.modules else "pytorch_lightning"
Callback: Any = import_optional(_NAME, requirement("lightning")).Callback

FILE: Final = "lightning.ckpt"
LOADERS: Final = "loaders-{}.pt"
"""File beside it with the data position of one rank.
Lightning's own file has only that of rank 0."""

RESUME_HINT: Final = "write trainer.fit(model, ckpt_path=holdfast.newest)"


class HoldfastCallback(Callback):
    """Callback that saves, resumes and reports a Lightning Trainer.

    Create it before the Trainer.

    holdfast = HoldfastCallback()
    trainer = Trainer(..., callbacks=[holdfast])
    trainer.fit(model, loader, ckpt_path=holdfast.newest)
    """

    def __init__(self) -> None:
        self.run = FrameworkRun.create()
        """The run around the Trainer: its rank, its step, and `log` for your own metrics."""
        self._folder = self.run.checkpoint_dir(Path(tempfile.gettempdir()))
        self.run.track_directory(self._folder)
        self._is_newest_requested = False
        self._is_behind = self.run.newest is not None
        self._loaders: list[Any] = []
        """States of this rank's stateful loaders at Lightning's last save or load."""

    @property
    def newest(self) -> str | None:
        """The file of the newest complete checkpoint, for `fit`; None without a checkpoint."""
        self._is_newest_requested = True
        found = self.run.newest
        return str(found / FILE) if found else None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check that the Trainer has as many ranks as the run."""
        if trainer.world_size != self.run.world_size:
            self.run.abort_unsupported(
                f"the run has {self.run.world_size} ranks, but the Trainer has {trainer.world_size}: "
                "write Trainer(devices=..., num_nodes=...) as holdfast-worker run starts them"
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check that the script resumes from `newest`, start the steps and restore the loaders."""
        # Lightning's own handler runs collectives inside the signal handler, where the other ranks do not take part.
        self.run.reinstall_signal_handler()
        if not self._is_newest_requested and self.run.has_store:
            self.run.abort_unsupported(
                f"the Trainer did not get a checkpoint to resume from: {RESUME_HINT}"
            )
        total = trainer.estimated_stepping_batches
        is_known = isinstance(total, int) and total > 0
        self.run.start_steps(trainer.global_step, total if is_known else None, RESUME_HINT)
        self.run.warm_up_ddp(trainer.strategy.model)
        if self._is_behind:
            self._is_behind = False
            self._restore_loaders(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the data position of this rank, as Lightning writes only that of rank 0."""
        self._loaders = _epoch_progress(checkpoint).get("combined_loader", [])

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Remove the loader states: Lightning would load them before the samplers know their epoch.

        `_restore_loaders` does both in order.
        """
        if self._is_behind:
            self._loaders = _epoch_progress(checkpoint).pop("combined_loader", [])

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Vote, and have the Trainer save if the ranks decide so."""
        self.run.count_batch(batch)
        if trainer.global_step == self.run.step:
            return  # Gradients are still being accumulated.
        self.run.log(**trainer.callback_metrics)
        if self.run.end_step(trainer.global_step):
            path = self._folder / f"step-{trainer.global_step}"
            trainer.save_checkpoint(path / FILE)
            if self._loaders and self.run.rank:
                path.mkdir(parents=True, exist_ok=True)
                torch.save(self._loaders, path / LOADERS.format(self.run.rank))
            self.run.on_saved(path, keep=False)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Write a heartbeat, so that a long validation is not a stall."""
        self.run.beat()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Finish the run; the rest of the script is no longer part of it."""
        self.run.finish()

    def _restore_loaders(self, trainer: Any) -> None:
        """Restore the data position and the generators of this rank.

        Lightning has opened the loaders already, as for the first pass, so they are opened again.
        """
        loop = trainer.fit_loop
        fetcher = loop._data_fetcher  # noqa: SLF001 - Lightning has no public access to it
        loaders = fetcher.combined_loader.flattened
        stateful = [loader for loader in loaders if isinstance(loader, StatefulLoader)]
        states = self._states() or [{}] * len(
            stateful
        )  # With an empty state a loader makes a whole pass.
        if len(states) != len(stateful):
            self.run.abort_unsupported(
                f"the checkpoint has the states of {len(states)} loaders, but {len(stateful)} loaders have a state now: "
                "restore the former loaders, or start with a new store"
            )
        for loader in loaders:
            _set_epoch(loader, trainer.current_epoch)
        for loader, state in zip(stateful, states, strict=True):
            loader.load_state_dict(state)
        iter(fetcher)
        if loop.epoch_loop.batch_progress.is_last_batch:
            # That pass is complete, and Lightning counts it as finished. A loader at its end is exhausted here, so that
            # the next pass is a whole one. The random numbers that the next pass draws as it begins are not drawn yet.
            next(fetcher.iterator, None)
            loop.reset_restart_stage()
            self.run.restore_rng()
            iter(fetcher)
        else:
            self.run.restore_rng()

    def _states(self) -> list[Any]:
        """Loader states of this rank; those of rank 0 for a rank that the checkpoint does not have."""
        assert self.run.newest, "loaders are restored from a checkpoint only"
        mine = self.run.newest / LOADERS.format(self.run.rank)
        # A data set may keep any object as its state, which no list of safe classes covers. Loading executes code in the pickle, as
        # Lightning does with its own file. Write access to the checkpoint store is therefore access to run code in the job.
        return torch.load(mine, weights_only=False) if mine.exists() else self._loaders


def _epoch_progress(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Lightning's saved state of its epoch loop."""
    kept: dict[str, Any] = checkpoint["loops"]["fit_loop"]["state_dict"]
    return kept


def _set_epoch(loader: object, number: int) -> None:
    """Set the epoch of a loader's samplers, which determines their order."""
    for owner in (loader, getattr(loader, "batch_sampler", None)):
        sampler: Any = getattr(owner, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(number)
