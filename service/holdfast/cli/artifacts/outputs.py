"""The command `outputs`: lists the output files of a job, and downloads them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from holdfast_worker.protocol.output_files import is_safe_path

from holdfast.api.schemas.checkpoints import OutputFileOut, OutputsOut
from holdfast.cli import output
from holdfast.cli.output import AsJson, timestamp
from holdfast.cli.usage.job_argument import JobId
from holdfast.client import Client
from holdfast.client.connection import RETRY_PAUSES_S
from holdfast.errors import BadRequest, HoldfastError, NotFound
from holdfast.settings import read_settings

Download = Annotated[
    Path | None,
    typer.Option("--download", metavar="DIR", help="Write the files below this directory."),
]
Node = Annotated[
    int | None, typer.Option("--node", min=0, help="Only the files of this node. Default: all.")
]


def outputs(
    job_id: JobId, *, node: Node = None, download: Download = None, as_json: AsJson = False
) -> None:
    """List the output files of a job, or download them."""
    with Client.from_settings(read_settings(), retry_pauses_s=RETRY_PAUSES_S) as client:
        found = client.jobs.outputs(job_id)
        if node is not None:
            found = _of_node(found, node)
        if download is not None:
            if found.epoch is None:
                raise NotFound(f"job {job_id} has no output files: {_why_none(found)}")
            for file in found.files:
                path = _download(client, job_id, found.epoch, file, download)
                if not as_json:
                    output.echo(str(path))
    if as_json:
        output.print_json(found)
        return
    if download is None:
        _print(found)
    for left in found.left_out:
        output.echo(f"note: {left.path} was left out: it {left.reason}")
    if more := found.left_out_count - len(found.left_out):
        output.echo(f"note: {more} more files were left out")


def _of_node(found: OutputsOut, node: int) -> OutputsOut:
    """The files of one node."""
    files = [file for file in found.files if file.node == node]
    left_out = [left for left in found.left_out if left.node == node]
    # Files beyond those that are named may be of any node.
    more = found.left_out_count - len(found.left_out)
    return found.model_copy(
        update={
            "files": files,
            "left_out": left_out,
            "left_out_count": len(left_out) + more,
            "size_bytes": sum(file.size_bytes for file in files),
        }
    )


def _print(found: OutputsOut) -> None:
    if found.collected_at is None:
        output.echo(f"no output files: {_why_none(found)}")
        return
    table = output.table("NODE", "SIZE", "PATH", right=("NODE", "SIZE"))
    for file in found.files:
        table.add_row(str(file.node), output.size(file.size_bytes), file.path)
    output.print_table(table)
    attempt = f"attempt {found.attempt}" if found.attempt else "the newest attempt"
    output.echo(
        f"{output.counted(len(found.files), 'file')}, {output.size(found.size_bytes)}, collected at {timestamp(found.collected_at)} "
        f"from {attempt}, which exited with code {found.exit_code}"
    )


def _why_none(found: OutputsOut) -> str:
    if not found.patterns:
        return "its job file has no holdfast.outputs"
    return "holdfast-worker run collects them when an attempt succeeds or fails"


def _download(client: Client, job_id: str, epoch: int, file: OutputFileOut, folder: Path) -> Path:
    """Write one file below a folder, under a temporary name until it is complete."""
    path = _target(folder, file.path)
    digest = hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Again, now that its folder exists: another download may have put a link there.
        path = _target(folder, file.path)
        number, draft = tempfile.mkstemp(prefix=".holdfast-", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as target:
                for data in _content(client, job_id, epoch, file):
                    digest.update(data)
                    target.write(data)
            if digest.hexdigest() != file.sha256:
                raise HoldfastError(
                    f"output file {file.path} is damaged in the store: its digest differs"
                )
            Path(draft).replace(path)
        finally:
            Path(draft).unlink(missing_ok=True)
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def _content(client: Client, job_id: str, epoch: int, file: OutputFileOut) -> Iterator[bytes]:
    for part in range(file.parts):
        yield client.jobs.output_part(job_id, file.number, epoch, part)


def _target(folder: Path, path: str) -> Path:
    """The path of a file below a folder.

    Raises:
        BadRequest: it would be elsewhere, by its name or through a link.
    """
    target = folder / path
    top = folder.resolve()
    if not is_safe_path(path) or not target.parent.resolve().is_relative_to(top):
        raise BadRequest(
            f"the output file {path!r} would be written outside of {folder}; download into an empty directory"
        )
    return target
