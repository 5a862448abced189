"""The command that submits a job once more."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.jobs import Envs, JobId, Secrets, connect, envs_of, secret_of
from holdfast.cli.output import AsJson


def clone(
    job_id: JobId,
    *,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Name instead of the job's.")
    ] = None,
    env: Envs = None,
    secret: Secrets = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job once more, with what is to be other; it begins at step 0."""
    given = {"name": name, "env": envs_of(env), "secrets": dict(map(secret_of, secret or []))}
    changes = {word: value for word, value in given.items() if value}
    with connect() as client:
        job = client.clone(job_id, changes, idempotency_key=secrets.token_hex(16))
    if as_json:
        output.print_json(job)
    else:
        output.console.print(f'Submitted job {job.id} "{job.name}"', markup=False)
