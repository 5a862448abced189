"""A folder as a checkpoint store, tried from here."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

from holdfast.checkup.findings import Finding, ok, warning


def try_folder(folder: Path) -> Finding:
    """Whether one can write there, as far as this machine can tell: it is the nodes that need it."""
    try:
        # A worker makes what is not there yet.
        there = next(place for place in (folder, *folder.parents) if place.exists())
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        return warning(
            "store",
            f"{folder} cannot be written here: {error.strerror}",
            "take a folder that all nodes share and may write, or s3://bucket/prefix",
        )
    return ok("store", f"{folder} can be written here; all nodes of a job have to share it")
