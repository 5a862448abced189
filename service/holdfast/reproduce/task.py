"""The manifest of a run that is to be made again, as somebody kept it.

The job file of a run that is to be made again. Pure.
"""

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


TAG: Final = "reproduces"
"""The tag of a job that was made to come to the same result as another: the id of that."""

_REQUIREMENTS: Final = "/tmp/holdfast-requirements.lock.txt"  # noqa: S108 - of a node that is this job's alone
_END: Final = "HOLDFAST_END"


def task_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The job file that a manifest holds.

    Raises:
        BadRequest: it holds none.
    """
    known = manifest.get("holdfast")
    task = known.get("job_file") if isinstance(known, Mapping) else None
    if not isinstance(task, dict) or "run" not in task:
        raise BadRequest(
            "the manifest does not say how its run was launched: no service launched it, or one of an older version; take the "
            "one of holdfast manifest JOB --json"
        )
    return deepcopy(task)


def again(
    manifest: Mapping[str, Any], workdir: str | None, programs: Path | None = None
) -> dict[str, Any]:
    """The job file of the same launch, with its code in this folder, and with these programs before all others."""
    task = task_of(manifest)
    if workdir is not None:
        task["workdir"] = workdir
    if programs is not None:
        task["run"] = f'export PATH={shlex.quote(str(programs))}:"$PATH"\n{task["run"]}'
    block = task.setdefault("holdfast", {})
    block["tags"] = {**block.get("tags", {}), TAG: str(manifest["holdfast"].get("job", ""))}
    return task


def with_requirements(task: Mapping[str, Any], wanted: str) -> dict[str, Any]:
    """The same job, whose nodes install these packages before anything else."""
    install = f"cat > {_REQUIREMENTS} <<'{_END}'\n{wanted}{_END}\npython -m pip install --no-deps -r {_REQUIREMENTS}"
    return {**task, "setup": f"{install} || exit 1\n{task.get('setup') or ''}"}


def is_local(task: Mapping[str, Any]) -> bool:
    """Whether nodes of this job are processes of the machine that the service runs on."""
    return str((task.get("resources") or {}).get("infra") or "").lower() == "local"
