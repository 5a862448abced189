"""The command that repeats a run from its manifest and compares the results."""

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
    connect,
    envs_of,
    secret_of,
)
from holdfast.cli.logs import EXIT_BY_STATE, watch_to_the_end
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client.credentials import Credentials
from holdfast.reproduce.comparison import (
    ComparisonResult,
    ResultComparison,
    compare,
    machine_differences,
)
from holdfast.reproduce.packages import build_python, requirements
from holdfast.reproduce.source import CodeOverride, script_mismatch, workdir_of
from holdfast.reproduce.task import is_local, read_evidence, rerun_task, task_of, with_requirements
from holdfast.sdk.job_files import checkout_of
from holdfast.settings import read_settings

ManifestSource = Annotated[
    str, typer.Argument(metavar="WHAT", help="Id or name of a job, manifest file, or bundle.")
]
Repo = Annotated[
    Path | None, typer.Option("--repo", help="Repository that contains the original commit.")
]
To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        help="Directory for the original code. Default: reproduced-JOB in the current directory.",
    ),
]
Patch = Annotated[
    Path | None, typer.Option("--patch", help="Patch with the changes since the commit.")
]
AsIs = Annotated[bool, typer.Option("--as-is", help="Use the job's directory as it is now.")]
Venv = Annotated[
    bool,
    typer.Option("--venv", help="Install the original packages in a separate Python environment."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the job file without submitting it.")
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Follow until the job ends, and compare the results.")
]
Within = Annotated[
    float,
    typer.Option(
        "--within",
        min=0,
        max=100,
        metavar="PERCENT",
        help="Tolerance for numbers where the weights differ.",
    ),
]


def reproduce(
    what: ManifestSource,
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
    """Repeat a run with the same code, packages and launch; --follow compares the results."""
    manifest = _manifest(what)
    then = task_of(manifest)
    of = str(manifest["holdfast"].get("job") or "manifest")
    target = to or Path(f"reproduced-{of}")
    own = [Path(then["workdir"])] if then.get("workdir") else []
    places = [*([repo] if repo else []), *own, Path.cwd()]
    override = CodeOverride(repositories=places, to=target, patch=patch, as_is=as_is)
    workdir = workdir_of(manifest, then.get("workdir"), override)
    if problem := script_mismatch(manifest, workdir):
        output.echo(f"note: {problem}")
    task = _with_packages(manifest, workdir, target) if venv else rerun_task(manifest, workdir)
    if is_local(then) and not as_json:
        _print_differences(manifest, with_packages=not venv)
    text = yaml.safe_dump(task, sort_keys=False)
    if dry_run:
        typer.echo(text, nl=False)
        return
    request = TaskIn(
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
        request.code = code_of(client, text, None)
        job = client.jobs.submit(request, idempotency_key=secrets.token_hex(16))
        if not follow:
            _print_submitted(job, of, as_json=as_json)
            return
        output.echo(f'Submitted job {job.id} "{job.name}" to reproduce {of}')
        job = watch_to_the_end(client, job.id, is_shown=not as_json)
        verdict = _comparison(client, manifest, job, within / 100)
    _print_comparison(of, job, verdict, as_json=as_json)
    raise typer.Exit(EXIT_BY_STATE.get(job.state, 0) or _exit_code(verdict))


def _manifest(what: str) -> dict[str, Any]:
    """Read a manifest from a file or a job.

    A file of this name takes precedence, as job ids are not file names.
    """
    if Path(what).exists() or "/" in what or what.endswith((".json", ".zip")):
        return read_evidence(Path(what))
    with connect() as client:
        return client.diagnostics.manifest(client.jobs.resolve(what))


def _with_packages(manifest: dict[str, Any], workdir: str | None, target: Path) -> dict[str, Any]:
    """Return the job file with the original packages.

    They are installed here for local nodes, else by its setup.
    """
    lock = manifest.get("lock") or []
    if not is_local(task_of(manifest)):
        return with_requirements(rerun_task(manifest, workdir), requirements(lock))
    folder = (target.parent / f"{target.name}-python").absolute()
    output.echo(f"installing {len(lock)} packages into {folder}")
    return rerun_task(manifest, workdir, build_python(lock, folder))


def _print_differences(manifest: dict[str, Any], *, with_packages: bool) -> None:
    found = machine_differences(manifest, with_packages=with_packages)
    if found is None:
        output.echo("differences of this machine are unknown: torch is not installed here")
        return
    if not found:
        output.echo("the manifest shows no differences to this machine")
        return
    output.echo("differences between this machine and the original one:")
    table = output.table("KIND", "ITEM", "ORIGINAL", "HERE")
    for one in found:
        table.add_row(one.category, one.key, output.brief(one.before), output.brief(one.after))
    output.print_table(table)


def _print_submitted(job: JobOut, of: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
        return
    output.console.print(f'Submitted job {job.id} "{job.name}"', markup=False)
    output.echo(f"once it trains, compare the two runs with: holdfast diff {of} {job.id}")


def _comparison(
    client: Client, manifest: dict[str, Any], job: JobOut, within: float
) -> ComparisonResult:
    request = client.diagnostics.manifest(job.id)
    return compare(manifest["holdfast"].get("result"), request["holdfast"].get("result"), within)


def _print_comparison(of: str, job: JobOut, verdict: ComparisonResult, *, as_json: bool) -> None:
    if as_json:
        output.print_json(
            {
                "job_id": job.id,
                "reproduces": of,
                "state": job.state,
                "likeness": verdict.outcome.value,
                "why": verdict.reason,
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
    output.console.print(f"{words[verdict.outcome]}: {verdict.reason}", markup=False)


def _exit_code(verdict: ComparisonResult) -> int:
    return 0 if verdict.outcome in {ResultComparison.IDENTICAL, ResultComparison.CLOSE} else 1
