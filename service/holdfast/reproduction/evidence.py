"""The manifest of a run that is to be made again, as somebody kept it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, Final

from holdfast.errors import BadRequest

_IN_BUNDLE: Final = "/run_manifest.json"
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of a manifest. One of ten thousand packages has a tenth of it; bigger is no manifest, and would fill the memory."""


def read_evidence(file: Path) -> dict[str, Any]:
    """The manifest in a file: one of `holdfast manifest --json`, or the evidence of `holdfast bundle`.

    Raises:
        BadRequest: it is neither.
    """
    try:
        data = _bundled(file) if zipfile.is_zipfile(file) else file.read_bytes()[: _MOST_BYTES + 1]
        told = json.loads(data) if len(data) <= _MOST_BYTES else None
    except OSError as error:
        raise BadRequest(f"{file}: {error.strerror or error}; name a manifest, a bundle or a job") from error  # fmt: skip
    except (ValueError, zipfile.BadZipFile) as error:
        raise BadRequest(f"{file} is no manifest: {error}") from error
    if not isinstance(told, dict) or "format" not in told:
        raise BadRequest(
            f"{file} is no manifest; write one with holdfast manifest JOB --json, or take a bundle of holdfast bundle JOB"
        )
    return told


def _bundled(file: Path) -> bytes:
    with zipfile.ZipFile(file) as bundle:
        for entry in bundle.infolist():
            if entry.filename.endswith(_IN_BUNDLE) and entry.file_size <= _MOST_BYTES:
                return bundle.read(entry)
    raise BadRequest(f"{file} has no run_manifest.json: its job told none, so that nothing can be made again from it")  # fmt: skip
