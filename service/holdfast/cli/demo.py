"""The command that shows it all."""

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
    """Submit a job, preempt it twice, let it finish, and prove that nothing was lost."""
    from holdfast.demo.scenario import STEPS, run_scenario  # noqa: PLC0415
    from holdfast.demo.services import set_up  # noqa: PLC0415 - the bare client has no demo

    home = read_settings().home
    home.mkdir(parents=True, exist_ok=True, mode=0o700)  # A service may have it later.
    folder = home / "demo" / f"{SystemClock().now():%Y%m%d-%H%M%S}"
    with set_up(folder) as stage, Screen(STEPS) as screen:
        screen.say(f"the service is at {stage.url}, its files in {folder}")
        outcome = run_scenario(stage, screen.tell)
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
        _print_verdict(outcome.weights_sha256, outcome.uninterrupted_sha256, folder)
    if not outcome.succeeded:
        output.echo(f"holdfast: the demo did not go as promised; its logs are in {folder}")
        raise typer.Exit(1)


class Screen:
    """A progress bar on a terminal; lines elsewhere. All on standard error."""

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
        self._began = SystemClock().now()

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

    def say(self, text: str) -> None:
        """One line, with the seconds since the beginning."""
        seconds = (SystemClock().now() - self._began).total_seconds()
        output.errors.print(f"[{seconds:5.1f} s] {text}", markup=False)

    def tell(self, job: JobOut, happened: str) -> None:
        """Where the job is, and what happened if anything did."""
        self._progress.update(self._task, completed=job.step, description=f"{job.name} {job.state}")
        if happened:
            self.say(f"step {job.step:3d}  {happened}")


def _print_timeline(events: list[EventOut]) -> None:
    begin = events[0].at
    output.console.print("\n[bold]Timeline[/bold]" if output.console.is_terminal else "\nTimeline")
    for event in events:
        if text := _sentence(event):
            seconds = (event.at - begin).total_seconds()
            output.console.print(f"  {clock(event.at)}  {seconds:+7.1f} s  {text}", markup=False)


def _sentence(event: EventOut) -> str:
    """A fact in words; empty for facts that a timeline can do without."""
    told = event.body
    begin = f"attempt {told.get('attempt')}:"
    match event.kind:
        case "NodesReady":
            text = f"{begin} {told['nodes']} nodes ready in {told['zone']}"
        case "TrainingStarted":
            text = f"{begin} training at step {told['step']} from {told['restored_from'] or 'the beginning'}"
        case "PreemptionNoticed":
            text = f"{begin} notice at step {told['step']}"
        case "CapacityLost":
            text = f"{begin} nodes lost ({told['cause'].replace('_', ' ')})"
        case "WorkerLeft":
            text = f"{begin} worker left at step {told['step']} ({told['reason']})"
        case "Finished":
            text = str(told["outcome"])
        case _:
            text = ""
    return text


def _print_verdict(ours: str | None, theirs: str | None, folder: Path) -> None:
    output.console.print()
    output.console.print(f"final weights, preempted twice : {ours}", markup=False)
    output.console.print(f"final weights, left alone      : {theirs}", markup=False)
    same = ours is not None and ours == theirs
    output.console.print(
        "bit for bit the same" if same else "NOT the same",
        style="bold green" if same else "bold red",
    )
    output.console.print(
        f"\nlook again: HOLDFAST_HOME={folder / 'home'} holdfast serve, then holdfast ps",
        markup=False,
    )
