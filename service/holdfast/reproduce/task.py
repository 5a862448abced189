"""Manifest and job file of a run to reproduce."""

from __future__ import annotations

import json
import shlex
import zipfile
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from holdfast.errors import BadRequest

_IN_BUNDLE: Final = "/run_manifest.json"
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of a manifest.

One of ten thousand packages has a tenth of it; a larger file is not a manifest and would fill the memory.
"""


def read_evidence(file: Path) -> dict[str, Any]:
    """Read a manifest, as printed by `holdfast manifest --json`, or in a bundle.

    Raises:
        BadRequest: it is neither.
    """
    try:
        data = _bundled(file) if zipfile.is_zipfile(file) else file.read_bytes()[: _MOST_BYTES + 1]
        manifest_data = json.loads(data) if len(data) <= _MOST_BYTES else None
    except OSError as error:
        raise BadRequest(f"{file}: {error.strerror or error}; name a manifest, a bundle or a job") from error  # fmt: skip
    except (ValueError, zipfile.BadZipFile) as error:
        raise BadRequest(f"{file} is not a manifest: {error}") from error
    if not isinstance(manifest_data, dict) or "format" not in manifest_data:
        raise BadRequest(
            f"{file} is not a manifest; write one with holdfast manifest JOB --json, or use a bundle of holdfast bundle JOB"
        )
    return manifest_data


def _bundled(file: Path) -> bytes:
    with zipfile.ZipFile(file) as bundle:
        for entry in bundle.infolist():
            if entry.filename.endswith(_IN_BUNDLE) and entry.file_size <= _MOST_BYTES:
                return bundle.read(entry)
    raise BadRequest(f"{file} has no run_manifest.json: its job reported none, so it cannot be reproduced")  # fmt: skip


TAG: Final = "reproduces"
"""Tag of a job that reproduces another one, whose id is its value."""

_REQUIREMENTS: Final = "/tmp/holdfast-requirements.lock.txt"  # noqa: S108 - of a node that is this job's alone
_END: Final = "HOLDFAST_END"


def task_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job file in a manifest.

    Raises:
        BadRequest: it contains none.
    """
    known = manifest.get("holdfast")
    task = known.get("job_file") if isinstance(known, Mapping) else None
    if not isinstance(task, dict) or "run" not in task:
        raise BadRequest(
            "the manifest does not contain the launch of its run: it ran without a service, or with an older version; use the "
            "output of holdfast manifest JOB --json"
        )
    return deepcopy(task)


def rerun_task(
    manifest: Mapping[str, Any], workdir: str | None, programs: Path | None = None
) -> dict[str, Any]:
    """Build the job file of the same launch, with its code in a directory.

    `programs` comes first in PATH.
    """
    task = task_of(manifest)
    if workdir is not None:
        task["workdir"] = workdir
    if programs is not None:
        task["run"] = f'export PATH={shlex.quote(str(programs))}:"$PATH"\n{task["run"]}'
    block = task.setdefault("holdfast", {})
    block["tags"] = {**block.get("tags", {}), TAG: str(manifest["holdfast"].get("job", ""))}
    return task


def with_requirements(task: Mapping[str, Any], wanted: str) -> dict[str, Any]:
    """Add the installation of packages to the setup of a job, before all other commands."""
    install = f"cat > {_REQUIREMENTS} <<'{_END}'\n{wanted}{_END}\npython -m pip install --no-deps -r {_REQUIREMENTS}"
    return {**task, "setup": f"{install} || exit 1\n{task.get('setup') or ''}"}


def is_local(task: Mapping[str, Any]) -> bool:
    """Whether the nodes of a job are processes of the service's machine."""
    return str((task.get("resources") or {}).get("infra") or "").lower() == "local"
