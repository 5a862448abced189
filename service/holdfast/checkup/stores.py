"""Checkpoint stores: which one a job file names, and whether it can be used from here."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.bounded_yaml import NotReadable, load
from holdfast.checkup.bucket import try_bucket
from holdfast.checkup.findings import Finding, missing
from holdfast.checkup.folder import try_folder
from holdfast.domain.spec import STORE_PATTERN
from holdfast.errors import BadRequest


def store_in(file: Path) -> str | None:
    """The store of a job file; None if it names none. The rest of the file is for the service to judge.

    Raises:
        BadRequest: there is no such file, or it is not YAML.
    """
    try:
        told = load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NotReadable) as error:
        raise BadRequest(f"{file} cannot be read as a job file: {error}") from error
    for word in ("holdfast", "checkpoint", "store"):
        told = told.get(word) if isinstance(told, dict) else None
    return told if isinstance(told, str) else None


def try_store(store: str) -> Finding:
    """What a job with this store would meet, tried from here."""
    if not re.match(STORE_PATTERN, store):
        todo = "write it as s3://bucket/prefix, or as file:///folder"
        return missing("store", f"{store} is no store", todo)
    if store.startswith("file://"):
        return try_folder(Path(store.removeprefix("file://")))
    return try_bucket(store)
