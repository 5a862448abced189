"""A launch becomes the task that SkyPilot is handed: what only this launch knows is laid over the stored rendering."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from holdfast_worker.protocol.environment import Env

from holdfast.domain.jobfile.confinement import sources_of
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.workdir_copy import copy_workdir
from holdfast.ports import Launch
from holdfast.rendering import dump, with_launch_values

TOKEN_ENV: Final = "HOLDFAST_ADMISSION"  # noqa: S105 - the name of a variable
"""Holds the launch token, which the admission gate looks for."""
NUDGE_ENV: Final = "HOLDFAST_NUDGE"
"""Holds the address that SkyPilot's controller calls at each turn of a job."""

_CALLBACK: Final = f'[ -z "${NUDGE_ENV}" ] || curl --silent --max-time 2 --output /dev/null --request POST "${NUDGE_ENV}" || true'


@dataclass(frozen=True, slots=True)
class Files:
    """The folders of this machine that a launch sends to its nodes."""

    root: Path

    def workdir(self, key: str, source: str | None, folders: Folders = Folders()) -> Path | None:
        """The user's folder as it was when the launch was first submitted; None if there is none.

        Raises:
            LaunchRefused: it is not there, or may not be read.
            LauncherUnreachable: it could not be copied this time; a full disk counts as that, as it may not stay full.
        """
        if source is None:
            return None
        there = self._workdirs / key
        if there.exists():
            return there
        if not Path(source).is_dir():
            raise LaunchRefused(f"workdir {source} is not a folder of the service's machine")
        draft = self._workdirs / f".{key}.{token_hex(4)}"
        try:
            copy_workdir(Path(source), draft, without=(self.root,), folders=folders)
            draft.rename(there)
        except OSError as error:
            # Another replica may be copying it, too: the first whole copy is what the launch sends, whosever it is.
            if not there.exists():
                raise LauncherUnreachable(f"workdir {source} cannot be copied: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return there

    def kept(self) -> set[str]:
        """The launches of which there is something, be it a piece that a crash in the middle of a copy has left."""
        return {path.name.lstrip(".").partition(".")[0] for path in self._workdirs.glob("*")}

    def remove(self, keys: Iterable[str]) -> None:
        """Keep nothing of these launches any longer."""
        for key in keys:
            for path in (self._workdirs / key, *self._workdirs.glob(f".{key}.*")):
                shutil.rmtree(path, ignore_errors=True)

    @property
    def _workdirs(self) -> Path:
        return self.root / "workdirs"


def write(
    launch: Launch,
    *,
    name: str,
    token: str | None,
    nudge_url: str | None,
    workdir: Path | None,
    wheelhouse: Path,
) -> dict[str, Any]:
    """The SkyPilot task of a launch.

    What must stay secret goes where SkyPilot does not show it. The launch token may be seen: it is good for one launch
    of this very task, and used up by it.
    """
    envs = {str(name): value for name, value in (launch.task.get("envs") or {}).items()}
    own = _hidden(envs) if launch.folders.is_confined else {}
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
    # The user's callback comes second, and whether it works is its own affair.
    task["event_callback"] = f"{_CALLBACK}\n{callback}" if callback else _CALLBACK
    return task


def _hidden(envs: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a confined job that are handed over as secrets; nodes get both kinds alike.

    SkyPilot's server exports `envs` to the shell that runs `event_callback`, where HISTFILE or LD_PRELOAD would write or run
    there what a user wants. It does not export `secrets`.
    """
    return {
        name: "" if value is None else str(value)
        for name, value in envs.items()
        if not name.startswith("HOLDFAST_")
    }


def body(task: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The body of SkyPilot's launch request."""
    return {"task": dump(task), "name": name}


def check_mounts(launch: Launch) -> None:
    """Refuse a launch that mounts what its job may not use.

    Raises:
        LaunchRefused: a source is in a folder of this machine that is not for this job.
    """
    for path in local_folders({"file_mounts": launch.task.get("file_mounts")}):
        if why := launch.folders.refusal(path):
            raise LaunchRefused(f"file_mounts: {path} {why}")


def local_folders(task: Mapping[str, Any]) -> list[Path]:
    """What of this machine a task mentions: its workdir, and the sources of its mounts that are no buckets."""
    mounted = (source for _, source in sources_of(task.get("file_mounts") or {}))
    sources = (task.get("workdir"), *mounted)
    return [Path(item) for item in sources if isinstance(item, str) and item.startswith("/")]
