"""The command that proves that a training script loses no work when its nodes are preempted."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from holdfast.api.schemas.jobs import JobOut
from holdfast.cli import output
from holdfast.cli.demo import ProgressDisplay
from holdfast.cli.jobs import Envs, File, Name, Project, Secrets, connect, seconds_of, task_of
from holdfast.cli.output import AsJson
from holdfast.prove.experiment import EquivalenceExperiment, Proof
from holdfast.prove.job_file import preemption_steps, shortened_job


def prove(
    file: File,
    *,
    steps: Annotated[
        int, typer.Option("--steps", min=6, max=100_000, metavar="N", help="Number of steps.")
    ] = 60,
    kills: Annotated[
        int, typer.Option("--kills", min=1, max=20, metavar="N", help="Number of preemptions.")
    ] = 2,
    notice: Annotated[
        str | None,
        typer.Option("--notice", help="Notice before each preemption, such as 30s. Default: none."),
    ] = None,
    step_ms: Annotated[
        int,
        typer.Option(
            "--step-ms", min=0, max=60_000, metavar="N", help="Minimum duration of a step."
        ),
    ] = 100,
    name: Name = None,
    env: Envs = None,
    secret: Secrets = None,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Run a short job twice here, with and without preemptions, and compare the results."""
    request = task_of(file, None, env, secret)
    task = shortened_job(request.task, name=name or "proof", steps=steps, step_ms=step_ms)
    at = preemption_steps(steps, kills)
    notice_s = None if notice is None else seconds_of(notice)
    with connect() as client, ProgressDisplay(steps) as screen:

        def submit(text: str) -> JobOut:
            body = request.model_copy(update={"task": text, "project": project, "checkout": None})
            return client.jobs.submit(body, idempotency_key=secrets.token_hex(16))

        proof = EquivalenceExperiment(client, submit, screen.update).run(task, at, notice_s)
    if as_json:
        output.print_json(proof.certificate)
    else:
        _print(proof)
    if not proof.certificate.holds:
        raise typer.Exit(1)


def _print(proof: Proof) -> None:
    shown = proof.certificate
    rows = {
        "undisturbed": f"job {shown.against}",
        "interrupted": f"job {proof.job.id}, {output.counted(shown.preemptions, 'time')}",
        "replaced": f"{output.counted(shown.replaced_nodes, 'node')}, while the others waited"
        * bool(shown.replaced_nodes),
        "weights": f"{shown.other_weights_sha256[:16]} and {shown.weights_sha256[:16]}",
        "numbers": f"{shown.values - shown.other_values:,} of {shown.values:,} identical",
        "batches": f"{shown.batches - shown.other_batches:,} of {shown.batches:,} identical",
        "diverged": proof.comparison.first_difference,
    }
    for label, value in rows.items():
        if value:
            output.console.print(f"{label:<12} {value}", markup=False)
    word = "PROVEN" if shown.holds else "DIFFERENT"
    output.console.print(f"{word}: {shown.why}", style="bold green" if shown.holds else "bold red", markup=False)  # fmt: skip
    output.echo(
        f"the result is stored: holdfast show {proof.job.id} prints it, and the job's bundle contains it"
    )
