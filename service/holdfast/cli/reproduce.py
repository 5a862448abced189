"""The command that makes a run again from its manifest, and says whether it came to the same result."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from holdfast.api.schemas.jobs import JobOut, TaskIn
from holdfast.cli import output
from holdfast.cli.code_upload import code_of
from holdfast.cli.jobs import (
    Envs,
    Force,
    Name,
    Project,
    Secrets,
    checkout_of,
    connect,
    envs_of,
    secret_of,
)
from holdfast.cli.logs import EXIT_BY_STATE, watch_to_the_end
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client.credentials import Credentials
from holdfast.client.diagnostics import EvidenceClient
from holdfast.reproduce.comparison import ComparisonResult, ResultComparison, compare, others_here
from holdfast.reproduce.packages import build_python, requirements
from holdfast.reproduce.source import CodeOverride, other_script, workdir_of
from holdfast.reproduce.task import again, is_local, read_evidence, task_of, with_requirements
from holdfast.settings import read_settings

What = Annotated[str, typer.Argument(metavar="WHAT", help="Job, manifest file, or bundle.")]
Repo = Annotated[
    Path | None, typer.Option("--repo", help="Repository that has the commit of then.")
]
To = Annotated[
    Path | None,
    typer.Option("--to", help="Folder for the code of then. Default: reproduced-JOB, here."),
]
Patch = Annotated[Path | None, typer.Option("--patch", help="What was changed since the commit.")]
AsIs = Annotated[bool, typer.Option("--as-is", help="Take the job's folder as it is now.")]
Venv = Annotated[
    bool, typer.Option("--venv", help="Install the packages of then, in a Python of their own.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the job file; submit nothing.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Stay until it ends, and compare the results.")
]
Within = Annotated[
    float,
    typer.Option(
        "--within",
        min=0,
        max=100,
        metavar="PERCENT",
        help="By how much numbers may differ where the weights do.",
    ),
]


def reproduce(
    what: What,
    *,
    repo: Repo = None,
    to: To = None,
    patch: Patch = None,
    as_is: AsIs = False,
    venv: Venv = False,
    name: Name = None,
    env: Envs = None,
    secret: Secrets = None,
    project: Project = None,
    force: Force = False,
    dry_run: DryRun = False,
    follow: Follow = False,
    within: Within = 1.0,
    as_json: AsJson = False,
) -> None:
    """Make a run again: the same code, packages and launch; with --follow, say whether it came to the same result."""
    manifest = _manifest(what)
    then = task_of(manifest)
    of = str(manifest["holdfast"].get("job") or "manifest")
    target = to or Path(f"reproduced-{of}")
    own = [Path(then["workdir"])] if then.get("workdir") else []
    places = [*([repo] if repo else []), *own, Path.cwd()]
    wish = CodeOverride(repositories=places, to=target, patch=patch, as_is=as_is)
    workdir = workdir_of(manifest, then.get("workdir"), wish)
    if problem := other_script(manifest, workdir):
        output.echo(f"note: {problem}")
    task = _with_packages(manifest, workdir, target) if venv else again(manifest, workdir)
    if is_local(then) and not as_json:
        _print_others(manifest, with_packages=not venv)
    text = yaml.safe_dump(task, sort_keys=False)
    if dry_run:
        typer.echo(text, nl=False)
        return
    told = TaskIn(
        task=text,
        name=name,
        env=envs_of(env),
        secrets=dict(secret_of(item) for item in secret or []),
        force=force,
        project=project,
        default_project=Credentials.read(read_settings().login_file).project,
        checkout=checkout_of(text),
    )
    with connect() as client:
        told.code = code_of(client, text, None)
        job = client.submit(told, idempotency_key=secrets.token_hex(16))
        if not follow:
            _print_submitted(job, of, as_json=as_json)
            return
        output.echo(f'Submitted job {job.id} "{job.name}", to come to what {of} came to')
        job = watch_to_the_end(client, job.id, is_shown=not as_json)
        verdict = _verdict(client, manifest, job, within / 100)
    _print_verdict(of, job, verdict, as_json=as_json)
    raise typer.Exit(EXIT_BY_STATE.get(job.state, 0) or _code(verdict))


def _manifest(what: str) -> dict[str, Any]:
    """A file by this name counts more than a job: ids of jobs are no names of files."""
    if Path(what).exists() or "/" in what or what.endswith((".json", ".zip")):
        return read_evidence(Path(what))
    with connect() as client:
        return EvidenceClient(client).manifest(what)


def _with_packages(manifest: dict[str, Any], workdir: str | None, target: Path) -> dict[str, Any]:
    """The job file with what was installed then: here for nodes that are processes of this machine, else by its setup."""
    lock = manifest.get("lock") or []
    if not is_local(task_of(manifest)):
        return with_requirements(again(manifest, workdir), requirements(lock))
    folder = (target.parent / f"{target.name}-python").absolute()
    output.echo(f"installing {len(lock)} packages into {folder}")
    return again(manifest, workdir, build_python(lock, folder))


def _print_others(manifest: dict[str, Any], *, with_packages: bool) -> None:
    found = others_here(manifest, with_packages=with_packages)
    if found is None:
        output.echo("what is other on this machine is not known: torch is not here to be asked")
        return
    if not found:
        output.echo("nothing is other on this machine, as far as the manifest tells")
        return
    output.echo("other on this machine than where the run was made:")
    table = output.table("KIND", "WHAT", "THEN", "HERE")
    for one in found:
        table.add_row(one.kind, one.key, output.brief(one.before), output.brief(one.after))
    output.print_table(table)


def _print_submitted(job: JobOut, of: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
        return
    output.console.print(f'Submitted job {job.id} "{job.name}"', markup=False)
    output.echo(f"holdfast diff {of} {job.id} says what is other in it once it trains")


def _verdict(
    client: Client, manifest: dict[str, Any], job: JobOut, within: float
) -> ComparisonResult:
    told = EvidenceClient(client).manifest(job.id)
    return compare(manifest["holdfast"].get("result"), told["holdfast"].get("result"), within)


def _print_verdict(of: str, job: JobOut, verdict: ComparisonResult, *, as_json: bool) -> None:
    if as_json:
        output.print_json(
            {
                "job_id": job.id,
                "reproduces": of,
                "state": job.state,
                "likeness": verdict.likeness.value,
                "why": verdict.why,
                "values": {name: list(both) for name, both in verdict.values.items()},
            }
        )
        return
    words = {
        ResultComparison.IDENTICAL: "reproduced",
        ResultComparison.CLOSE: "reproduced, but not bit for bit",
        ResultComparison.OTHER: "NOT reproduced",
        ResultComparison.UNKNOWN: "not comparable",
    }
    output.console.print(f"{words[verdict.likeness]}: {verdict.why}", markup=False)


def _code(verdict: ComparisonResult) -> int:
    return 0 if verdict.likeness in {ResultComparison.IDENTICAL, ResultComparison.CLOSE} else 1
