"""The command that demonstrates a job that survives three preemptions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.api.schemas.jobs import EventOut, JobOut
from holdfast.cli import output
from holdfast.cli.billing import print_bill
from holdfast.cli.output import AsJson, clock
from holdfast.clock import SystemClock
from holdfast.settings import read_settings


def demo(as_json: AsJson = False) -> None:
    """Run a job, preempt it three times, and compare it with an undisturbed run."""
    from holdfast.demo.scenario import STEPS, run_scenario  # noqa: PLC0415
    from holdfast.demo.services import set_up  # noqa: PLC0415 - the bare client has no demo

    home = read_settings().home
    home.mkdir(
        parents=True, exist_ok=True, mode=0o700
    )  # The port may be in use by a service later.
    folder = home / "demo" / f"{SystemClock().now():%Y%m%d-%H%M%S}"
    with set_up(folder) as stage, ProgressDisplay(STEPS) as screen:
        screen.print_line(f"the service is at {stage.url}, its files are in {folder}")
        outcome = run_scenario(stage, screen.update)
    if as_json:
        output.print_json(
            {
                "job_id": outcome.job.id,
                "state": outcome.job.state,
                "steps": outcome.job.step,
                "preemptions": outcome.job.preemptions,
                "resumes": outcome.job.resumes,
                "lost_steps": outcome.job.lost_steps,
                "paid_micros": outcome.job.paid_micros,
                "on_demand_micros": outcome.job.on_demand_micros,
                "weights_sha256": outcome.weights_sha256,
                "uninterrupted_sha256": outcome.uninterrupted_sha256,
                "identical": outcome.identical,
            }
        )
    else:
        _print_timeline(outcome.events)
        output.console.print()
        print_bill(outcome.bill)
        _print_result(outcome.weights_sha256, outcome.uninterrupted_sha256, folder)
    if not outcome.succeeded:
        output.echo(f"holdfast: the demo failed; its logs are in {folder}")
        raise typer.Exit(1)


class ProgressDisplay:
    """A progress bar on a terminal, or lines elsewhere. Writes to standard error."""

    def __init__(self, steps: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
        )
        self._progress = Progress(
            *columns, TimeElapsedColumn(), console=output.errors, disable=not sys.stderr.isatty()
        )
        self._task = self._progress.add_task("starting", total=steps)
        self._started_at = SystemClock().now()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def print_line(self, text: str) -> None:
        """Print one line with the seconds since the start."""
        seconds = (SystemClock().now() - self._started_at).total_seconds()
        output.errors.print(f"[{seconds:5.1f} s] {text}", markup=False)

    def update(self, job: JobOut, happened: str) -> None:
        """Display the progress of a job, and an event if one occurred."""
        self._progress.update(self._task, completed=job.step, description=f"{job.name} {job.state}")
        if happened:
            self.print_line(f"step {job.step:3d}  {happened}")


def _print_timeline(events: list[EventOut]) -> None:
    begin = events[0].at
    output.console.print("\n[bold]Timeline[/bold]" if output.console.is_terminal else "\nTimeline")
    for event in events:
        if text := _sentence(event):
            seconds = (event.at - begin).total_seconds()
            output.console.print(f"  {clock(event.at)}  {seconds:+7.1f} s  {text}", markup=False)


def _sentence(event: EventOut) -> str:
    """Describe an event in words; empty for events that a timeline can omit."""
    body = event.body
    begin = f"attempt {body.get('attempt')}:"
    match event.kind:
        case "NodesReady":
            text = f"{begin} {body['nodes']} nodes ready in {body['zone']}"
        case "TrainingStarted":
            text = f"{begin} training at step {body['step']} from {body['restored_from'] or 'the beginning'}"
        case "PreemptionNoticed":
            text = f"{begin} notice at step {body['step']}"
        case "CapacityLost" | "NodeLost":
            which = f"node {body['node']}" if event.kind == "NodeLost" else "nodes"
            cause = body["cause"].replace("_", " ") + (" in a drill" if body["drill"] else "")
            text = f"{begin} {which} lost ({cause})"
        case "RanksRestarted":
            text = f"{begin} ranks start again after step {body['step']}: {body['detail']}"
        case "NodeReplaced" | "RanksReplaced":
            text = f"{begin} {_replacement_text(event)}"
        case "WorkerLeft":
            text = f"{begin} worker exited at step {body['step']} ({body['reason']})"
        case "Finished":
            text = str(body["outcome"])
        case _:
            text = ""
    return text


def _replacement_text(event: EventOut) -> str:
    body = event.body
    if event.kind == "NodeReplaced":
        return f"node {body['node']} replaced"
    ranks = ", ".join(map(str, body["ranks"])) or "none"
    return f"ranks replaced after step {body['step']} ({ranks}): {body['cause']}"


def _print_result(ours: str | None, theirs: str | None, folder: Path) -> None:
    output.console.print()
    output.console.print(f"final weights, preempted 3 times : {ours}", markup=False)
    output.console.print(f"final weights, undisturbed       : {theirs}", markup=False)
    same = ours is not None and ours == theirs
    output.console.print(
        "bit for bit the same" if same else "DIFFERENT",
        style="bold green" if same else "bold red",
    )
    output.console.print(
        f"\nto inspect it: HOLDFAST_HOME={folder / 'home'} holdfast serve, then holdfast ps",
        markup=False,
    )
