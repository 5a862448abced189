"""Which Python has SkyPilot, and how to come by one. It is never imported here: it pins packages that we have newer."""

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
from holdfast.skypilot_server.server_dir import ServerDir, Tell

_ASK: Final = (
    "import sysconfig; from importlib.metadata import version; "
    "print(version('skypilot')); print(sysconfig.get_path('purelib'))"
)
_ASK_S: Final = 60.0
"""How long a Python may take to say what it has, on a machine with a cold disk."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that has SkyPilot."""

    python: Path
    version: str
    purelib: Path
    """The folder of its packages."""


def find_interpreter(place: ServerDir, wanted: Path | None) -> Interpreter:
    """The Python that `wanted` names, or that of the server's folder, or this one: the first that has SkyPilot.

    Raises:
        NotInstalled: none has it, or what it has is of another series.
    """
    candidates = [wanted] if wanted else [place.python, Path(sys.executable)]
    for python in candidates:
        if found := _ask(python):
            if not found.version.startswith(SERIES):
                raise NotInstalled(
                    f"{python} has SkyPilot {found.version}, and this version of Holdfast knows {SERIES}x; {_way_out(place, wanted)}"
                )
            return found
    where = f"HOLDFAST_SKYPILOT_PYTHON={wanted} has no SkyPilot" if wanted else "not installed here"
    raise NotInstalled(f"SkyPilot: {where}; {_way_out(place, wanted)}")


def install_if_missing(place: ServerDir, wanted: Path | None, tell: Tell) -> None:
    """SkyPilot in an environment of its own in the server's folder, unless there is one; pip talks to the terminal.

    Raises:
        NotInstalled: it could not be installed, or `wanted` names a Python that has none: ours would not be used.
        StoreUnavailable: the server's folder cannot be used.
    """
    try:
        find_interpreter(place, wanted)
    except NotInstalled:
        if wanted:
            raise
    else:
        return
    with place.alone():
        tell(f"installing SkyPilot {VERSION} in {place.home / 'venv'}; that takes some minutes")
        for command in _commands(place):
            try:
                # What pip says goes beside what was asked for: standard output stays clean.
                subprocess.run(command, check=True, stdout=sys.stderr)
            except (OSError, subprocess.CalledProcessError) as error:
                raise NotInstalled(f"{shlex.join(command)} failed: {error}") from error


def _commands(place: ServerDir) -> list[list[str]]:
    """What installs SkyPilot: with the versions that Holdfast was tried with, where their list is at hand."""
    lock = _lock()
    what = ["--requirement", str(lock)] if lock else [f"skypilot[aws]=={VERSION}"]
    return [
        [sys.executable, "-m", "venv", str(place.home / "venv")],
        [str(place.python), "-m", "pip", "install", *what],
    ]


def _lock() -> Path | None:
    """The list of SkyPilot's own environment: in the wheel, or in the checkout."""
    packaged = Path(str(resources.files("holdfast"))) / "_skypilot.lock"
    checkout = Path(__file__).parents[3] / "requirements-skypilot.lock"
    return next((file for file in (packaged, checkout) if file.exists()), None)


def _way_out(place: ServerDir, wanted: Path | None) -> str:
    by_hand = " && ".join(shlex.join(command) for command in _commands(place))
    first = "install it there, or leave that variable out; then " if wanted else ""
    return f"{first}holdfast up --install installs it, and so does: {by_hand}"


def _ask(python: Path) -> Interpreter | None:
    """What a Python says of its SkyPilot; None if it has none, or is no Python."""
    try:
        answer = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, check=True, timeout=_ASK_S
        )
        version, purelib = answer.stdout.splitlines()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(python, version, Path(purelib))
