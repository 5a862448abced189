"""The service's own wheel, packed from the files it runs from: how the worker reaches nodes of the very same version.

It is packed, not built: a service has neither its sources nor a build tool at hand, and what it runs is what nodes
have to run. Folders of an installed wheel that only a checkout keeps elsewhere (`migrations/`, `sky_tasks/`) may thus
be absent; nodes have no use for them.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import zipfile
from collections.abc import Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from holdfast_worker.protocol.release import DISTRIBUTION

from holdfast.rendering.base_task import sky_tasks

PACKAGES: Final = ("holdfast", "holdfast_worker")
INSTALLER: Final = "install.sh"
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can tell; a constant, so that the same files make the same wheel."""
_WHEEL: Final = (
    "Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
)
_KEPT: Final = ("METADATA", "entry_points.txt")
_SKIPPED: Final = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache"})


def wheelhouse(folder: Path) -> Path:
    """A folder below `folder` with this version's wheel and the script that installs it; made if it is not there.

    It is named by its content, so that what was handed to a launch before never changes under it.
    """
    files = dict(sorted(_files()))
    script = (sky_tasks() / INSTALLER).read_bytes()
    digest = hashlib.sha256(script)
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    there = folder / digest.hexdigest()[:16]
    there.mkdir(parents=True, exist_ok=True)
    wheel = there / f"{_stem()}-py3-none-any.whl"
    if not wheel.exists():
        _write_whole(there / INSTALLER, script)
        draft = there / f".{secrets.token_hex(4)}"
        _pack(draft, files)
        draft.replace(wheel)  # Last: where the wheel is, the script is, too.
    return there


def own_wheel(folder: Path) -> Path:
    """This version's wheel, in its `wheelhouse` below `folder`."""
    return next(wheelhouse(folder).glob("*.whl"))


def _files() -> Iterator[tuple[str, bytes]]:
    """Every file of the wheel but its list of files."""
    for package in PACKAGES:
        yield from _below(resources.files(package), package)
    installed = metadata.distribution(DISTRIBUTION)
    info = _info()
    yield f"{info}/WHEEL", _WHEEL.encode()
    for name in _KEPT:
        text = installed.read_text(name)
        assert text is not None, f"{DISTRIBUTION} is installed without {name}"
        yield f"{info}/{name}", text.encode()


def _below(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir():
            if item.name not in _SKIPPED:
                yield from _below(item, f"{name}/{item.name}")
        elif not item.name.endswith(".pyc"):
            yield f"{name}/{item.name}", item.read_bytes()


def _info() -> str:
    return f"{_stem()}.dist-info"


def _stem() -> str:
    """Name and version as they begin the names of files in a wheel."""
    return f"{DISTRIBUTION.replace('-', '_')}-{metadata.version(DISTRIBUTION)}"


def _pack(file: Path, files: dict[str, bytes]) -> None:
    rows = [f"{name},{_hash(content)},{len(content)}" for name, content in files.items()]
    record = f"{_info()}/RECORD"
    listed = {**files, record: "\n".join([*rows, f"{record},,", ""]).encode()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in listed.items():
            wheel.writestr(zipfile.ZipInfo(name, _LONG_AGO), content, zipfile.ZIP_DEFLATED)


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.decode().rstrip('=')}"


def _write_whole(file: Path, content: bytes) -> None:
    draft = file.with_name(f".{secrets.token_hex(4)}")
    draft.write_bytes(content)
    draft.replace(file)
