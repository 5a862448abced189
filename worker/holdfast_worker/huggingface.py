"""Hugging Face Trainer integration: the Trainer saves on request, and Holdfast uploads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from holdfast_worker.integrations.framework_run import FrameworkRun
from holdfast_worker.optional_imports import import_optional
from holdfast_worker.protocol.release import requirement

TrainerCallback: Any = import_optional("transformers", requirement("huggingface")).TrainerCallback

RESUME_HINT: Final = "write trainer.train(resume_from_checkpoint=holdfast.newest)"


class HoldfastCallback(TrainerCallback):
    """Callback that saves, resumes and reports a Hugging Face Trainer.

    holdfast = HoldfastCallback()
    trainer = Trainer(..., callbacks=[holdfast])
    trainer.train(resume_from_checkpoint=holdfast.newest)
    """

    def __init__(self) -> None:
        self._run: FrameworkRun | None = None
        self._is_newest_requested = False
        self._is_our_save = False
        self._is_their_save = False

    @property
    def run(self) -> FrameworkRun:
        """The run around the Trainer: its rank, its step, and `log` for your own metrics.

        Raises:
            RuntimeError: the callback has not been passed to a Trainer yet.
        """
        if self._run is None:
            raise RuntimeError("pass this callback to a Trainer first: Trainer(callbacks=[...])")
        return self._run

    @property
    def newest(self) -> str | None:
        """The directory of the newest complete checkpoint, for `train`; None without a checkpoint.

        Raises:
            RuntimeError: the callback has not been passed to a Trainer yet.
        """
        self._is_newest_requested = True
        found = self.run.newest
        return str(found) if found else None

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Create the run, after the Trainer has set up its ranks."""
        run = self._run = FrameworkRun.create()
        reason = unsupported_reason(args, run.world_size)
        if reason:
            run.abort_unsupported(reason)
        run.track_directory(Path(args.output_dir))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check that the script resumes from `newest`, and start the steps."""
        if not self._is_newest_requested and self.run.has_store:
            self.run.abort_unsupported(
                f"the Trainer did not get a checkpoint to resume from: {RESUME_HINT}"
            )
        self.run.start_steps(state.global_step, state.max_steps, RESUME_HINT)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Vote, and have the Trainer save after its evaluation if the ranks decide so."""
        self._is_their_save = control.should_save
        self.run.count_samples(args.train_batch_size * args.gradient_accumulation_steps)
        self._is_our_save = self.run.end_step(state.global_step)
        control.should_save = control.should_save or self._is_our_save

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Upload the files of a save that the ranks have decided."""
        if not self._is_our_save:
            return
        self._is_our_save = False
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.run.on_saved(path, keep=self._is_their_save)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write a heartbeat, so that a long evaluation is not a stall."""
        if self._run:
            self._run.beat()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Log the Trainer's metrics with the job."""
        numbers = {name: value for name, value in (logs or {}).items() if _is_number(value)}
        if self._run and state.is_world_process_zero:
            self._run.log(**numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Finish the run; the rest of the script is no longer part of it."""
        self.run.finish()


def unsupported_reason(args: Any, world_size: int) -> str:
    """Why these `TrainingArguments` are unsupported, and what to write instead.

    Empty if they are supported.
    """
    if args.world_size != world_size:
        return (
            f"the run has {world_size} ranks, but the Trainer has {args.world_size}: "
            "on machines without GPUs write TrainingArguments(use_cpu=True)"
        )
    if args.save_only_model:
        return (
            "save_only_model=True omits the state that a resume needs: write save_only_model=False"
        )
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
