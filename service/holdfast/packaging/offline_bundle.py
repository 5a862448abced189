"""Packs an offline bundle: wheels, their versions, and a script that installs the worker.

pip downloads and resolves as it would on the node. Holdfast's own wheel is packed from the running files.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from holdfast_worker.protocol.release import DISTRIBUTION

from holdfast.errors import BadRequest, Unavailable
from holdfast.packaging.wheel import own_wheel
from holdfast.rendering.base_task import sky_tasks

FETCH_S: Final = 3600.0
"""Limit for downloading all wheels.
A lower value fails on torch with CUDA over a slow connection; a higher value waits longer for an index that does not
respond."""
FOLDER: Final = "holdfast-wheels"
_SCRIPT: Final = "offline.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRequest:
    """Contents of a bundle, and the nodes it is for."""

    requirements: Path | None = None
    """A pip requirements file with additional packages; None: only the worker."""
    bare: bool = False
    """Whether to omit the worker's dependencies, including torch, for nodes that have them."""
    python: str | None = None
    """Python version such as 3.11; None: the running one."""
    platforms: Sequence[str] = ()
    """pip platform tags such as manylinux_2_28_x86_64; empty: this machine's."""


@dataclass(frozen=True, slots=True)
class OfflineBundle:
    """A packed bundle."""

    file: Path
    size_bytes: int
    wheels: Sequence[str]
    """File names of the wheels."""


def pack(request: BundleRequest, to: Path) -> OfflineBundle:
    """Write the tar atomically.

    Raises:
        BadRequest: the requirements cannot be read, or the tar cannot be written.
        Unavailable: a package cannot be downloaded; contains the end of pip's output.
    """
    if request.requirements and not request.requirements.is_file():
        raise BadRequest(f"{request.requirements} is not a file; give a requirements file for pip")
    with TemporaryDirectory(prefix="holdfast-wheels-") as made:
        folder = Path(made) / FOLDER
        wheels = folder / "wheels"
        wheels.mkdir(parents=True)
        own = own_wheel(Path(made) / "own")
        shutil.copy(own, wheels)
        if request.requirements or not request.bare:
            _fetch(request, own, Path(made), wheels)
        names = sorted(path.name for path in wheels.iterdir())
        (folder / "requirements.txt").write_text("".join(map(_requirement, names)))
        (folder / "install.sh").write_bytes((sky_tasks() / _SCRIPT).read_bytes())
        _write_checksums(folder)
        try:
            _tar(folder, to)
        except OSError as error:
            raise BadRequest(f"cannot write {to} ({error.strerror or error}); choose another file with -o") from error  # fmt: skip
    return OfflineBundle(to, to.stat().st_size, names)


def _fetch(request: BundleRequest, own: Path, folder: Path, wheels: Path) -> None:
    """Download all wheels, in the installed versions unless the requirements specify others."""
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--dest", str(wheels)]  # fmt: skip
    if request.requirements:
        words += ["-r", str(request.requirements)]
    else:
        (folder / "here.txt").write_text("".join(f"{line}\n" for line in _installed()))
        words += ["--constraint", str(folder / "here.txt")]
    if not request.bare:
        words.append(f"{DISTRIBUTION}[worker] @ {own.as_uri()}")
    if request.python or request.platforms:
        words.append("--only-binary=:all:")  # Packages cannot be built here for another Python.
    words += ["--python-version", request.python] if request.python else []
    for platform in request.platforms:
        words += ["--platform", platform]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot download the wheels: {error}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable(f"cannot download the wheels: {errors[-1] if errors else done.stderr.strip()}")  # fmt: skip


def _installed() -> list[str]:
    """Return installed versions without build tags that only one index has."""
    found = {d.metadata["Name"]: d.version.partition("+")[0] for d in metadata.distributions() if d.metadata["Name"]}  # fmt: skip
    found.pop(DISTRIBUTION, None)
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _requirement(file: str) -> str:
    """Return the requirement of a wheel or source distribution."""
    name, version = re.match(r"(.+?)-(\d[^-]*?)(?:-.*\.whl|\.tar\.gz|\.zip)$", file).groups()  # type: ignore[union-attr]  # pip named it
    return f"{name.replace('_', '-').lower()}=={version}\n"


def _write_checksums(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with (folder / "SHA256SUMS").open("w") as sums:
        for path in files:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            sums.write(f"{digest}  {path.relative_to(folder)}\n")


def _tar(folder: Path, to: Path) -> None:
    """Write an uncompressed tar, because wheels are compressed already."""
    draft = to.with_name(f".{to.name}.draft")
    try:
        with tarfile.open(draft, "w") as tar:
            tar.add(folder, arcname=FOLDER)
        draft.replace(to)
    finally:
        draft.unlink(missing_ok=True)
