"""Finds or installs a Python with SkyPilot.

SkyPilot is not imported here, because it pins older packages.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from holdfast.errors import NotInstalled
from holdfast.launchers.skypilot.version import SERIES, VERSION
from holdfast.skypilot_server.server_dir import ProgressCallback, ServerDir

_PROBE_SCRIPT: Final = (
    "import sysconfig; from importlib.metadata import version; "
    "print(version('skypilot')); print(sysconfig.get_path('purelib'))"
)
_PROBE_S: Final = 60.0
"""Limit for querying a Python's packages, sufficient for a cold disk."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python with SkyPilot."""

    python: Path
    version: str
    purelib: Path
    """Directory of its packages."""


def find_interpreter(place: ServerDir, requested: Path | None) -> Interpreter:
    """Return the first Python with SkyPilot: `requested`, the server directory's, or this one.

    Raises:
        NotInstalled: none has SkyPilot, or its version is not supported.
    """
    candidates = [requested] if requested else [place.python, Path(sys.executable)]
    for python in candidates:
        if found := _probe(python):
            if not found.version.startswith(SERIES):
                raise NotInstalled(
                    f"{python} has SkyPilot {found.version}, but this version of Holdfast supports {SERIES}x; {_install_hint(place, requested)}"
                )
            return found
    where = (
        f"HOLDFAST_SKYPILOT_PYTHON={requested} has no SkyPilot"
        if requested
        else "not installed here"
    )
    raise NotInstalled(f"SkyPilot: {where}; {_install_hint(place, requested)}")


def install_if_missing(place: ServerDir, requested: Path | None, report: ProgressCallback) -> None:
    """Install SkyPilot in the server's directory unless present; pip prints to the terminal.

    Raises:
        NotInstalled: the installation failed, or `requested` names a Python without SkyPilot, which would still
        be used.
        StoreUnavailable: the server's directory cannot be used.
    """
    try:
        find_interpreter(place, requested)
    except NotInstalled:
        if requested:
            raise
    else:
        return
    with place.lock():
        report(f"installing SkyPilot {VERSION} in {place.home / 'venv'}; this takes a few minutes")
        for command in _commands(place):
            try:
                # pip's output goes to standard error, because standard output carries the result.
                subprocess.run(command, check=True, stdout=sys.stderr)
            except (OSError, subprocess.CalledProcessError) as error:
                raise NotInstalled(f"{shlex.join(command)} failed: {error}") from error


def _commands(place: ServerDir) -> list[list[str]]:
    """Return the commands that install SkyPilot, in tested versions if their list is available."""
    lock = _lock()
    what = ["--requirement", str(lock)] if lock else [f"skypilot[aws]=={VERSION}"]
    return [
        [sys.executable, "-m", "venv", str(place.home / "venv")],
        [str(place.python), "-m", "pip", "install", *what],
    ]


def _lock() -> Path | None:
    """Return the lock file of SkyPilot's environment, from the wheel or the checkout."""
    packaged = Path(str(resources.files("holdfast"))) / "_skypilot.lock"
    checkout = Path(__file__).parents[3] / "requirements-skypilot.lock"
    return next((file for file in (packaged, checkout) if file.exists()), None)


def _install_hint(place: ServerDir, requested: Path | None) -> str:
    by_hand = " && ".join(shlex.join(command) for command in _commands(place))
    first = "install it there, or unset the variable; then " if requested else ""
    return f"{first}run holdfast up --install, or: {by_hand}"


def _probe(python: Path) -> Interpreter | None:
    """Query a Python for SkyPilot; None if it has none or is not a Python."""
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE_SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            timeout=_PROBE_S,
        )
        version, purelib = answer.stdout.splitlines()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(python, version, Path(purelib))
