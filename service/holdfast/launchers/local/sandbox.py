"""The cell of a confined job: an account, folders and limits of its own on this machine.

Only root can give a process to another account. Each job gets one by its number, without a name, so that no job can read,
signal or trace the processes and files of another, or those of the service.
"""

from __future__ import annotations

import hashlib
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.errors import LaunchRefused
from holdfast.launchers.local import process_cleanup
from holdfast.launchers.local.cgroup import ControlGroup, ControlGroups

FIRST_ACCOUNT: Final = 0x70000000
"""Above what distributions, containers and systemd hand out, and below the sign bit."""
ACCOUNTS: Final = 0x0FFFFFFE
"""So many that two jobs at once do not meet in one: one in 27,000 for a hundred of them."""
KEPT: Final = frozenset(
    {
        *("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TERM"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "LD_LIBRARY_PATH"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    }
)
"""Of the service's environment, what such a job inherits: where programs, devices and certificates are, and no keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandboxes:
    """Where confined jobs live, and what each may take."""

    folder: Path
    memory_bytes: int | None
    """Of a job where there are groups, of each process where there are none; None: no limit."""
    processes: int
    groups: ControlGroups = field(
        default_factory=lambda: ControlGroups(None, "it is not asked for")
    )

    @property
    def shares(self) -> str:
        """What confined jobs share on this machine, and what bounds each."""
        if self.memory_bytes is None:
            memory = "without a limit of memory, as HOLDFAST_LOCAL_MEMORY_GB is not set"
        elif self.groups.folder:
            memory = f"each with {self.memory_bytes / 2**30:g} GiB in all, by {self.groups.folder}"
        else:
            each = f"with {self.memory_bytes / 2**30:g} GiB for each process and none for the job"
            memory = f"{each}, as {self.groups.lack}"
        return f"the network, the disks and the GPUs of this machine; they run {memory}"

    def of_launch(self, key: str, job_id: str) -> Sandbox:
        """The cell of a launch.

        Raises:
            LaunchRefused: this service cannot give a job an account of its own.
        """
        if os.geteuid() != 0:
            raise LaunchRefused(
                "the service does not run as root, so that users' jobs cannot be confined on this machine"
            )
        digest = hashlib.sha256(job_id.encode()).digest()
        account = FIRST_ACCOUNT + int.from_bytes(digest[:8]) % ACCOUNTS
        return Sandbox(
            account,
            str(self.folder / key),
            self.memory_bytes,
            self.processes,
            self.groups.path(key),
        )


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One launch's cell."""

    account: int
    """Number of its user and group."""
    folder: str
    """Where its nodes have their files."""
    memory_bytes: int | None
    processes: int
    group: str | None = None
    """Its control group; None: each process is limited by itself."""

    def make(self) -> Path:
        """The folder, which only the job's account passes through, and which it does not list.

        Raises:
            LaunchRefused: the folder is closed to other accounts.
        """
        folder = Path(self.folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        # Process lists show every account the names of launches, and scripts and logs in here are readable to all.
        os.chown(folder, -1, self.account)
        folder.chmod(0o710)
        folder.parent.chmod(0o711)
        for above in folder.parents:
            if not above.stat().st_mode & 0o001:
                raise LaunchRefused(
                    f"{above} is closed to other accounts, so that users' jobs cannot run below {folder.parent}; "
                    "set HOLDFAST_LOCAL_FOLDER to another folder"
                )
        return folder

    def give(self, *paths: Path) -> None:
        """Make what is at these paths, and below, the account's own. No link is followed."""
        for path in paths:
            os.chown(path, self.account, self.account, follow_symlinks=False)
            if path.is_symlink() or not path.is_dir():
                continue
            path.chmod(0o700)
            for _, folders, files, here in os.fwalk(path):
                for name in (*folders, *files):
                    os.chown(name, self.account, self.account, dir_fd=here, follow_symlinks=False)

    def begin(self) -> None:
        """Make the control group, if there is one.

        Raises:
            OSError: it cannot be made this time.
        """
        if self.group:
            ControlGroup(Path(self.group)).make(
                memory_bytes=self.memory_bytes, processes=self.processes
            )

    def end(self) -> str:
        """Remove the control group with all that is in it; why processes were killed in it, or nothing."""
        if not self.group:
            return ""
        group = ControlGroup(Path(self.group))
        was_full = group.was_full
        group.end()
        return "the job used more memory than HOLDFAST_LOCAL_MEMORY_GB allows" if was_full else ""

    def enter(self) -> None:
        """Take on group, account and limits. For a process of the service's own that is about to become the program."""
        if self.group:
            ControlGroup(Path(self.group)).join()
        os.setgroups([])
        os.setresgid(self.account, self.account, self.account)
        os.setresuid(self.account, self.account, self.account)
        os.umask(0o077)
        process_cleanup.gain_no_privileges()
        resource.setrlimit(resource.RLIMIT_NPROC, (self.processes, self.processes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self.memory_bytes is not None and not self.group:
            resource.setrlimit(resource.RLIMIT_DATA, (self.memory_bytes, self.memory_bytes))


def inherited(environment: Callable[[str], str | None]) -> dict[str, str]:
    """What a confined job inherits, of what `environment` says of each name."""
    return {name: value for name in sorted(KEPT) if (value := environment(name)) is not None}
