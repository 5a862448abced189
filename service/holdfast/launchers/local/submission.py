"""Starts a launch's supervisor at most once, despite concurrent submitters and crashes.

Steps of a submission:
    lock     if another submitter holds the lock, wait for its result
    check    if the launch has started or was cancelled, return
    prepare  remove files of an earlier submission and create them again
    start    the supervisor inherits the lock, reads its spec from standard input and runs independently
    wait     until the supervisor has written its first entry, after which the launch cannot start again
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import LauncherUnreachable
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.local import environment, launch_dir
from holdfast.launchers.local.event_log import has_started
from holdfast.launchers.local.launch_dir import LaunchDir
from holdfast.launchers.local.launch_spec import LaunchSpec
from holdfast.launchers.local.sandbox import Sandboxes
from holdfast.launchers.workdir_copy import copy_workdir
from holdfast.ports import Launch

LIMIT_S: Final = 60.0
"""Limit for another submitter, and for the supervisor to start.
With a lower value, a busy machine appears unreachable; a higher value makes the service wait longer for a launch
that hangs."""
PAUSE_S: Final = 0.02
UMASK: Final = int(
    re.findall(r"^Umask:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)[0], 8
)
"""The umask this process was started with.
The service's own files are private; those of the owner's jobs keep this umask."""


def submit(
    folder: LaunchDir,
    launch: Launch,
    market: MarketParameters,
    home: Path,
    sandboxes: Sandboxes | None,
    *,
    restart_s: float = 0,
) -> None:
    """Start the launch unless it has started or was cancelled.

    Raises:
        LaunchRefused: this machine can never start it.
        LauncherUnreachable: it is unknown whether the launch has started. This includes a full disk, which may be
        temporary.
    """
    if _is_started_or_cancelled(folder):
        return  # Checked before anything can be refused: the files of a running launch may have been deleted.
    spec = LaunchSpec.from_launch(launch, market, sandboxes, restart_s)
    try:
        folder.create()
        holder = _acquire_lock(folder)
        if holder is None:
            return
        try:
            if _is_started_or_cancelled(folder):
                return
            _prepare(folder, spec.workdir, home, launch.folders)
            if spec.cell:
                folder.link_attempts(spec.cell.create_dir())
                folder.link_cgroup(spec.cell.group)
            _start(folder, spec, holder)
        finally:
            os.close(holder)
    except (OSError, shutil.Error, subprocess.CalledProcessError) as error:
        raise LauncherUnreachable(f"cannot prepare the launch: {error}") from error
    _wait_for_start(folder)


def _is_started_or_cancelled(folder: LaunchDir) -> bool:
    return folder.cancelled_at() is not None or has_started(folder.history.read())


def _acquire_lock(folder: LaunchDir) -> int | None:
    """Wait for the lock and return it; None if the launch has started or was cancelled."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if _is_started_or_cancelled(folder):
            return None
        if (holder := launch_dir.acquire_lock(folder.lock)) is not None:
            return holder
        time.sleep(PAUSE_S)
    raise LauncherUnreachable(
        f"another service has held the lock of this launch for {LIMIT_S:.0f} s"
    )


def _prepare(folder: LaunchDir, workdir: str | None, home: Path, folders: Folders) -> None:
    shutil.rmtree(folder.snapshot, ignore_errors=True)
    if workdir is None:
        folder.snapshot.mkdir()
    else:
        # The home may be in the workdir or equal to it. The copy must contain no secrets and not itself.
        left_out = {home, home / "launches"}
        copy_workdir(Path(workdir), folder.snapshot, without=left_out, folders=folders)
    folder.spool.mkdir(exist_ok=True)


def _start(folder: LaunchDir, spec: LaunchSpec, holder: int) -> None:
    """Start the supervisor in its own session, detached, so that it outlives the service.

    The spec is passed as a file in memory, because secrets must not remain on disk after the launch. A pipe would break
    if the service died while writing.
    """
    with os.fdopen(os.memfd_create("order"), "w+") as handed, folder.log.open("ab") as log:
        handed.write(spec.json())
        handed.seek(0)
        subprocess.run(
            [
                *("setsid", "--fork", sys.executable, "-P"),
                *("-m", "holdfast.launchers.local.supervisor", str(folder.path), str(holder)),
            ],
            cwd=folder.path,
            env=environment.supervisor_env(folder),
            stdin=handed,
            stdout=log,
            stderr=log,
            pass_fds=(holder,),
            check=True,
            umask=UMASK,
        )


def _wait_for_start(folder: LaunchDir) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        # The lock is read first: a supervisor that has come and ended has left a log.
        died = launch_dir.is_unlocked(folder.lock)
        if has_started(folder.history.read()):
            return
        if died:
            break
        time.sleep(PAUSE_S)
    last = folder.log.read_text(errors="replace").strip().splitlines()[-1:]
    raise LauncherUnreachable(" ".join(["the supervisor did not start:", *last]))
