"""The commands that submit a job once more."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import typer

from holdfast.api.schemas import JobOut
from holdfast.cli import output
from holdfast.cli.jobs import Envs, Force, Secrets, connect, envs_of, secret_of
from holdfast.cli.limits import Changes, with_limits
from holdfast.cli.options import JobId
from holdfast.cli.output import AsJson

Name = Annotated[str | None, typer.Option("--name", "-n", help="Name instead of the job's.")]


@with_limits
def clone(
    job_id: JobId,
    *,
    name: Name = None,
    env: Envs = None,
    secret: Secrets = None,
    limits: Changes,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job once more, with what is to be other; it begins where that one began."""
    changes = _changes(name, env, secret, limits, force=force)
    with connect() as client:
        job = client.clone(job_id, changes, idempotency_key=secrets.token_hex(16))
    _tell(job, as_json=as_json)


@with_limits
def retry(
    job_id: JobId,
    *,
    name: Name = None,
    env: Envs = None,
    secret: Secrets = None,
    limits: Changes,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job that has ended without success once more; the new one goes on from its newest checkpoint."""
    changes = _changes(name, env, secret, limits, force=force)
    with connect() as client:
        job = client.retry(job_id, changes, idempotency_key=secrets.token_hex(16))
        step = client.job(job_id).last_checkpoint_step
    _tell(job, f", which goes on from step {step:,} of job {job_id}", as_json=as_json)


def _tell(job: JobOut, more: str = "", *, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
    else:
        output.console.print(f'Submitted job {job.id} "{job.name}"{more}', markup=False)


def _changes(
    name: str | None,
    env: list[str] | None,
    secret: list[str] | None,
    limits: Changes,
    *,
    force: bool,
) -> dict[str, Any]:
    """What is to be other in the new job, as the API takes it."""
    secrets_given = dict(map(secret_of, secret or []))
    given = {"name": name, "env": envs_of(env), "secrets": secrets_given, "limits": limits}
    return {word: value for word, value in {**given, "force": force}.items() if value}
