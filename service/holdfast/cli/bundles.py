"""The commands that keep the evidence of a job: all of it, or what it came from."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import JobId
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client_evidence import EvidenceClient
from holdfast.errors import BadRequest
from holdfast.settings import read_settings


def bundle(
    job_id: JobId,
    *,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to; without it, holdfast-JOB.zip here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Save all that is known of a job as a zip file: what was asked for, what happened, what it cost."""
    place = file or Path(f"holdfast-{job_id}.zip")
    with Client.from_settings(read_settings()) as client:
        data = EvidenceClient(client).bundle(job_id)
    _save(place, data)
    if as_json:
        sha256 = hashlib.sha256(data).hexdigest()
        output.print_json({"file": str(place), "size_bytes": len(data), "sha256": sha256})
    else:
        output.say(f"saved {output.size(len(data))} as {place}")


def manifest(
    job_id: JobId,
    *,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", min=1, metavar="N", help="Of this one instead of the newest."),
    ] = None,
    lock: Annotated[
        bool, typer.Option("--lock", help="Print what was installed, as a file for pip.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run came from: configuration, code, seeds, packages, machines."""
    with Client.from_settings(read_settings()) as client:
        told = EvidenceClient(client).manifest(job_id, attempt)
    if lock:
        typer.echo("".join(f"{line}\n" for line in told.get("lock", ())), nl=False)
    elif as_json:
        output.print_json(told)
    else:
        _print(told)


def _print(told: dict[str, Any]) -> None:
    packages = told.pop("lock", [])
    for name, value in told.items():
        text = value if isinstance(value, str) else json.dumps(value)
        output.console.print(f"{name:<16} {text}", markup=False)
    output.console.print(f"{'packages':<16} {len(packages)}; --lock lists them", markup=False)


def _save(place: Path, data: bytes) -> None:
    """A whole file or none: one that was there stays until the new one is.

    Raises:
        BadRequest: it cannot be written there.
    """
    try:
        descriptor, draft = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            Path(draft).chmod(0o644)
            Path(draft).replace(place)
        finally:
            Path(draft).unlink(missing_ok=True)
    except OSError as error:
        raise BadRequest(
            f"{place} cannot be written ({error.strerror or error}); name another file with -o"
        ) from error
