"""Sandbox of a confined job: its own account, directories and limits on this machine.

Only root can switch a process to another account. Each job gets a numeric account without a name, so that it cannot
read, signal or trace processes and files of other jobs or of the service.
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

FIRST_UID: Final = 0x70000000
"""Above the ids of distributions, containers and systemd, and below the sign bit."""
UID_COUNT: Final = 0x0FFFFFFE
"""Number of accounts. Among 100 concurrent jobs, the probability that two share one is 1 in 54,000."""
INHERITED_ENV: Final = frozenset(
    {
        *("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TERM"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "LD_LIBRARY_PATH"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    }
)
"""Variables that confined jobs inherit: paths of programs, devices and certificates.
They include no credentials."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandboxes:
    """Directory and limits of confined jobs."""

    folder: Path
    memory_bytes: int | None
    """Limit per job with control groups, otherwise per process. None: no limit."""
    processes: int
    groups: ControlGroups = field(
        default_factory=lambda: ControlGroups(None, "control groups are not enabled")
    )

    @property
    def shared_resources(self) -> str:
        """Describe what confined jobs share on this machine, and their limits."""
        if self.memory_bytes is None:
            memory = "without a memory limit, because HOLDFAST_LOCAL_MEMORY_GB is not set"
        elif self.groups.folder:
            memory = f"each with {self.memory_bytes / 2**30:g} GiB in total, enforced by {self.groups.folder}"
        else:
            each = f"with {self.memory_bytes / 2**30:g} GiB per process but no limit per job"
            memory = f"{each}, because {self.groups.unavailable_reason}"
        return f"the network, the disks and the GPUs of this machine; they run {memory}"

    def for_launch(self, key: str, job_id: str) -> Sandbox:
        """Return the sandbox of a launch.

        Raises:
            LaunchRefused: this service cannot give a job its own account.
        """
        if os.geteuid() != 0:
            raise LaunchRefused(
                "users' jobs cannot be confined on this machine, because the service does not run as root"
            )
        digest = hashlib.sha256(job_id.encode()).digest()
        account = FIRST_UID + int.from_bytes(digest[:8]) % UID_COUNT
        return Sandbox(
            account,
            str(self.folder / key),
            self.memory_bytes,
            self.processes,
            self.groups.path(key),
        )


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox of one launch."""

    account: int
    """Id of its user and group."""
    folder: str
    """Directory of its nodes' files."""
    memory_bytes: int | None
    processes: int
    group: str | None = None
    """Control group of the launch; None: each process is limited separately."""

    def create_dir(self) -> Path:
        """Create the directory, which only the job's account can enter, and which it cannot list.

        Raises:
            LaunchRefused: a parent directory is closed to other accounts.
        """
        folder = Path(self.folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        # Process lists show launch names to every account, and scripts and logs in here are world-readable.
        os.chown(folder, -1, self.account)
        folder.chmod(0o710)
        folder.parent.chmod(0o711)
        for above in folder.parents:
            if not above.stat().st_mode & 0o001:
                raise LaunchRefused(
                    f"{above} is closed to other accounts, so users' jobs cannot run below {folder.parent}; "
                    "set HOLDFAST_LOCAL_FOLDER to another directory"
                )
        return folder

    def chown(self, *paths: Path) -> None:
        """Make the account the owner of these paths and everything below, without following links."""
        for path in paths:
            os.chown(path, self.account, self.account, follow_symlinks=False)
            if path.is_symlink() or not path.is_dir():
                continue
            path.chmod(0o700)
            for _, folders, files, here in os.fwalk(path):
                for name in (*folders, *files):
                    os.chown(name, self.account, self.account, dir_fd=here, follow_symlinks=False)

    def create_cgroup(self) -> None:
        """Create the control group, if the sandbox has one.

        Raises:
            OSError: a temporary failure.
        """
        if self.group:
            ControlGroup(Path(self.group)).create(
                memory_bytes=self.memory_bytes, processes=self.processes
            )

    def remove_cgroup(self) -> str:
        """Remove the control group and its processes.

        Return why processes were killed in it, or an empty text.
        """
        if not self.group:
            return ""
        group = ControlGroup(Path(self.group))
        was_full = group.hit_memory_limit
        group.remove()
        return "the job used more memory than HOLDFAST_LOCAL_MEMORY_GB allows" if was_full else ""

    def enter(self) -> None:
        """Switch this process to the sandbox's group, account and limits.

        Called just before it becomes the program.
        """
        if self.group:
            ControlGroup(Path(self.group)).join()
        os.setgroups([])
        os.setresgid(self.account, self.account, self.account)
        os.setresuid(self.account, self.account, self.account)
        os.umask(0o077)
        process_cleanup.set_no_new_privs()
        resource.setrlimit(resource.RLIMIT_NPROC, (self.processes, self.processes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self.memory_bytes is not None and not self.group:
            resource.setrlimit(resource.RLIMIT_DATA, (self.memory_bytes, self.memory_bytes))


def inherited_env(environment: Callable[[str], str | None]) -> dict[str, str]:
    """Return the variables a confined job inherits, looked up in `environment`."""
    return {
        name: value for name in sorted(INHERITED_ENV) if (value := environment(name)) is not None
    }
