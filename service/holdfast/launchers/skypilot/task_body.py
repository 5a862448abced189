"""Builds the task of a launch request: the stored rendering plus values of this launch."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from holdfast_worker.protocol.environment import Env

from holdfast.domain.jobfile.confinement import sources_of
from holdfast.domain.jobfile.places import with_zones_last
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.workdir_copy import copy_workdir
from holdfast.ports import AvoidedNode, Launch
from holdfast.rendering import dump, with_launch_values

TOKEN_ENV: Final = "HOLDFAST_ADMISSION"  # noqa: S105 - the name of a variable
"""Variable with the launch token that the admission gate checks."""
NUDGE_ENV: Final = "HOLDFAST_NUDGE"
"""Variable with the address that SkyPilot's controller calls at each event of a job."""

_CALLBACK: Final = f'[ -z "${NUDGE_ENV}" ] || curl --silent --max-time 2 --output /dev/null --request POST "${NUDGE_ENV}" || true'


@dataclass(frozen=True, slots=True)
class WorkdirCopies:
    """Copies of local directories that launches send to their nodes."""

    root: Path

    def workdir(self, key: str, source: str | None, folders: Folders = Folders()) -> Path | None:
        """Copy the user's directory at the first submission; return the copy, None without one.

        Raises:
            LaunchRefused: the directory is missing or not readable.
            LauncherUnreachable: the copy failed. This includes a full disk, which may be temporary.
        """
        if source is None:
            return None
        there = self._workdirs / key
        if there.exists():
            return there
        if not Path(source).is_dir():
            raise LaunchRefused(f"workdir {source} is not a directory on the service's machine")
        draft = self._workdirs / f".{key}.{token_hex(4)}"
        try:
            copy_workdir(Path(source), draft, without=(self.root,), folders=folders)
            draft.rename(there)
        except OSError as error:
            # Another replica may be copying as well: the launch sends the first complete copy.
            if not there.exists():
                raise LauncherUnreachable(f"cannot copy workdir {source}: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return there

    def launch_keys(self) -> set[str]:
        """Return the launches that have a copy, including incomplete ones left by a crash."""
        return {path.name.lstrip(".").partition(".")[0] for path in self._workdirs.glob("*")}

    def remove(self, keys: Iterable[str]) -> None:
        """Delete the copies of these launches."""
        for key in keys:
            for path in (self._workdirs / key, *self._workdirs.glob(f".{key}.*")):
                shutil.rmtree(path, ignore_errors=True)

    @property
    def _workdirs(self) -> Path:
        return self.root / "workdirs"


def build_task(
    launch: Launch,
    *,
    name: str,
    token: str | None,
    nudge_url: str | None,
    workdir: Path | None,
    wheelhouse: Path,
) -> dict[str, Any]:
    """Build the SkyPilot task of a launch.

    Secrets go where SkyPilot does not display them. The launch token may be visible: it is valid once, for this task
    only.
    """
    envs = {str(name): value for name, value in (launch.task.get("envs") or {}).items()}
    own = _as_secrets(envs) if launch.folders.is_confined else {}
    secrets = {**own, **launch.secrets, Env.TOKEN.value: launch.env.get(Env.TOKEN, "")}
    task = with_launch_values(launch.task, secrets=secrets, wheelhouse=wheelhouse)
    open_env = {str(k): v for k, v in launch.env.items() if k != Env.TOKEN}
    marks = {TOKEN_ENV: token, NUDGE_ENV: nudge_url}
    task["name"] = name
    task["envs"] = {
        **{name: value for name, value in envs.items() if name not in own},
        **open_env,
        **{key: value for key, value in marks.items() if value},
    }
    if workdir is not None:
        task["workdir"] = str(workdir)
    callback = task.get("event_callback")
    # The user's callback runs second and may fail without effect on ours.
    task["event_callback"] = f"{_CALLBACK}\n{callback}" if callback else _CALLBACK
    return task


def with_avoided_last(task: Mapping[str, Any], avoided: Sequence[AvoidedNode]) -> Mapping[str, Any]:
    """Return the task with the zones of nodes that it avoids as its last choice."""
    zones = [(node.cloud, node.zone) for node in avoided if node.zone]
    resources = task.get("resources")
    if not zones or not isinstance(resources, dict):
        return task
    return {**task, "resources": with_zones_last(resources, zones)}


def _as_secrets(envs: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a confined job that are passed as secrets.

    Nodes receive both kinds alike.

    SkyPilot's server exports `envs` to the shell that runs `event_callback`, where HISTFILE or LD_PRELOAD would let a user write or run code
    there. It does not export `secrets`.
    """
    return {
        name: "" if value is None else str(value)
        for name, value in envs.items()
        if not name.startswith("HOLDFAST_")
    }


def request_body(task: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Build the body of SkyPilot's launch request."""
    return {"task": dump(task), "name": name}


def check_mounts(launch: Launch) -> None:
    """Reject a launch that mounts paths its job may not use.

    Raises:
        LaunchRefused: a source is in a directory of this machine that the job may not use.
    """
    for path in local_folders({"file_mounts": launch.task.get("file_mounts")}):
        if why := launch.folders.refusal(path):
            raise LaunchRefused(f"file_mounts: {path} {why}")


def local_folders(task: Mapping[str, Any]) -> list[Path]:
    """Return a task's local paths: its workdir and the sources of mounts that are not buckets."""
    mounted = (source for _, source in sources_of(task.get("file_mounts") or {}))
    sources = (task.get("workdir"), *mounted)
    return [Path(item) for item in sources if isinstance(item, str) and item.startswith("/")]
