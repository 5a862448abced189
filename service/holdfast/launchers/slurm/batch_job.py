"""What a launch is on Slurm: the files of its folder, the script among them.

The worker as nodes get it: its package and its command, taken from the service's own wheel. Nothing is installed.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast_worker.protocol.environment import Env

from holdfast.domain.jobfile.slurm_options import Slurm
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.workdir_copy import copy_workdir
from holdfast.ports import Launch
from holdfast.rendering import exports, options_of, script

KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH")
"""Of the environment of sbatch, what a job gets. The rest is the service's own, or that of whoever logs in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPaths:
    """Where launches go, as the nodes see it."""

    root: str
    """Folder that the login node and all nodes share."""
    worker: str
    """Folder of the worker that belongs to this service."""
    python: str
    """Python of the nodes; empty for their own."""
    offline: str
    """Folder with packages for nodes without a way out; empty for none."""
    micros_per_node_hour: int
    cluster: str
    """Name of the cluster; empty where nobody has given one."""

    def launch(self, key: str) -> str:
        """The folder of a launch."""
        return f"{self.root}/launches/{key}"


def options(launch: Launch, place: ClusterPaths) -> list[str]:
    """What sbatch is told.

    Raises:
        LaunchRefused: the job is meant for another cluster.
    """
    asked = Slurm.of(launch.task)
    if asked.cluster and asked.cluster != place.cluster:
        known = f"launches on {place.cluster}" if place.cluster else "has no name for its cluster"
        raise LaunchRefused(
            f"resources.infra names the Slurm cluster {asked.cluster}, and this service {known}; "
            f"write infra: slurm{f'/{place.cluster}' if place.cluster else ''}, or set HOLDFAST_SLURM_CLUSTER"
        )
    folder = place.launch(launch.key)
    return [
        f"--job-name={launch.key}",
        f"--comment={mark(place.root)}",
        f"--chdir={folder}",
        f"--output={folder}/slurm.log",
        f"--export={','.join(KEPT)}",
        *options_of(launch.task),
    ]


def mark(root: str) -> str:
    """The comment of all jobs whose books are below a folder."""
    return f"holdfast:{root}"


def pack(launch: Launch, place: ClusterPaths) -> bytes:
    """The folder of a launch as a tar.

    Raises:
        LaunchRefused: the files that it needs are not there.
        LauncherUnreachable: they could not be read this time.
    """
    files = {
        "order": (json.dumps(_order(launch, place)), 0o600),
        "job.sbatch": (_script(launch, place), 0o700),
        # The token and the secrets of the job: for its owner alone, and gone when it has ended.
        "scripts/ENVS": (exports(_variables(launch, place)), 0o600),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, (text, mode) in files.items():
            _add(tar, name, text, mode)
        _add_workdir(tar, launch.task.get("workdir"), launch.folders)
    return packed.getvalue()


def _order(launch: Launch, place: ClusterPaths) -> Mapping[str, object]:
    return {
        "key": launch.key,
        "job_id": launch.job_id,
        "first_attempt": launch.first_attempt,
        "max_failures": launch.max_failures,
        "partition": Slurm.of(launch.task).options.get("partition"),
        "micros_per_node_hour": place.micros_per_node_hour,
        # Whoever submits again says the same, though it knows the books alone.
        "options": options(launch, place),
    }


def _script(launch: Launch, place: ClusterPaths) -> str:
    folder = place.launch(launch.key)
    envs = launch.task.get("envs") or {}
    words = {
        "PROJECT_DIR": f"{folder}/workdir",
        "OFFLINE_ROOT": str(envs.get("OFFLINE_ROOT") or place.offline),
        "WORKER_DIR": place.worker,
        "LAUNCH_DIR": folder,
        "FIRST_ATTEMPT": str(launch.first_attempt),
        "HOLDFAST_JOB": launch.job_id,
    }
    return script(launch.task, (), words)


def _variables(launch: Launch, place: ClusterPaths) -> dict[str, str]:
    """Of the program; the launch's own win."""
    python = {"HOLDFAST_PYTHON": place.python} if place.python else {}
    raw = {
        **python,
        **(launch.task.get("envs") or {}),
        **launch.secrets,
        Env.JOB: launch.job_id,
        **launch.env,
    }
    env = {str(name): "" if value is None else str(value) for name, value in raw.items()}
    for name, value in env.items():
        if not name.isidentifier() or "\0" in value:
            raise LaunchRefused(f"the variable {name!r} cannot be set: no shell takes such text")
    return env


def _add(tar: tarfile.TarFile, name: str, text: str, mode: int) -> None:
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise LaunchRefused("the job holds half of a character, which cannot be written") from error
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))


def _add_workdir(tar: tarfile.TarFile, raw: Any, folders: Folders) -> None:
    """The files as they are now: edits made later change no second attempt."""
    if raw is not None and not (
        isinstance(raw, str) and Path(raw).is_absolute() and Path(raw).is_dir()
    ):
        raise LaunchRefused(f"workdir {raw!r} is not a folder of the service's machine")
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-launch-") as scratch:
            copy = Path(scratch) / "workdir"
            if raw is None:
                copy.mkdir()
            else:
                copy_workdir(Path(raw), copy, folders=folders)
            tar.add(copy, "workdir")
    except OSError as error:
        raise LauncherUnreachable(f"workdir {raw} cannot be copied: {error}") from error


PACKAGE: Final = "holdfast_worker/"
COMMAND: Final = '#!/bin/sh\nexec "${HOLDFAST_PYTHON:-python3}" -m holdfast_worker "$@"\n'


def pack_worker(wheel: Path) -> bytes:
    """A tar of the folder that the nodes have on their paths."""
    packed = io.BytesIO()
    with zipfile.ZipFile(wheel) as files, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in sorted(files.namelist()):
            if name.startswith(PACKAGE) or name.endswith("/METADATA"):
                _add_file(tar, name, files.read(name), 0o644)
        _add_file(tar, "bin/holdfast-worker", COMMAND.encode(), 0o755)
    return packed.getvalue()


def name_of(wheel: Path) -> str:
    """What a worker of this content is called, so that one that runs is never changed."""
    return hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))
