"""Upload of the working directory of a job file to the service."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from holdfast.addresses import is_here
from holdfast.cli import output
from holdfast.client import Client
from holdfast.domain.jobfile.bounded_yaml import NotReadable, load
from holdfast.errors import BadJobFile, BadRequest, ValidationIssue

Upload = Annotated[
    bool | None,
    typer.Option(
        "--upload/--no-upload",
        help="Upload workdir, or use the service's own directory of this name; default: upload unless the service is local.",
    ),
]


def folder_of(text: str) -> Path | None:
    """The local working directory that a job file names, or None.

    The service validates the file.
    """
    try:
        workdir = _task(text).get("workdir")
        return Path.cwd() / Path(workdir).expanduser() if isinstance(workdir, str) else None
    except RuntimeError:
        return None


def code_of(client: Client, text: str, upload: bool | None) -> str | None:
    """Upload the working directory of a job file and return its id.

    None if the service uses its own directory.

    Raises:
        BadJobFile: `file_mounts` names files of this machine, which are not uploaded.
        BadRequest: the directory does not exist or cannot be uploaded.
    """
    sends = upload is True or (upload is None and not is_here(client.url))
    if sends and (flaws := tuple(_mount_issues(_task(text).get("file_mounts")))):
        raise BadJobFile(flaws)
    folder = folder_of(text)
    if folder is None or upload is False:
        return None
    if not folder.is_dir():
        raise BadRequest(
            f"workdir: the directory {folder} does not exist on this machine; correct the path, or use --no-upload for a directory of the service's machine"
        )
    return _uploaded(client, folder) if sends else None


def check_yaml(file: Path, text: str) -> None:
    """Check the syntax of a job file; the service validates its content.

    Raises:
        BadJobFile: the file is not YAML; the message shows the affected lines.
    """
    try:
        load(text)
    except NotReadable as error:
        lines = text.splitlines()
        shown = (f"\n    {n:>3} | {lines[n - 1]}" for n in error.lines if n <= len(lines))
        name = "standard input" if str(file) == "-" else str(file)
        raise BadJobFile((ValidationIssue(name, f"{error}{''.join(shown)}"),)) from error


def _task(text: str) -> dict[str, Any]:
    """Parse a job file leniently; the service validates it."""
    try:
        task = load(text)
    except ValueError:
        return {}
    return task if isinstance(task, dict) else {}


def _mount_issues(mounts: Any) -> Iterator[ValidationIssue]:
    """List sources on this machine.

    An absolute path that does not exist here belongs to the service's machine.
    """
    for target, mount in mounts.items() if isinstance(mounts, dict) else ():
        source = mount.get("source") if isinstance(mount, dict) else mount
        for path in source if isinstance(source, list) else [source]:
            if not isinstance(path, str) or "://" in path or path.startswith("$"):
                continue
            if not path.startswith("/") or Path(path).exists():
                yield ValidationIssue(
                    f"#/file_mounts/{target}",
                    f"{path!r} is a path of this machine, and only workdir is uploaded; put the files under workdir, name a "
                    "bucket, or use --no-upload if all paths are on the service's machine",
                )


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
