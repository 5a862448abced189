"""Packages of a run in a new Python environment, if pip's index still has them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from holdfast_worker.protocol.release import DISTRIBUTION

from holdfast.errors import BadRequest, Unavailable
from holdfast.packaging.wheel import own_wheel

INSTALL_S: Final = 1800.0
"""Seconds for all packages.

A lower value fails for torch on a slow connection; a higher value waits for an index that does not respond.
"""
_TORCH: Final = "https://download.pytorch.org/whl"
_LOCAL: Final = re.compile(r"^torch==[^+\s]+\+([a-z]+[0-9.]*)$")
_OURS: Final = (f"{DISTRIBUTION}==", "holdfast==")
"""The second is in manifests from before the package was renamed."""


def requirements(lock: Sequence[str]) -> str:
    """Return pip's requirements for a lock. CUDA and CPU builds of torch have their own index."""
    return "".join(f"{line}\n" for line in _lines(lock))


def _lines(lock: Sequence[str]) -> Iterator[str]:
    for line in lock:
        if build := _LOCAL.match(line):
            yield f"--extra-index-url {_TORCH}/{build[1]}"
    # Holdfast itself is on no index: the reproducing installation provides it.
    yield from (line for line in lock if not line.startswith(_OURS))


def build_python(lock: Sequence[str], folder: Path) -> Path:
    """Create a Python environment with these packages and this version of Holdfast.

    Returns its directory of programs.

    Raises:
        BadRequest: the lock is empty, or the directory exists.
        Unavailable: a package is unavailable, with pip's last message.
    """
    if not lock:
        raise BadRequest("its manifest names no packages; omit --venv")
    if folder.exists():
        raise BadRequest(f"{folder} exists; remove it, or name another folder with --to")
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    wanted = folder / "requirements.lock.txt"
    wanted.write_text(requirements(lock))
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]  # fmt: skip
    _run([*pip, "-r", str(wanted)])
    _run([*pip, "--no-index", str(own_wheel(folder / "holdfast-wheel"))])
    return folder / "bin"


def _run(words: Sequence[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the packages could not be installed: {error}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = errors[-1] if errors else done.stderr.strip()
        raise Unavailable(f"the packages could not be installed: {why}")
