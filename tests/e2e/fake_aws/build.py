"""Builds SkyPilot's environment and the image of a host, again when a lock file changes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.fake_aws.cgroup import all_cgroups
from e2e.fake_aws.paths import CHECKOUT, HERE, Paths

PROGRAMS = {  # Program on PATH: the Debian package that provides it.
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "sudo": "sudo",
    "rsync": "rsync",
    "socat": "socat",
    "nc": "netcat-openbsd",
    "fusermount3": "fuse3",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "curl": "curl",
    "lsof": "lsof",
    "patch": "patch",
    "ps": "procps",
}
DISK_BYTES = 24 << 30
"""Size of a sparse file.

Hosts write some 200 MB each; a small disk ends a long test run, and a large one costs nothing.
"""
LOCKS = (
    CHECKOUT / "requirements-skypilot.lock",
    HERE / "requirements.lock",
    CHECKOUT / "tests/support/skypilot/requirements.lock",
)
"""What SkyPilot's environment consists of, for the hosts and for the tests of its optimizer."""
HIDDEN = ("/dev", "/mnt", "/proc", "/run", "/sys", "/tmp")
"""Directories that host_init.sh mounts separately on each host."""
NOT_FOR_HOSTS = ("holdfast", "_holdfast", "__pycache__", "pip", "distutils-precedence")


class CannotBuild(Exception):
    """Raised for a missing requirement that a build cannot install."""


def build(paths: Paths) -> None:
    """Build the missing parts; a complete build is only checked.

    Raises:
        CannotBuild: not root, a Debian package is missing, or the file systems are unsuitable.
    """
    _demand_root()
    _demand_one_file_system(paths)
    with _alone(paths):
        _install_packages()
        _environment(paths)
    with _alone(
        paths
    ):  # A process that waits only for the environment need not wait for the image.
        mount(paths)
        _image(paths)


def build_environment(paths: Paths) -> None:
    """Build only SkyPilot's environment, which requires neither root nor Debian packages."""
    with _alone(paths):
        _environment(paths)


@contextmanager
def _alone(paths: Paths) -> Iterator[None]:
    """Wait until no other process builds in the same folder."""
    paths.folder.mkdir(parents=True, exist_ok=True)
    with (paths.folder / "build.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def mount(paths: Paths) -> None:
    """Mount the disk of the hosts, and create it if necessary."""
    paths.mount.mkdir(parents=True, exist_ok=True)
    if paths.mount.is_mount():
        return
    if not paths.disk.exists():
        blank = paths.disk.with_suffix(".new")
        with blank.open("wb") as file:
            file.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", blank], check=True)
        blank.rename(paths.disk)
    subprocess.run(["mount", "-o", "loop,discard", paths.disk, paths.mount], check=True)


def is_built(paths: Paths) -> bool:
    """Whether SkyPilot's environment matches its lock files."""
    return _stamp(paths.venv) == _wanted_environment()


def _demand_root() -> None:
    if os.geteuid() != 0:
        raise CannotBuild("needs root: for network namespaces, overlay file systems and mounts")


def _demand_one_file_system(paths: Paths) -> None:
    """Require the folder on the root file system, the only one of this machine that hosts see."""
    demand_visible(paths.folder, _base_python())
    paths.folder.mkdir(parents=True, exist_ok=True)
    for path in (paths.folder, _base_python()):
        if path.stat().st_dev != Path("/").stat().st_dev:
            raise CannotBuild(
                f"{path} is not on the root file system, which is all that hosts see of this machine"
            )


def demand_visible(*paths: Path) -> None:
    """Return if hosts see all these paths.

    Raises:
        CannotBuild: one of them is below a directory that every host mounts separately.
    """
    for path in paths:
        own = next((top for top in HIDDEN if path.resolve().is_relative_to(top)), None)
        if own:
            raise CannotBuild(
                f"{path} is below {own}, of which every host has its own, so hosts would not find it;"
                " have HOLDFAST_SKYCLOUD, and Python, in another folder such as one below /srv or /var/tmp"
            )


def _install_packages() -> None:
    folders = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = sorted({p for name, p in PROGRAMS.items() if not shutil.which(name, path=folders)})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise CannotBuild(f"these programs' Debian packages are missing: {' '.join(missing)}")
    print(f"installing from Debian: {' '.join(missing)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        result = subprocess.run(
            ["apt-get", "-qq", *words], env=quiet, stdout=subprocess.DEVNULL, check=False
        )
        if result.returncode != 0:
            raise CannotBuild(f"apt-get could not install: {' '.join(missing)}")


def _environment(paths: Paths) -> None:
    """Build SkyPilot's virtual environment."""
    if _stamp(paths.venv) == _wanted_environment():
        return
    print("installing SkyPilot; the first time takes some minutes")
    python = paths.venv / "bin" / "python"
    if not python.exists():
        subprocess.run([_base_python(), "-m", "venv", paths.venv], check=True)
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    subprocess.run([*pip, *(word for lock in LOCKS for word in ("-r", lock))], check=True)
    packages = _packages_of(python)
    shutil.copy(HERE / "probe.py", packages / "skycloud_probe.py")
    (packages / "skycloud_probe.pth").write_text("import skycloud_probe\n")
    _set_stamp(paths.venv, _wanted_environment())


def _image(paths: Paths) -> None:
    """Build the upper layer of every host's root in a chroot over this machine's root."""
    packages = _packages_for_hosts()
    wanted = _wanted_image(packages)
    if _stamp(paths.golden) == wanted:
        return
    if any(pen.pids for pen in all_cgroups()):
        raise CannotBuild("the image has changed, but hosts run from it; stop them with: down")
    print("building the image of the hosts; takes some minutes")
    parts = paths.folder / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    for name in ("host.lock", "sshd_config", "image.sh"):
        shutil.copy(HERE / name, parts)
    for name in ("uv", "rclone"):
        shutil.copy(paths.venv / "bin" / name, parts)
    (parts / "packages").write_text("\n".join(packages) + "\n")
    _skypilot_parts(paths, parts)

    new = paths.mount / "golden.new"
    shutil.rmtree(new, ignore_errors=True)
    for folder in ("upper", "work", "root"):
        (new / folder).mkdir(parents=True)
    # A separate mount namespace: its mounts disappear with it, however it ends.
    words = [HERE / "chroot.sh", new, _base_python(), parts, sysconfig.get_path("purelib")]
    log = paths.folder / "build.log"
    with log.open("wb") as file:
        made = subprocess.run(
            ["unshare", "--mount", "bash", *words],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    if made.returncode != 0:
        raise CannotBuild(f"the image could not be made; {log} ends with:\n{_end_of(log)}")
    shutil.rmtree(paths.golden, ignore_errors=True)
    (new / "upper").rename(paths.golden)
    shutil.rmtree(new)
    shutil.rmtree(parts)
    _set_stamp(paths.golden, wanted)


def _skypilot_parts(paths: Paths, parts: Path) -> None:
    """Write SkyPilot's wheel and its set-up commands for hosts, without a network."""
    paths.home.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["unshare", "--net", paths.venv / "bin" / "python", HERE / "setup_commands.py", parts],
        env=paths.env(),
        check=True,
    )


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def _packages_for_hosts() -> list[str]:
    """Packages of the checkout's environment, except for holdfast, pip and the like."""
    found = Path(sysconfig.get_path("purelib")).iterdir()
    return sorted(path.name for path in found if not path.name.startswith(NOT_FOR_HOSTS))


def _base_python() -> Path:
    return Path(sys.executable).resolve()


def _packages_of(python: Path) -> Path:
    words: list[str | Path] = [
        python,
        "-c",
        "import sysconfig; print(sysconfig.get_path('purelib'))",
    ]
    return Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())


def _wanted_environment() -> str:
    files = [*LOCKS, HERE / "probe.py"]
    return _digest([platform.python_version(), *(path.read_text() for path in files)])


def _wanted_image(packages: Iterable[str]) -> str:
    files = ("image.sh", "chroot.sh", "setup_commands.py", "sshd_config", "host.lock")
    texts = [(HERE / name).read_text() for name in files]
    return _digest([_wanted_environment(), str(_base_python()), *texts, *packages])


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def _stamp(built: Path) -> str:
    """The inputs of `built`; empty if it is missing or incomplete."""
    file = built.with_name(f"{built.name}.built")
    return file.read_text() if file.exists() and built.exists() else ""


def _set_stamp(built: Path, digest: str) -> None:
    built.with_name(f"{built.name}.built").write_text(digest)
