"""Experiment trackers: rank 0 sends logged metrics there, as one series over all attempts.

A step that is recomputed after a resume appears once in a series: a tracker either drops its old points of that step, or
does not receive them again. The run has the status of the job, as far as its worker knows it: it is not finished before the job is.
If rank 0 is killed, the wrapper ends its run (`node.open_trackers`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from holdfast_worker.console import log_info
from holdfast_worker.optional_imports import import_optional
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.release import requirement
from holdfast_worker.protocol.reports import JobStop
from holdfast_worker.run_dir import ExitReason, RunDir

JOB_TAG: Final = "holdfast.job"
"""Tag of an MLflow run with the id of its job."""

EXIT_TAG: Final = "holdfast.exit"
"""Tag of an MLflow run with the end of its newest attempt."""

STOP_ANSWER_S: Final = 2.0
"""How long a rank that leaves waits for what the service says of the job, if it has a tracker with a status.
A lower value shows more cancelled jobs as preempted; a higher value delays the exit from a node that is terminated."""

POLL_S: Final = 0.05
"""Interval of looks for that answer. A lower value burns a core; a higher value delays the exit."""

REMAINING: Final = "holdfast/remaining_seconds_"
"""Metrics of the time until the expected end of the job, each followed by the name of a percentile."""

REMAINING_S: Final = 10.0
"""Interval of their points. A lower value repeats an estimate; a higher value makes the series coarse."""

WANDB_KILLED: Final = 255
"""Exit code with which Weights & Biases shows a run as killed, as after Ctrl+C (`wandb.sdk.lib.exit_hooks`)."""


class AttemptOutcome(StrEnum):
    """How an attempt ended, as its trackers show it."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    """It saved its work and left; another attempt resumes the run."""
    PAUSED = "paused"
    """It saved its work and left; the run continues when a user resumes the job."""
    CANCELLED = "cancelled"
    FAILED = "failed"
    REPLACED = "replaced"
    """Another attempt has taken over the run, and decides on its status."""

    @classmethod
    def of(cls, left: ExitReason, stop: JobStop | None = None) -> AttemptOutcome:
        """The outcome of an exit; `stop`: what becomes of the job, if it stops."""
        if left.exit_code == Exit.FENCED:
            return cls.REPLACED
        if stop and left.reason == cls.PREEMPTED:
            return cls(stop)
        return cls(left.reason)


class Tracker(Protocol):
    """A tracker of metrics. An exception of `errors` disables the tracker; training continues."""

    errors: tuple[type[Exception], ...]
    """Exceptions of the tracker's package; set by `open`."""

    def open(self, job: str | None, step: int) -> None:
        """Open the run of a job after `step` steps; without a job, create a new run.

        Raises:
            ImportError: its package is not installed; the message has the command that installs it.
        """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step."""

    def close(self) -> None:
        """Flush and close the run at the end of this attempt."""


@runtime_checkable
class ShowsOutcome(Protocol):
    """A tracker whose runs have a status."""

    def end(self, outcome: AttemptOutcome, left: ExitReason) -> None:
        """Show how the attempt ended; `close` follows."""


class TensorBoard:
    """TensorBoard event files below a directory that all attempts share and that outlives nodes."""

    def __init__(self, folder: str | Path) -> None:
        self.errors: tuple[type[Exception], ...] = (OSError,)
        self._folder = Path(folder)
        self._writer: Any = None

    def open(self, job: str | None, step: int) -> None:
        """Open event files; readers drop points of later steps from earlier attempts."""
        import_optional("tensorboard", requirement("tensorboard"))
        writer = import_optional("torch.utils.tensorboard", "torch").SummaryWriter
        self._writer = writer(
            str(self._folder / (job or "")), purge_step=step + 1 if step else None
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the event files."""
        self._writer.close()


class WandB:
    """Weights & Biases: one run with the id of the job. Accepts the arguments of `wandb.init`."""

    def __init__(self, project: str, **init: Any) -> None:
        self.errors: tuple[type[Exception], ...] = ()
        self.arguments: Mapping[str, Any] = {"project": project, **init}
        """Arguments with which another process can open its run."""
        self._run: Any = None
        self._exit_code = 0

    def open(self, job: str | None, step: int) -> None:
        """Open the run of the job, or resume it."""
        wandb = import_optional("wandb", "wandb")
        self.errors = (wandb.Error, OSError)
        self._run = wandb.init(**{"id": job, "name": job, "resume": "allow", **self.arguments})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one row, unless the run has this step."""
        if step >= self._run.step:  # wandb warns about steps that it has.
            self._run.log(dict(values), step=step)

    def end(self, outcome: AttemptOutcome, left: ExitReason) -> None:
        """Set the exit code of the run, and whether another attempt will resume it."""
        match outcome:
            case AttemptOutcome.FINISHED:
                self._exit_code = 0
            case AttemptOutcome.CANCELLED:
                self._exit_code = WANDB_KILLED
            case AttemptOutcome.FAILED:
                # A worker that reached a limit leaves with the code of a preemption.
                is_limit = left.exit_code == Exit.PREEMPTED
                self._exit_code = int(Exit.FAILED) if is_limit else left.exit_code
            case _:
                self._exit_code = left.exit_code
                self._run.mark_preempting()

    def close(self) -> None:
        """Flush and finish the run."""
        self._run.finish(exit_code=self._exit_code)


class MLflow:
    """MLflow server or database: one run with the tag `holdfast.job`."""

    def __init__(self, uri: str, experiment: str) -> None:
        self.errors: tuple[type[Exception], ...] = ()
        self.arguments: Mapping[str, Any] = {"uri": uri, "experiment": experiment}
        """Arguments with which another process can open its run."""
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._run_id = ""
        self._known_step = 0
        self._outcome = AttemptOutcome.FINISHED

    def open(self, job: str | None, step: int) -> None:
        """Open or create the run of the job, and read its last step."""
        mlflow = import_optional("mlflow", "mlflow")
        self.errors = (mlflow.exceptions.MlflowException, OSError)
        client = self._client = mlflow.MlflowClient(self._uri)
        known = client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else client.create_experiment(self._experiment)
        found = client.search_runs([experiment], f"tags.`{JOB_TAG}` = '{job}'") if job else []
        run = found[0] if found else client.create_run(experiment, tags=_tags(job), run_name=job)
        self._run_id = run.info.run_id
        client.update_run(self._run_id, status="RUNNING")
        points = (m for name in run.data.metrics for m in self._history(name))
        self._known_step = max((point.step for point in points), default=0)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point for each value, unless the run has this step."""
        if step > self._known_step:
            for name, value in values.items():
                self._client.log_metric(self._run_id, name, value, step=step, synchronous=False)

    def end(self, outcome: AttemptOutcome, left: ExitReason) -> None:
        """Note the outcome, and tag the run with it."""
        self._outcome = outcome
        if outcome is not AttemptOutcome.REPLACED:
            words = f"{outcome} at step {left.step}{left.detail and ': '}{left.detail}"
            self._client.set_tag(self._run_id, EXIT_TAG, words)

    def close(self) -> None:
        """Set the status of the run."""
        match self._outcome:
            case AttemptOutcome.FINISHED:
                self._client.set_terminated(self._run_id, "FINISHED")
            case AttemptOutcome.FAILED:
                self._client.set_terminated(self._run_id, "FAILED")
            case AttemptOutcome.CANCELLED:
                self._client.set_terminated(self._run_id, "KILLED")
            case AttemptOutcome.PREEMPTED | AttemptOutcome.PAUSED:
                self._client.update_run(self._run_id, status="SCHEDULED")
            case AttemptOutcome.REPLACED:
                pass

    def _history(self, name: str) -> Any:
        return self._client.get_metric_history(self._run_id, name)


class Trackio:
    """Trackio: one run named after the job. Accepts the arguments of `trackio.init`."""

    def __init__(self, project: str, **init: Any) -> None:
        self.errors: tuple[type[Exception], ...] = ()
        self.arguments: Mapping[str, Any] = {"project": project, **init}
        """Arguments with which another process can open its run."""
        self._project = project
        self._trackio: Any = None
        self._known_step = 0

    def open(self, job: str | None, step: int) -> None:
        """Open the run of the job, and read its last step if it is stored on this machine."""
        trackio = self._trackio = import_optional("trackio", "trackio")
        self.errors = (OSError, RuntimeError)
        store = import_optional("trackio.sqlite_storage", "trackio").SQLiteStorage
        self._known_step = (store.get_max_step_for_run(self._project, job) if job else None) or 0
        trackio.init(**{"name": job, "resume": "allow", **self.arguments})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one row, unless the run has this step."""
        if step > self._known_step:
            self._trackio.log(dict(values), step=step)

    def end(self, outcome: AttemptOutcome, left: ExitReason) -> None:
        """Show how the attempt ended as an alert, as runs of trackio have no status."""
        level = self._trackio.AlertLevel
        levels = {AttemptOutcome.FINISHED: level.INFO, AttemptOutcome.FAILED: level.ERROR}
        title = f"Attempt {outcome} at step {left.step}"
        self._trackio.alert(title, text=left.detail or None, level=levels.get(outcome, level.WARN))

    def close(self) -> None:
        """Flush and finish the run."""
        self._trackio.finish()


class TrackerRun:
    """Sends points of a run to a tracker until the tracker fails."""

    def __init__(
        self, tracker: Tracker, run_dir: RunDir | None = None, *, has_service: bool = False
    ) -> None:
        """`run_dir` is read for what becomes of the job, if it `has_service`."""
        self._tracker: Tracker | None = tracker
        self._run_dir = run_dir
        self._has_service = has_service
        self._shown_end_s = -math.inf

    def open(self, job: str | None, step: int) -> None:
        """Open the tracker.

        Raises:
            ImportError: see `Tracker.open`.
        """
        if self._tracker:
            try:
                self._tracker.open(job, step)
            except self._tracker.errors as error:
                self._disable(error)
            else:
                self._record(self._tracker, job, step)
                if self._run_dir and self._has_service:
                    with suppress(OSError):
                        self._run_dir.ask_for_end()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step."""
        if self._tracker:
            try:
                self._tracker.write(step, {**values, **self._remaining_seconds()})
            except self._tracker.errors as error:
                self._disable(error)

    def close(self, left: ExitReason) -> None:
        """Show how the attempt ended, and close the tracker."""
        if self._tracker:
            tracker, self._tracker = self._tracker, None
            try:
                if isinstance(tracker, ShowsOutcome):
                    tracker.end(AttemptOutcome.of(left, self._stop(left)), left)
                tracker.close()
            except tracker.errors as error:
                self._disable(error)
            else:
                self._clear_record()

    def _remaining_seconds(self) -> Mapping[str, float]:
        """Metrics of the time until the expected end of the job; empty if none is due or known."""
        now_s = time.monotonic()
        if not self._run_dir or now_s - self._shown_end_s < REMAINING_S:
            return {}
        if end_s := self._run_dir.expected_end():
            self._shown_end_s = now_s
        return {f"{REMAINING}{name}": max(0.0, at - now_s) for name, at in end_s.items()}

    def _stop(self, left: ExitReason) -> JobStop | None:
        """What becomes of the job.

        The service says so with each delivery, thus at the latest with that of this exit.
        """
        if not self._run_dir or left.reason != AttemptOutcome.PREEMPTED:
            return None
        until_s = time.monotonic() + (STOP_ANSWER_S if self._has_service else 0.0)
        while (stop := self._run_dir.stop()) is None and time.monotonic() < until_s:
            time.sleep(POLL_S)
        return stop

    def _record(self, tracker: Tracker, job: str | None, step: int) -> None:
        """Record the open run for the wrapper, which ends it if this process is killed."""
        if not (job and self._run_dir and isinstance(tracker, MLflow | Trackio | WandB)):
            return
        record = {"tracker": type(tracker).__name__, "arguments": tracker.arguments, "job": job, "step": step}  # fmt: skip
        # Without the record, for example of arguments that are objects, only the next attempt corrects the run's status.
        with suppress(OSError, TypeError, ValueError):
            self._run_dir.record_tracker(json.dumps(record))

    def _clear_record(self) -> None:
        if self._run_dir:
            with suppress(OSError):
                self._run_dir.clear_tracker()

    def _disable(self, error: Exception) -> None:
        # Training is worth more than its metrics.
        self._tracker = None
        self._clear_record()
        log_info(f"the tracker failed and is disabled for this attempt: {error}")


def _tags(job: str | None) -> dict[str, str]:
    return {JOB_TAG: job} if job else {}
