"""From an order to a running supervisor: at most once, whoever tries and wherever a try dies.

The way of a submit:
    take the lock        another submitter has it: wait for what becomes of it
    look again           begun or cancelled meanwhile: nothing to do
    prepare              all that an earlier try has left is made anew
    start                the supervisor inherits the lock, and finds its order on standard input; from here it lives by itself
    wait                 until it has written its first line, after which nobody begins again
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
from holdfast.launchers.local.event_log import begun
from holdfast.launchers.local.launch_dir import LaunchFolder
from holdfast.launchers.local.launch_spec import LaunchSpec
from holdfast.launchers.local.sandbox import Sandboxes
from holdfast.launchers.workdir_copy import copy_workdir
from holdfast.ports import Launch

LIMIT_S: Final = 60.0
"""For another submitter, or for the supervisor to begin. Smaller: a busy machine looks unreachable. Bigger: the
service waits longer for a launch that hangs."""
PAUSE_S: Final = 0.02
UMASK: Final = int(
    re.findall(r"^Umask:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)[0], 8
)
"""Of whoever started this process. The service's own files are private; those of the owner's jobs are what they always were."""


def submit(
    folder: LaunchFolder,
    launch: Launch,
    climate: MarketParameters,
    home: Path,
    cells: Sandboxes | None,
) -> None:
    """See to it that the launch has begun, unless it has been cancelled.

    Raises:
        LaunchRefused: this machine can never start it.
        LauncherUnreachable: it is not known to have begun; a full disk counts as that, as it may not stay full.
    """
    if _settled(folder):
        return  # Before anything can be refused: the files of a launch that runs may be gone by now.
    order = LaunchSpec.of(launch, climate, cells)
    try:
        folder.create()
        holder = _turn(folder)
        if holder is None:
            return
        try:
            if _settled(folder):
                return
            _prepare(folder, order.workdir, home, launch.folders)
            if order.cell:
                folder.keep_nodes_in(order.cell.make())
                folder.keep_group(order.cell.group)
            _start(folder, order, holder)
        finally:
            os.close(holder)
    except (OSError, shutil.Error, subprocess.CalledProcessError) as error:
        raise LauncherUnreachable(f"the launch could not be prepared: {error}") from error
    _await_begin(folder)


def _settled(folder: LaunchFolder) -> bool:
    return folder.entombed_at() is not None or begun(folder.history.read())


def _turn(folder: LaunchFolder) -> int | None:
    """The lock, once it is our turn; None when there is nothing left to do."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if _settled(folder):
            return None
        if (holder := launch_dir.take(folder.lock)) is not None:
            return holder
        time.sleep(PAUSE_S)
    raise LauncherUnreachable("another service has been preparing this launch for a minute")


def _prepare(folder: LaunchFolder, workdir: str | None, home: Path, folders: Folders) -> None:
    shutil.rmtree(folder.snapshot, ignore_errors=True)
    if workdir is None:
        folder.snapshot.mkdir()
    else:
        # The home may lie in the workdir, or be it: a copy must not take secrets along, or eat itself.
        left_out = {home, home / "launches"}
        copy_workdir(Path(workdir), folder.snapshot, without=left_out, folders=folders)
    folder.spool.mkdir(exist_ok=True)


def _start(folder: LaunchFolder, order: LaunchSpec, holder: int) -> None:
    """Start the supervisor in a session of its own, as nobody's child: it stays when the service goes.

    Its order is a file in memory, since secrets must not outlive their launch on a disk. A pipe would break in the
    middle if the service died there.
    """
    with os.fdopen(os.memfd_create("order"), "w+") as handed, folder.log.open("ab") as log:
        handed.write(order.json())
        handed.seek(0)
        subprocess.run(
            [
                *("setsid", "--fork", sys.executable, "-P"),
                *("-m", "holdfast.launchers.local.supervisor", str(folder.path), str(holder)),
            ],
            cwd=folder.path,
            env=environment.of_supervisor(folder),
            stdin=handed,
            stdout=log,
            stderr=log,
            pass_fds=(holder,),
            check=True,
            umask=UMASK,
        )


def _await_begin(folder: LaunchFolder) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        # In this order: a supervisor that has come and gone has left a history.
        died = launch_dir.is_free(folder.lock)
        if begun(folder.history.read()):
            return
        if died:
            break
        time.sleep(PAUSE_S)
    last = folder.log.read_text(errors="replace").strip().splitlines()[-1:]
    raise LauncherUnreachable(" ".join(["its supervisor did not start:", *last]))
