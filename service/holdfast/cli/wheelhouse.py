"""The command that packs the wheels for nodes without network access."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.packaging import offline_bundle


def wheelhouse(
    *,
    file: Annotated[Path, typer.Option("-o", "--output", help="Output file.")] = Path(
        "holdfast-wheels.tar"
    ),
    requirements: Annotated[
        Path | None,
        typer.Option(
            "-r",
            "--requirement",
            help="Additional packages with versions: a requirements file of pip.",
        ),
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="Omit the dependencies of the worker, including torch.")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="X.Y", help="Python version of the nodes. Default: the one here."
        ),
    ] = None,
    platform: Annotated[
        list[str] | None,
        typer.Option("--platform", help="Platform of the nodes in pip's notation; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pack the worker and its packages into a tar file for nodes without network access."""
    request = offline_bundle.BundleRequest(
        requirements=requirements, bare=bare, python=python, platforms=platform or ()
    )
    packed = offline_bundle.pack(request, file)
    if as_json:
        output.print_json(
            {"file": str(file), "size_bytes": packed.size_bytes, "wheels": list(packed.wheels)}
        )
        return
    output.echo(f"saved {len(packed.wheels)} wheels, {output.size(packed.size_bytes)}, as {file}")
    output.echo(f"on a node: tar -xf {file.name} && bash {offline_bundle.FOLDER}/install.sh")
