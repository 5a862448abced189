"""The files of a release that users install: wheel, source distribution, chart, image and documentation.

Each is the same for the same commit, byte for byte: times are those of the commit, owners are root, names are sorted.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from release.checks import ReleaseError

SUMS: Final = "SHA256SUMS"
NEEDED: Final = (
    "holdfast/web/index.html",
    "holdfast/docs_site/index.html",
    "holdfast/_migrations/env.py",
    "holdfast/_docs/openapi.json",
)
"""Files that a wheel can lack without being refused by its build."""


def build_distributions(root: Path, folder: Path, epoch: int) -> tuple[Path, Path]:
    """Build the wheel and the source distribution into `folder`; return their paths.

    The wheel is built twice, from the checkout and from the source distribution, and compared.

    Raises:
        ReleaseError: a build fails, the two wheels differ, or a part is missing.
    """
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    run([*build, folder, root], environment)  # The wheel of the source distribution.
    sdist, wheel = next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))
    with tempfile.TemporaryDirectory() as other:
        run([*build, other, "--wheel", root], environment)
        compare_wheels(wheel, Path(other, wheel.name))
    missing = [name for name in NEEDED if name not in zipfile.ZipFile(wheel).namelist()]
    if missing:
        raise ReleaseError(f"{wheel.name} lacks {', '.join(missing)}: run make setup docs")
    return wheel, sdist


def compare_wheels(one: Path, other: Path) -> None:
    """Compare two wheels.

    Raises:
        ReleaseError: they differ; the message names the files.
    """
    if one.read_bytes() == other.read_bytes():
        return
    first, second = (_contents(wheel) for wheel in (one, other))
    different = sorted(
        name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
    )
    shown = ", ".join(different[:5]) or "the order or the times of their files"
    raise ReleaseError(f"two builds of {one.name} differ in {shown}")


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def package_chart(helm: Path, chart: Path, folder: Path, epoch: int) -> Path:
    """Package the chart into `folder`; return its path.

    Helm checks and packages it, but writes the time of packaging into the archive, so the archive is written again.

    Raises:
        ReleaseError: Helm is missing, or finds a mistake.
    """
    if not helm.is_file():
        raise ReleaseError(f"{helm} is missing: run make chart")
    with tempfile.TemporaryDirectory() as text:
        draft = Path(text)
        run([helm, "package", chart, "--destination", draft], os.environ)
        packaged = next(draft.glob("*.tgz"))
        with tarfile.open(packaged) as archive:
            archive.extractall(draft / "files", filter="data")
        return archive_folder(draft / "files", folder / packaged.name, epoch)


def archive_folder(source: Path, target: Path, epoch: int) -> Path:
    """Write the files of `source` into a compressed archive; return its path."""
    draft = io.BytesIO()
    with tarfile.open(fileobj=draft, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(path.relative_to(source).as_posix())
            member.size, member.mtime, member.mode = path.stat().st_size, epoch, 0o644
            with path.open("rb") as file:
                archive.addfile(member, file)
    target.write_bytes(gzip.compress(draft.getvalue(), mtime=epoch))
    return target


def write_checksums(folder: Path) -> Path:
    """Write `SHA256SUMS` of all files of the release, for `sha256sum --check`; return its path."""
    lines = []
    for path in sorted(path for path in folder.iterdir() if path.name != SUMS):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / SUMS).write_text("".join(lines))
    return folder / SUMS


def build_image(root: Path, target: Path, labels: Mapping[str, str], epoch: int) -> Path:
    """Build the image of the service into an archive for `docker load`; return its path.

    The format is Docker's: OCI's has no health check.

    Raises:
        ReleaseError: Buildah fails, as it does without access to the registry of the base image.
    """
    name = f"localhost/holdfast:{labels['org.opencontainers.image.version']}"
    shown = [f"--label={key}={value}" for key, value in labels.items()]
    options = ["--format=docker", f"--timestamp={epoch}", *shown, f"--tag={name}"]
    run(["buildah", "bud", *options, root], os.environ)
    target.unlink(missing_ok=True)
    run(["buildah", "push", "--format=v2s2", name, f"docker-archive:{target}:{name}"], os.environ)
    return target


def require_buildah() -> None:
    """Check that an image can be built.

    Raises:
        ReleaseError: it cannot.
    """
    if not shutil.which("buildah"):
        raise ReleaseError(
            "Buildah builds the image, and is not installed: on Debian, sudo apt-get install buildah; "
            "or leave the image out with make release IMAGE=no"
        )


def run(words: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    """Run a program; return what it printed.

    Raises:
        ReleaseError: it fails; the message has the end of its output.
    """
    done = subprocess.run(
        words,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        command = " ".join(str(word) for word in words)
        raise ReleaseError(f"{command} failed:\n{done.stdout[-3000:].rstrip()}")
    return done.stdout
