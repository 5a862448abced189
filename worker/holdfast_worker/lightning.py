"""Lightning's Trainer, kept in place: it saves when the ranks agree that it is time, and what it saved goes into the store."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from holdfast_worker.extras import load
from holdfast_worker.hosted import Hosted

# The same library has two names, and a callback has to be of the one that the script uses.
_NAME: Final = "lightning.pytorch" if "lightning" in sys.modules else "pytorch_lightning"
Callback: Any = load(_NAME, "'holdfast[lightning]'").Callback

FILE: Final = "lightning.ckpt"
HOW: Final = "write trainer.fit(model, ckpt_path=holdfast.newest)"


class HoldfastCallback(Callback):
    """One line for `callbacks=`, and one word for `fit`. Make it before the Trainer.

    holdfast = HoldfastCallback()
    trainer = Trainer(..., callbacks=[holdfast])
    trainer.fit(model, loader, ckpt_path=holdfast.newest)
    """

    def __init__(self) -> None:
        self.run = Hosted.begin()
        """The run around the Trainer: its rank, its step, and `log` for numbers of your own."""
        self._folder = self.run.own_folder(Path(tempfile.gettempdir()))
        self.run.keep_below(self._folder)
        self._is_asked = False
        self._is_behind = self.run.newest is not None

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

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's checkpoints lack the random generators; ours have them."""
        if self._is_behind:
            self._is_behind = False
            self.run.take_generators()

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
            self.run.saved(path, keep=False)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """A validation takes long, and is no standstill."""
        self.run.beat()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training is over. What the script does then is not the run's business any more."""
        self.run.finish()
