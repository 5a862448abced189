"""Lightning's Trainer, kept in place: it saves when the ranks agree that it is time, and what it saved goes into the store."""

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

# The same library has two names, and a callback has to be of the one that the script uses.
_NAME: Final = "lightning.pytorch" if "lightning" in sys.modules else "pytorch_lightning"
Callback: Any = import_optional(_NAME, requirement("lightning")).Callback

FILE: Final = "lightning.ckpt"
LOADERS: Final = "loaders-{}.pt"
"""Beside it: where a rank is in its data. Lightning's own file has that of the first rank alone."""

HOW: Final = "write trainer.fit(model, ckpt_path=holdfast.newest)"


class HoldfastCallback(Callback):
    """One line for `callbacks=`, and one word for `fit`. Make it before the Trainer.

    holdfast = HoldfastCallback()
    trainer = Trainer(..., callbacks=[holdfast])
    trainer.fit(model, loader, ckpt_path=holdfast.newest)
    """

    def __init__(self) -> None:
        self.run = FrameworkRun.begin()
        """The run around the Trainer: its rank, its step, and `log` for numbers of your own."""
        self._folder = self.run.own_folder(Path(tempfile.gettempdir()))
        self.run.keep_below(self._folder)
        self._is_asked = False
        self._is_behind = self.run.newest is not None
        self._loaders: list[Any] = []
        """What those of this rank that keep a state had to say, when Lightning last saved or loaded."""

    @property
    def newest(self) -> str | None:
        """The file of the newest complete checkpoint, for `fit`; None at the beginning."""
        self._is_asked = True
        found = self.run.newest
        return str(found / FILE) if found else None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The Trainer has met its ranks."""
        if trainer.world_size != self.run.world_size:
            self.run.refuse(
                f"there are {self.run.world_size} ranks, and the Trainer knows of {trainer.world_size}: "
                "write Trainer(devices=..., num_nodes=...) as holdfast-worker run starts them"
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The first step comes."""
        # Lightning's own handler talks to the other ranks from within the signal, where they do not expect it.
        self.run.take_notice()
        if not self._is_asked and self.run.keeps_checkpoints:
            self.run.refuse(f"nobody told the Trainer where to go on: {HOW}")
        total = trainer.estimated_stepping_batches
        is_known = isinstance(total, int) and total > 0
        self.run.begin_steps(trainer.global_step, total if is_known else None, HOW)
        self.run.rehearse(trainer.strategy.model)
        if self._is_behind:
            self._is_behind = False
            self._take_up(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Each rank comes by here, and only the first one writes: where the others are in their data is ours to keep."""
        self._loaders = _of_loop(checkpoint).get("combined_loader", [])

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Lightning would open the loaders before their samplers know which pass it is; `_take_up` does it in order."""
        if self._is_behind:
            self._loaders = _of_loop(checkpoint).pop("combined_loader", [])

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Vote, and have the Trainer save if that is what all ranks want."""
        if trainer.global_step == self.run.step:
            return  # Gradients are still being accumulated.
        self.run.log(**trainer.callback_metrics)
        if self.run.end_step(trainer.global_step):
            path = self._folder / f"step-{trainer.global_step}"
            trainer.save_checkpoint(path / FILE)
            if self._loaders and self.run.rank:
                path.mkdir(parents=True, exist_ok=True)
                torch.save(self._loaders, path / LOADERS.format(self.run.rank))
            self.run.saved(path, keep=False)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """A validation takes long, and is no standstill."""
        self.run.beat()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training is over. What the script does then is not the run's business any more."""
        self.run.finish()

    def _take_up(self, trainer: Any) -> None:
        """Go on in the data where this rank was, with the generators as they were.

        Lightning has opened the loaders already, as if it were the first pass: they are opened once more.
        """
        loop = trainer.fit_loop
        fetcher = loop._data_fetcher  # noqa: SLF001 - Lightning has no other way to it
        loaders = fetcher.combined_loader.flattened
        keepers = [loader for loader in loaders if isinstance(loader, StatefulLoader)]
        states = self._states() or [{}] * len(keepers)  # Of nothing a loader makes a whole pass.
        if len(states) != len(keepers):
            self.run.refuse(
                f"at the checkpoint {len(states)} loaders kept a state, and now {len(keepers)} do: "
                "put them back, or start with a new store"
            )
        for loader in loaders:
            _tell_pass(loader, trainer.current_epoch)
        for loader, state in zip(keepers, states, strict=True):
            loader.load_state_dict(state)
        iter(fetcher)
        if loop.epoch_loop.batch_progress.is_last_batch:
            # Of that pass nothing is left, and Lightning counts it as over. Whoever was put to its end comes to it now, so
            # that the next pass is a whole one; what that draws when it begins is still to be drawn.
            next(fetcher.iterator, None)
            loop.reset_restart_stage()
            self.run.take_generators()
            iter(fetcher)
        else:
            self.run.take_generators()

    def _states(self) -> list[Any]:
        """Those of the loaders of this rank; of the first one for a rank that was not there before."""
        assert self.run.newest, "nobody is behind without a checkpoint"
        mine = self.run.newest / LOADERS.format(self.run.rank)
        # A data set may keep any object as its state, which no list of safe classes covers. Loading runs what the pickle says, and
        # so does Lightning with its own file of this folder: whoever may write to the checkpoint store may run code in the job.
        return torch.load(mine, weights_only=False) if mine.exists() else self._loaders


def _of_loop(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What Lightning keeps of its loop over the passes."""
    kept: dict[str, Any] = checkpoint["loops"]["fit_loop"]["state_dict"]
    return kept


def _tell_pass(loader: object, number: int) -> None:
    """Let the samplers of a loader shuffle as they do in this pass."""
    for owner in (loader, getattr(loader, "batch_sampler", None)):
        sampler: Any = getattr(owner, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(number)
