"""Hugging Face's Trainer, kept in place: it saves when the ranks agree that it is time, and what it saved goes into the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from holdfast_worker.integrations.framework_run import FrameworkRun
from holdfast_worker.optional_imports import import_optional
from holdfast_worker.protocol.release import requirement

TrainerCallback: Any = import_optional("transformers", requirement("huggingface")).TrainerCallback

HOW: Final = "write trainer.train(resume_from_checkpoint=holdfast.newest)"


class HoldfastCallback(TrainerCallback):
    """One line for `callbacks=`, and one word for `train`.

    holdfast = HoldfastCallback()
    trainer = Trainer(..., callbacks=[holdfast])
    trainer.train(resume_from_checkpoint=holdfast.newest)
    """

    def __init__(self) -> None:
        self._run: FrameworkRun | None = None
        self._is_asked = False
        self._is_our_save = False
        self._is_their_save = False

    @property
    def run(self) -> FrameworkRun:
        """The run around the Trainer: its rank, its step, and `log` for numbers of your own.

        Raises:
            RuntimeError: no Trainer has this callback yet.
        """
        if self._run is None:
            raise RuntimeError("give this callback to a Trainer first: Trainer(callbacks=[...])")
        return self._run

    @property
    def newest(self) -> str | None:
        """The folder with the newest complete checkpoint, for `train`; None at the beginning.

        Raises:
            RuntimeError: no Trainer has this callback yet.
        """
        self._is_asked = True
        found = self.run.newest
        return str(found) if found else None

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer is there, and so are its ranks."""
        run = self._run = FrameworkRun.begin()
        flaw = flaw_of(args, run.world_size)
        if flaw:
            run.refuse(flaw)
        run.keep_below(Path(args.output_dir))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The first step comes."""
        if not self._is_asked and self.run.keeps_checkpoints:
            self.run.refuse(f"nobody told the Trainer where to go on: {HOW}")
        self.run.begin_steps(state.global_step, state.max_steps, HOW)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Vote, and have the Trainer save if that is what all ranks want; it does so after its evaluation."""
        self._is_their_save = control.should_save
        self._is_our_save = self.run.end_step(state.global_step)
        control.should_save = control.should_save or self._is_our_save

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer has saved."""
        if not self._is_our_save:
            return
        self._is_our_save = False
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.run.saved(path, keep=self._is_their_save)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An evaluation takes long, and is no standstill."""
        if self._run:
            self._run.beat()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """What the Trainer logs is shown with the job."""
        numbers = {name: value for name, value in (logs or {}).items() if _is_number(value)}
        if self._run and state.is_world_process_zero:
            self._run.log(**numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Training is over. What the script does then is not the run's business any more."""
        self.run.finish()


def flaw_of(args: Any, world_size: int) -> str:
    """Why a Trainer with these `TrainingArguments` could not be kept, and what to write instead; empty if it can."""
    if args.world_size != world_size:
        return (
            f"there are {world_size} ranks, and the Trainer knows of {args.world_size}: "
            "on machines without GPUs write TrainingArguments(use_cpu=True)"
        )
    if args.save_only_model:
        return (
            "save_only_model=True leaves out what is needed to go on: write save_only_model=False"
        )
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
