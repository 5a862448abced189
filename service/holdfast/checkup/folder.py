"""A folder as a checkpoint store, tried from here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

from holdfast_worker.wire import Guarantee

from holdfast.checkup.findings import Finding, missing, ok, warning

Link = Callable[[Path, Path], None]


def try_folder(folder: Path, link: Link = os.link) -> Finding:
    """Whether one can write there, and what it promises, as far as this machine can tell: it is the nodes that need it."""
    try:
        # A worker makes what is not there yet.
        there = next(place for place in (folder, *folder.parents) if place.exists())
        with NamedTemporaryFile(dir=there) as file:
            problem = _second_name(Path(file.name), link)
    except OSError as error:
        return warning(
            "store",
            f"{folder} cannot be written here: {error.strerror}",
            "take a folder that all nodes share and may write, or s3://bucket/prefix",
        )
    if problem:
        return missing(
            "store",
            f"{folder} can be written here, and has no hard links, by which commits are made: {problem}",
            "take a folder of another file system, or s3://bucket/prefix",
        )
    return ok(
        "store",
        f"{folder} can be written here; all nodes of a job have to share it; it {Guarantee.CONDITIONAL.words}",
    )


def _second_name(file: Path, link: Link) -> str:
    """Why this file cannot be given another name just once; empty where it can."""
    name = file.with_name(f"doctor-{secrets.token_hex(8)}")
    try:
        link(file, name)
    except OSError as error:
        return error.strerror or str(error)
    try:
        link(file, name)
    except FileExistsError:
        return ""
    finally:
        name.unlink()
    return "the second of two replaces the first"
