"""The command that packs what nodes without a network need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.packaging import offline_bundle


def wheelhouse(
    *,
    file: Annotated[Path, typer.Option("-o", "--output", help="Where to.")] = Path(
        "holdfast-wheels.tar"
    ),
    requirements: Annotated[
        Path | None,
        typer.Option("-r", "--requirement", help="What else, in which versions: a file of pip's."),
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="Leave out what the worker needs, torch among it.")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="X.Y", help="Of the nodes. Default: the one here."),
    ] = None,
    platform: Annotated[
        list[str] | None,
        typer.Option("--platform", help="Of the nodes, as pip names it; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pack the worker and its packages into a tar, from which nodes install it without a network."""
    wish = offline_bundle.BundleRequest(
        requirements=requirements, bare=bare, python=python, platforms=platform or ()
    )
    packed = offline_bundle.pack(wish, file)
    if as_json:
        output.print_json(
            {"file": str(file), "size_bytes": packed.size_bytes, "wheels": list(packed.wheels)}
        )
        return
    output.echo(f"saved {len(packed.wheels)} wheels, {output.size(packed.size_bytes)}, as {file}")
    output.echo(f"on a node: tar -xf {file.name} && bash {offline_bundle.FOLDER}/install.sh")
