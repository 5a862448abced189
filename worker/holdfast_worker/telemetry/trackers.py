"""Experiment trackers: rank 0 sends logged metrics there, as one series over all attempts.

A step that is recomputed after a resume appears once in a series: a tracker either drops its old points of that step, or
does not receive them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from holdfast_worker.console import log_info
from holdfast_worker.optional_imports import import_optional
from holdfast_worker.protocol.release import requirement

JOB_TAG: Final = "holdfast.job"
"""Tag of an MLflow run with the id of its job."""


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
        self._init = {"project": project, **init}
        self._run: Any = None

    def open(self, job: str | None, step: int) -> None:
        """Open the run of the job, or resume it."""
        wandb = import_optional("wandb", "wandb")
        self.errors = (wandb.Error, OSError)
        self._run = wandb.init(**{"id": job, "name": job, "resume": "allow", **self._init})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one row, unless the run has this step."""
        if step >= self._run.step:  # wandb warns about steps that it has.
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Flush and finish the run."""
        self._run.finish()


class MLflow:
    """MLflow server or database: one run with the tag `holdfast.job`."""

    def __init__(self, uri: str, experiment: str) -> None:
        self.errors: tuple[type[Exception], ...] = ()
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._run_id = ""
        self._known_step = 0

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

    def close(self) -> None:
        """Mark the run as finished until the next attempt resumes it."""
        self._client.set_terminated(self._run_id)

    def _history(self, name: str) -> Any:
        return self._client.get_metric_history(self._run_id, name)


class Trackio:
    """Trackio: one run named after the job. Accepts the arguments of `trackio.init`."""

    def __init__(self, project: str, **init: Any) -> None:
        self.errors: tuple[type[Exception], ...] = ()
        self._project, self._init = project, init
        self._trackio: Any = None
        self._known_step = 0

    def open(self, job: str | None, step: int) -> None:
        """Open the run of the job, and read its last step if it is stored on this machine."""
        trackio = self._trackio = import_optional("trackio", "trackio")
        self.errors = (OSError, RuntimeError)
        store = import_optional("trackio.sqlite_storage", "trackio").SQLiteStorage
        self._known_step = (store.get_max_step_for_run(self._project, job) if job else None) or 0
        trackio.init(**{"project": self._project, "name": job, "resume": "allow", **self._init})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one row, unless the run has this step."""
        if step > self._known_step:
            self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        """Flush and finish the run."""
        self._trackio.finish()


class TrackerRun:
    """Sends points of a run to a tracker until the tracker fails."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker: Tracker | None = tracker

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

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step."""
        if self._tracker:
            try:
                self._tracker.write(step, values)
            except self._tracker.errors as error:
                self._disable(error)

    def close(self) -> None:
        """Close the tracker."""
        if self._tracker:
            tracker, self._tracker = self._tracker, None
            try:
                tracker.close()
            except tracker.errors as error:
                self._disable(error)

    def _disable(self, error: Exception) -> None:
        # Training is worth more than its metrics.
        self._tracker = None
        log_info(f"the tracker failed and is disabled for this attempt: {error}")


def _tags(job: str | None) -> dict[str, str]:
    return {JOB_TAG: job} if job else {}
