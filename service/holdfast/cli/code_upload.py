"""Upload of the working directory of a job file to the service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from holdfast.cli import output
from holdfast.client import Client
from holdfast.sdk import job_files

Upload = Annotated[
    bool | None,
    typer.Option(
        "--upload/--no-upload",
        help="Upload workdir, or use the service's own directory of this name; default: upload unless the service is local.",
    ),
]


def code_of(client: Client, text: str, upload: bool | None) -> str | None:
    """Upload the working directory of a job file with a progress bar, as `job_files.code_of`."""
    return job_files.code_of(client, text, upload, lambda folder: _uploaded(client, folder))


def _uploaded(client: Client, folder: Path) -> str:
    from holdfast.client.code_uploads import CodeClient  # noqa: PLC0415 - commands that send nothing start faster
    from holdfast.code_upload.packing import PackedFolder  # noqa: PLC0415

    columns = (TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=output.errors, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("uploading", total=None)

        def begins(packed: PackedFolder, to_send: int) -> None:
            for note in packed.notes:
                output.echo(f"note: {note}")
            output.echo(
                f"workdir {folder}: {len(packed.entries):,} files, {_size(packed.size_bytes)}; {_size(to_send)} to upload"
            )
            progress.reset(bar, total=to_send)

        return CodeClient(client, begins, lambda size: progress.advance(bar, size)).upload(folder)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 100_000 else f"{size_bytes:,} bytes"
