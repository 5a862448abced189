"""Packs the service's own wheel from its running files.

Nodes get exactly this version of the worker. The wheel is packed rather than built, because a service has neither its
sources nor a build tool. Directories that only a checkout stores elsewhere (`migrations/`, `sky_tasks/`) may be absent;
nodes do not need them.
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
_ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time a zip can represent; constant, so that equal files give equal wheels."""
_WHEEL: Final = (
    "Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
)
_COPIED_METADATA: Final = ("METADATA", "entry_points.txt")
_SKIPPED: Final = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", "docs_site"})
"""Directories that no node needs: the documentation site would double the wheel."""


def wheelhouse(folder: Path) -> Path:
    """Return a directory with this version's wheel and installation script, created if missing.

    It is below `folder`. Its name derives from its content, so that the files of running launches never change.
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
        _write_atomically(there / INSTALLER, script)
        draft = there / f".{secrets.token_hex(4)}"
        _pack(draft, files)
        draft.replace(wheel)  # The wheel is written last: where it exists, the script exists.
    return there


def own_wheel(folder: Path) -> Path:
    """Return this version's wheel, in its `wheelhouse` below `folder`."""
    return next(wheelhouse(folder).glob("*.whl"))


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield every file of the wheel except RECORD."""
    for package in PACKAGES:
        yield from _walk(resources.files(package), package)
    installed = metadata.distribution(DISTRIBUTION)
    info = _info()
    yield f"{info}/WHEEL", _WHEEL.encode()
    for name in _COPIED_METADATA:
        text = installed.read_text(name)
        assert text is not None, f"{DISTRIBUTION} is installed without {name}"
        yield f"{info}/{name}", text.encode()


def _walk(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir():
            if item.name not in _SKIPPED:
                yield from _walk(item, f"{name}/{item.name}")
        elif not item.name.endswith(".pyc"):
            yield f"{name}/{item.name}", item.read_bytes()


def _info() -> str:
    return f"{_stem()}.dist-info"


def _stem() -> str:
    """Return name and version as file names in a wheel begin with them."""
    return f"{DISTRIBUTION.replace('-', '_')}-{metadata.version(DISTRIBUTION)}"


def _pack(file: Path, files: dict[str, bytes]) -> None:
    rows = [f"{name},{_hash(content)},{len(content)}" for name, content in files.items()]
    record = f"{_info()}/RECORD"
    listed = {**files, record: "\n".join([*rows, f"{record},,", ""]).encode()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in listed.items():
            wheel.writestr(zipfile.ZipInfo(name, _ZIP_EPOCH), content, zipfile.ZIP_DEFLATED)


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.decode().rstrip('=')}"


def _write_atomically(file: Path, content: bytes) -> None:
    draft = file.with_name(f".{secrets.token_hex(4)}")
    draft.write_bytes(content)
    draft.replace(file)
