"""Trackers of experiments: what a run logs goes there, too, from the first rank alone, as one curve over all attempts.

A step that is made once more after a resume is not in a curve twice: a tracker either takes back what it has of it, or is not
told again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from holdfast_worker.console import log_info
from holdfast_worker.optional_imports import import_optional
from holdfast_worker.protocol.release import requirement

JOB_TAG: Final = "holdfast.job"
"""Under which an experiment of MLflow is searched for the run of a job."""


class Tracker(Protocol):
    """Somebody who keeps curves. Whatever a method raises of `errors` costs the rest of the curve, and never the training."""

    errors: tuple[type[Exception], ...]
    """What may go wrong there; known once it is open."""

    def open(self, job: str | None, step: int) -> None:
        """Training begins, after so many steps. None: the run belongs to no job, and is one of its own.

        Raises:
            ImportError: its package is not installed; says how it would be.
        """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """What was measured at a step."""

    def close(self) -> None:
        """Nothing more is written by this attempt."""


class TensorBoard:
    """Event files below a folder, which all attempts have to share: on storage that outlives a node."""

    def __init__(self, folder: str | Path) -> None:
        self.errors: tuple[type[Exception], ...] = (OSError,)
        self._folder = Path(folder)
        self._writer: Any = None

    def open(self, job: str | None, step: int) -> None:
        """Readers drop what earlier attempts wrote of later steps."""
        import_optional("tensorboard", requirement("tensorboard"))
        writer = import_optional("torch.utils.tensorboard", "torch").SummaryWriter
        self._writer = writer(
            str(self._folder / (job or "")), purge_step=step + 1 if step else None
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar for each."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """What is still in memory is written."""
        self._writer.close()


class WandB:
    """Weights & Biases: one run whose id is that of the job. What `wandb.init` takes may be given as well."""

    def __init__(self, project: str, **init: Any) -> None:
        self.errors: tuple[type[Exception], ...] = ()
        self._init = {"project": project, **init}
        self._run: Any = None

    def open(self, job: str | None, step: int) -> None:
        """It goes on with a run that it knows, and lets no step come twice."""
        wandb = import_optional("wandb", "wandb")
        self.errors = (wandb.Error, OSError)
        self._run = wandb.init(**{"id": job, "name": job, "resume": "allow", **self._init})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One row."""
        if step >= self._run.step:  # It would complain of each that it has.
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """What is still in memory is sent."""
        self._run.finish()


class MLflow:
    """A server or a database of MLflow: one run with the tag `holdfast.job`."""

    def __init__(self, uri: str, experiment: str) -> None:
        self.errors: tuple[type[Exception], ...] = ()
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._run_id = ""
        self._known_step = 0

    def open(self, job: str | None, step: int) -> None:
        """It is looked up how far earlier attempts have told."""
        mlflow = import_optional("mlflow", "mlflow")
        self.errors = (mlflow.exceptions.MlflowException, OSError)
        client = self._client = mlflow.MlflowClient(self._uri)
        known = client.get_experiment_by_name(self._experiment)
        place = known.experiment_id if known else client.create_experiment(self._experiment)
        found = client.search_runs([place], f"tags.`{JOB_TAG}` = '{job}'") if job else []
        run = found[0] if found else client.create_run(place, tags=_tags(job), run_name=job)
        self._run_id = run.info.run_id
        client.update_run(self._run_id, status="RUNNING")
        points = (m for name in run.data.metrics for m in self._history(name))
        self._known_step = max((point.step for point in points), default=0)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One point for each."""
        if step > self._known_step:
            for name, value in values.items():
                self._client.log_metric(self._run_id, name, value, step=step, synchronous=False)

    def close(self) -> None:
        """The run is over, until another attempt goes on with it."""
        self._client.set_terminated(self._run_id)

    def _history(self, name: str) -> Any:
        return self._client.get_metric_history(self._run_id, name)


class Trackio:
    """Trackio: one run that is named after the job. What `trackio.init` takes may be given as well."""

    def __init__(self, project: str, **init: Any) -> None:
        self.errors: tuple[type[Exception], ...] = ()
        self._project, self._init = project, init
        self._trackio: Any = None
        self._known_step = 0

    def open(self, job: str | None, step: int) -> None:
        """It is looked up how far earlier attempts have told, where the curve is kept on this machine."""
        trackio = self._trackio = import_optional("trackio", "trackio")
        self.errors = (OSError, RuntimeError)
        store = import_optional("trackio.sqlite_storage", "trackio").SQLiteStorage
        self._known_step = (store.get_max_step_for_run(self._project, job) if job else None) or 0
        trackio.init(**{"project": self._project, "name": job, "resume": "allow", **self._init})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One row."""
        if step > self._known_step:
            self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        """What is still in memory is written."""
        self._trackio.finish()


class TrackerRun:
    """Where the points of a run go beside its reports: to a tracker as long as that takes them."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker: Tracker | None = tracker

    def begin(self, job: str | None, step: int) -> None:
        """Training begins.

        Raises:
            ImportError: see `Tracker.open`.
        """
        if self._tracker:
            try:
                self._tracker.open(job, step)
            except self._tracker.errors as error:
                self._give_up(error)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """A point."""
        if self._tracker:
            try:
                self._tracker.write(step, values)
            except self._tracker.errors as error:
                self._give_up(error)

    def end(self) -> None:
        """There are no more points."""
        if self._tracker:
            tracker, self._tracker = self._tracker, None
            try:
                tracker.close()
            except tracker.errors as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        # Training is worth more than the picture of it.
        self._tracker = None
        log_info(f"the tracker fails, and is told nothing more: {error}")


def _tags(job: str | None) -> dict[str, str]:
    return {JOB_TAG: job} if job else {}
