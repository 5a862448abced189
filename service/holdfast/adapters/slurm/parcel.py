"""The worker as nodes get it: its package and its command, taken from the service's own wheel. Nothing is installed."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "holdfast_worker/"
COMMAND: Final = '#!/bin/sh\nexec "${HOLDFAST_PYTHON:-python3}" -m holdfast_worker "$@"\n'


def pack(wheel: Path) -> bytes:
    """A tar of the folder that the nodes have on their paths."""
    packed = io.BytesIO()
    with zipfile.ZipFile(wheel) as files, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in sorted(files.namelist()):
            if name.startswith(PACKAGE) or name.endswith("/METADATA"):
                _add(tar, name, files.read(name), 0o644)
        _add(tar, "bin/holdfast-worker", COMMAND.encode(), 0o755)
    return packed.getvalue()


def name_of(wheel: Path) -> str:
    """What a worker of this content is called, so that one that runs is never changed."""
    return hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))
