"""Which checkpoint store a job file names."""

from __future__ import annotations

from pathlib import Path

import yaml

from holdfast.errors import BadRequest


def store_in(file: Path) -> str | None:
    """The store of a job file; None if it names none. The rest of the file is for the service to judge.

    Raises:
        BadRequest: there is no such file, or it is not YAML.
    """
    try:
        told = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadRequest(f"{file} cannot be read as a job file: {error}") from error
    for word in ("holdfast", "checkpoint", "store"):
        told = told.get(word) if isinstance(told, dict) else None
    return told if isinstance(told, str) else None
