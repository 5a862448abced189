"""What the cloud is made of: SkyPilot's environment, and the image of a host. Built once, and again when a lock changes."""

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

PROGRAMS = {  # What is looked for on PATH, and the Debian package that brings it.
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
"""Of a sparse file. Hosts write some 200 MB each; a small disk ends a long test run, a large one costs nothing."""
SKYPILOT_LOCK = CHECKOUT / "requirements-skypilot.lock"
HIDDEN = ("/dev", "/mnt", "/proc", "/run", "/sys", "/tmp")
"""What host_init.sh mounts again on each host."""
NOT_FOR_HOSTS = ("holdfast", "_holdfast", "__pycache__", "pip", "distutils-precedence")


class CannotBuild(Exception):
    """A requirement is missing that a build cannot install; the text names it."""


def build(place: Paths) -> None:
    """Make what is not there yet. A second call looks, and does nothing.

    Raises:
        CannotBuild: not root, a Debian package is missing, or the file systems do not suit.
    """
    _demand_root()
    _demand_one_file_system(place)
    with _alone(place):
        _install_packages()
        _environment(place)
    with _alone(place):  # Who waits for the environment alone need not wait for the image.
        mount(place)
        _image(place)


def build_environment(place: Paths) -> None:
    """Make SkyPilot's environment alone, which needs neither root nor Debian's packages."""
    with _alone(place):
        _environment(place)


@contextmanager
def _alone(place: Paths) -> Iterator[None]:
    """Wait until no other process builds in the same folder."""
    place.folder.mkdir(parents=True, exist_ok=True)
    with (place.folder / "build.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def mount(place: Paths) -> None:
    """The disk of the hosts is there; made, if it was not."""
    place.mount.mkdir(parents=True, exist_ok=True)
    if place.mount.is_mount():
        return
    if not place.disk.exists():
        blank = place.disk.with_suffix(".new")
        with blank.open("wb") as file:
            file.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", blank], check=True)
        blank.rename(place.disk)
    subprocess.run(["mount", "-o", "loop,discard", place.disk, place.mount], check=True)


def is_built(place: Paths) -> bool:
    """Whether `build` would find SkyPilot's environment as its locks have it."""
    return _stamp(place.venv) == _wanted_environment()


def _demand_root() -> None:
    if os.geteuid() != 0:
        raise CannotBuild("needs root: for network namespaces, overlay file systems and mounts")


def _demand_one_file_system(place: Paths) -> None:
    """Hosts see this machine's root file system, and not what is mounted on it."""
    demand_visible(place.folder, _base_python())
    place.folder.mkdir(parents=True, exist_ok=True)
    for path in (place.folder, _base_python()):
        if path.stat().st_dev != Path("/").stat().st_dev:
            raise CannotBuild(
                f"{path} is not on the root file system, which is all that hosts see of this machine"
            )


def demand_visible(*paths: Path) -> None:
    """Continue if hosts see all these paths.

    Raises:
        CannotBuild: one of them is below a folder of which every host has its own.
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


def _environment(place: Paths) -> None:
    """SkyPilot's own virtual environment."""
    if _stamp(place.venv) == _wanted_environment():
        return
    print("installing SkyPilot; the first time takes some minutes")
    python = place.venv / "bin" / "python"
    if not python.exists():
        subprocess.run([_base_python(), "-m", "venv", place.venv], check=True)
    locks: list[str | Path] = ["-r", SKYPILOT_LOCK, "-r", HERE / "requirements.lock"]
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    subprocess.run([*pip, *locks], check=True)
    packages = _packages_of(python)
    shutil.copy(HERE / "probe.py", packages / "skycloud_probe.py")
    (packages / "skycloud_probe.pth").write_text("import skycloud_probe\n")
    _set_stamp(place.venv, _wanted_environment())


def _image(place: Paths) -> None:
    """The upper layer of every host's root: made in a chroot over this machine's own root."""
    packages = _packages_for_hosts()
    wanted = _wanted_image(packages)
    if _stamp(place.golden) == wanted:
        return
    if any(pen.pids for pen in all_cgroups()):
        raise CannotBuild(
            "the image has to be built anew, but hosts run from it; end them with: down"
        )
    print("building the image of the hosts; takes some minutes")
    parts = place.folder / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    for name in ("host.lock", "sshd_config", "image.sh"):
        shutil.copy(HERE / name, parts)
    for name in ("uv", "rclone"):
        shutil.copy(place.venv / "bin" / name, parts)
    (parts / "packages").write_text("\n".join(packages) + "\n")
    _skypilot_parts(place, parts)

    new = place.mount / "golden.new"
    shutil.rmtree(new, ignore_errors=True)
    for folder in ("upper", "work", "root"):
        (new / folder).mkdir(parents=True)
    # A mount namespace of its own: what is mounted in it is gone with it, however it ends.
    words = [HERE / "chroot.sh", new, _base_python(), parts, sysconfig.get_path("purelib")]
    log = place.folder / "build.log"
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
    shutil.rmtree(place.golden, ignore_errors=True)
    (new / "upper").rename(place.golden)
    shutil.rmtree(new)
    shutil.rmtree(parts)
    _set_stamp(place.golden, wanted)


def _skypilot_parts(place: Paths, parts: Path) -> None:
    """SkyPilot's wheel of itself, and the commands with which it sets up a host. Without a network, as always."""
    place.home.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["unshare", "--net", place.venv / "bin" / "python", HERE / "setup_commands.py", parts],
        env=place.env(),
        check=True,
    )


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def _packages_for_hosts() -> list[str]:
    """The names in the checkout's environment, without what belongs to holdfast or to the environment itself."""
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
    files = [SKYPILOT_LOCK, HERE / "requirements.lock", HERE / "probe.py"]
    return _digest([platform.python_version(), *(path.read_text() for path in files)])


def _wanted_image(packages: Iterable[str]) -> str:
    files = ("image.sh", "chroot.sh", "setup_commands.py", "sshd_config", "host.lock")
    texts = [(HERE / name).read_text() for name in files]
    return _digest([_wanted_environment(), str(_base_python()), *texts, *packages])


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def _stamp(built: Path) -> str:
    """What `built` was made from; "" when it is not there, or was not finished."""
    file = built.with_name(f"{built.name}.built")
    return file.read_text() if file.exists() and built.exists() else ""


def _set_stamp(built: Path, digest: str) -> None:
    built.with_name(f"{built.name}.built").write_text(digest)
