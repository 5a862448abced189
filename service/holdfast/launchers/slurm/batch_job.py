"""The files of a launch on Slurm, including its script, and of the worker.

The worker's package and command are taken from the service's own wheel; nothing is installed on the nodes.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast_worker.protocol.environment import Env

from holdfast.domain.jobfile.slurm_options import SlurmOptions
from holdfast.domain.pricing.slurm_prices import SlurmPrices
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.workdir_copy import copy_workdir
from holdfast.ports import AvoidedNode, Launch
from holdfast.rendering import batch_script, export_lines, sbatch_options

EXCLUDE: Final = "--exclude="
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
EXPORTED_ENV = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH")
"""Variables of sbatch's environment that a job inherits.
All others belong to the service or the login session."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPaths:
    """Paths of launches as the nodes see them."""

    root: str
    """Directory shared by the login node and all nodes."""
    worker: str
    """Directory of this service's version of the worker."""
    python: str
    """Python of the nodes; empty: python3 on their PATH."""
    offline: str
    """Directory with packages for nodes without internet access; empty for none."""
    prices: SlurmPrices
    cluster: str
    """Name of the cluster; empty if not configured."""

    def launch(self, key: str) -> str:
        """Return the directory of a launch."""
        return f"{self.root}/launches/{key}"


def submit_options(launch: Launch, place: ClusterPaths) -> list[str]:
    """Return the options of sbatch.

    Raises:
        LaunchRefused: the job is for another cluster.
    """
    asked = SlurmOptions.from_task(launch.task)
    if asked.cluster and asked.cluster != place.cluster:
        known = f"launches on {place.cluster}" if place.cluster else "has no name for its cluster"
        raise LaunchRefused(
            f"resources.infra names the Slurm cluster {asked.cluster}, and this service {known}; "
            f"write infra: slurm{f'/{place.cluster}' if place.cluster else ''}, or set HOLDFAST_SLURM_CLUSTER"
        )
    folder = place.launch(launch.key)
    return [
        f"--job-name={launch.key}",
        f"--comment={job_comment(place.root)}",
        f"--chdir={folder}",
        f"--output={folder}/slurm.log",
        f"--export={','.join(EXPORTED_ENV)}",
        *sbatch_options(launch.task),
    ]


def exclude_option(options: Sequence[str], avoided: Sequence[AvoidedNode]) -> list[str]:
    """Return the option of sbatch that avoids nodes besides those that the job excludes.

    Empty for a job that names its nodes, which would contradict it.
    """
    hosts = [node.host for node in avoided if _HOST.fullmatch(node.host)]
    if not hosts or any(option.startswith("--nodelist=") for option in options):
        return []
    # The last of several options counts.
    own = [option.removeprefix(EXCLUDE) for option in options if option.startswith(EXCLUDE)]
    return [EXCLUDE + ",".join(dict.fromkeys([*own, *hosts]))]


def job_comment(root: str) -> str:
    """Return the comment that marks all jobs with records below `root`."""
    return f"holdfast:{root}"


def pack(launch: Launch, place: ClusterPaths) -> bytes:
    """Pack the directory of a launch as a tar.

    Raises:
        LaunchRefused: required files are missing.
        LauncherUnreachable: a temporary failure of reading files.
    """
    files = {
        "order": (json.dumps(_order(launch, place)), 0o600),
        "job.sbatch": (_script(launch, place), 0o700),
        # Contains the token and the secrets of the job: readable by the owner only, and deleted after the end.
        "scripts/ENVS": (export_lines(_variables(launch, place)), 0o600),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, (text, mode) in files.items():
            _add(tar, name, text, mode)
        _add_workdir(tar, launch.task.get("workdir"), launch.folders)
    return packed.getvalue()


def _order(launch: Launch, place: ClusterPaths) -> Mapping[str, object]:
    asked = SlurmOptions.from_task(launch.task)
    return {
        "key": launch.key,
        "job_id": launch.job_id,
        "first_attempt": launch.first_attempt,
        "max_failures": launch.max_failures,
        "min_nodes": int((launch.task.get("envs") or {}).get(Env.MIN_NODES) or 0),
        "cluster": place.cluster,
        "partition": asked.options.get("partition"),
        "qos": asked.qos,
        "is_spot": asked.is_spot,
        # As they are now, so that a later change of the settings does not change a bill.
        "micros_per_node_hour": place.prices.default_micros,
        "prices": dict(place.prices.by_place),
        # A later submission repeats these options, although it reads only the records.
        "options": submit_options(launch, place),
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
    return batch_script(launch.task, (), words)


def _variables(launch: Launch, place: ClusterPaths) -> dict[str, str]:
    """Return the variables of the program; the launch's own take precedence."""
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
            raise LaunchRefused(f"the variable {name!r} is not valid in a shell and cannot be set")
    return env


def _add(tar: tarfile.TarFile, name: str, text: str, mode: int) -> None:
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise LaunchRefused(
            "the job contains half of a surrogate pair, which cannot be encoded as UTF-8"
        ) from error
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))


def _add_workdir(tar: tarfile.TarFile, raw: Any, folders: Folders) -> None:
    """Add the files as they are now, so that later edits do not change further attempts."""
    if raw is not None and not (
        isinstance(raw, str) and Path(raw).is_absolute() and Path(raw).is_dir()
    ):
        raise LaunchRefused(f"workdir {raw!r} is not a directory on the service's machine")
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-launch-") as scratch:
            copy = Path(scratch) / "workdir"
            if raw is None:
                copy.mkdir()
            else:
                copy_workdir(Path(raw), copy, folders=folders)
            tar.add(copy, "workdir")
    except OSError as error:
        raise LauncherUnreachable(f"cannot copy workdir {raw}: {error}") from error


PACKAGE: Final = "holdfast_worker/"
COMMAND: Final = '#!/bin/sh\nexec "${HOLDFAST_PYTHON:-python3}" -m holdfast_worker "$@"\n'


def pack_worker(wheel: Path) -> bytes:
    """Pack the worker's directory, which is on the nodes' paths, as a tar."""
    packed = io.BytesIO()
    with zipfile.ZipFile(wheel) as files, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in sorted(files.namelist()):
            if name.startswith(PACKAGE) or name.endswith("/METADATA"):
                _add_file(tar, name, files.read(name), 0o644)
        _add_file(tar, "bin/holdfast-worker", COMMAND.encode(), 0o755)
    return packed.getvalue()


def worker_digest(wheel: Path) -> str:
    """Return the worker's directory name.

    It derives from the content, so that a running worker never changes.
    """
    return hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))
