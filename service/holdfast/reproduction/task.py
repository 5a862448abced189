"""The job file of a run that is to be made again. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from holdfast.errors import BadRequest

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
