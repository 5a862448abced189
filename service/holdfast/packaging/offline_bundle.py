"""A tar from which nodes without a network install the worker: wheels, their versions, and a script that asks no index.

pip fetches and decides, as it would on the node. Our own wheel is packed from the files that run here.
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
"""For all wheels. Shorter gives up on torch for GPUs over a slow line; longer waits for an index that will not answer."""
FOLDER: Final = "holdfast-wheels"
_SCRIPT: Final = "offline.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRequest:
    """What is to be packed, and for which nodes."""

    requirements: Path | None = None
    """A file of pip's with what else is to be there; None: the worker alone."""
    bare: bool = False
    """Whether the worker goes without what it needs, torch among it, as for nodes that have it."""
    python: str | None = None
    """Version such as 3.11; None: the one that runs here."""
    platforms: Sequence[str] = ()
    """As pip names them, such as manylinux_2_28_x86_64; none: this machine's."""


@dataclass(frozen=True, slots=True)
class OfflineBundle:
    """A tar that was made."""

    file: Path
    size_bytes: int
    wheels: Sequence[str]
    """Names of the files."""


def pack(wish: BundleRequest, to: Path) -> OfflineBundle:
    """The tar, whole or not at all.

    Raises:
        BadRequest: the requirements cannot be read, or the tar cannot be written.
        Unavailable: a package cannot be had; the last words of pip.
    """
    if wish.requirements and not wish.requirements.is_file():
        raise BadRequest(f"{wish.requirements} is no file; name one that pip can read")
    with TemporaryDirectory(prefix="holdfast-wheels-") as made:
        folder = Path(made) / FOLDER
        wheels = folder / "wheels"
        wheels.mkdir(parents=True)
        own = own_wheel(Path(made) / "own")
        shutil.copy(own, wheels)
        if wish.requirements or not wish.bare:
            _fetch(wish, own, Path(made), wheels)
        names = sorted(path.name for path in wheels.iterdir())
        (folder / "requirements.txt").write_text("".join(map(_line, names)))
        (folder / "install.sh").write_bytes((sky_tasks() / _SCRIPT).read_bytes())
        _sum(folder)
        try:
            _tar(folder, to)
        except OSError as error:
            raise BadRequest(f"{to} cannot be written ({error.strerror or error}); name another file with -o") from error  # fmt: skip
    return OfflineBundle(to, to.stat().st_size, names)


def _fetch(wish: BundleRequest, own: Path, folder: Path, wheels: Path) -> None:
    """Have pip fetch everything, in the versions that are installed here unless the requirements say others."""
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--dest", str(wheels)]  # fmt: skip
    if wish.requirements:
        words += ["-r", str(wish.requirements)]
    else:
        (folder / "here.txt").write_text("".join(f"{line}\n" for line in _installed()))
        words += ["--constraint", str(folder / "here.txt")]
    if not wish.bare:
        words.append(f"{DISTRIBUTION}[worker] @ {own.as_uri()}")
    if wish.python or wish.platforms:
        words.append("--only-binary=:all:")  # Nothing can be built here for another Python.
    words += ["--python-version", wish.python] if wish.python else []
    for platform in wish.platforms:
        words += ["--platform", platform]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the wheels could not be fetched: {error}") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable(f"the wheels could not be fetched: {said[-1] if said else done.stderr.strip()}")  # fmt: skip


def _installed() -> list[str]:
    """Versions of what is here, without the builds that only one index has."""
    found = {d.metadata["Name"]: d.version.partition("+")[0] for d in metadata.distributions() if d.metadata["Name"]}  # fmt: skip
    found.pop(DISTRIBUTION, None)
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _line(file: str) -> str:
    """The requirement of a wheel, or of a source that pip fetched where there was no wheel."""
    name, version = re.match(r"(.+?)-(\d[^-]*?)(?:-.*\.whl|\.tar\.gz|\.zip)$", file).groups()  # type: ignore[union-attr]  # pip named it
    return f"{name.replace('_', '-').lower()}=={version}\n"


def _sum(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with (folder / "SHA256SUMS").open("w") as sums:
        for path in files:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            sums.write(f"{digest}  {path.relative_to(folder)}\n")


def _tar(folder: Path, to: Path) -> None:
    """Wheels are packed already, so that to pack them again would take time and save nothing."""
    draft = to.with_name(f".{to.name}.draft")
    try:
        with tarfile.open(draft, "w") as tar:
            tar.add(folder, arcname=FOLDER)
        draft.replace(to)
    finally:
        draft.unlink(missing_ok=True)
