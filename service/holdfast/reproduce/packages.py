"""The packages of a run, in a Python of their own. Whether they can be had is up to the index that pip asks."""

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
"""For all of them. Shorter gives up on torch over a slow line; longer waits for an index that will not answer."""
_TORCH: Final = "https://download.pytorch.org/whl"
_LOCAL: Final = re.compile(r"^torch==[^+\s]+\+([a-z]+[0-9.]*)$")
_OURS: Final = (f"{DISTRIBUTION}==", "holdfast==")
"""The second stands in manifests from before the package had a name of its own."""


def requirements(lock: Sequence[str]) -> str:
    """What pip is to install for a lock. Builds of torch for a CUDA or for CPUs have an index of their own."""
    return "".join(f"{line}\n" for line in _lines(lock))


def _lines(lock: Sequence[str]) -> Iterator[str]:
    for line in lock:
        if build := _LOCAL.match(line):
            yield f"--extra-index-url {_TORCH}/{build[1]}"
    # Ours is on no index: it comes with whoever makes the run again.
    yield from (line for line in lock if not line.startswith(_OURS))


def build_python(lock: Sequence[str], folder: Path) -> Path:
    """The folder of programs of a new Python with these packages, and with this version of Holdfast.

    Raises:
        BadRequest: the lock is empty, or the folder is taken.
        Unavailable: a package cannot be had; the last words of pip.
    """
    if not lock:
        raise BadRequest("its manifest names no packages; leave --venv out")
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
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = said[-1] if said else done.stderr.strip()
        raise Unavailable(f"the packages could not be installed: {why}")
