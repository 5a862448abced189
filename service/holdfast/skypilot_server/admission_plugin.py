"""Installs the admission gate: a module for SkyPilot, and its address in the server's HOME.

The module asks this service only about our launches. If it cannot be written, SkyPilot is configured with the address
itself: launches still happen exactly once, but all launches through SkyPilot wait while this service is down.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from holdfast.skypilot_server.configuration import GATE, Policy
from holdfast.skypilot_server.interpreter import Interpreter
from holdfast.skypilot_server.server_dir import ProgressCallback, ServerDir, write_atomically

SOURCE: Final = Path(__file__).with_name("holdfast_gate.py")
"""The module, which only SkyPilot can import."""


def install_plugin(
    place: ServerDir, found: Interpreter, url: str, report: ProgressCallback
) -> Policy:
    """Install the gate for a server with this Python and HOME; return its `admin_policy`."""
    try:
        if install_gate(found.purelib):
            report(
                f"wrote {found.purelib / SOURCE.name}, by which SkyPilot asks this service; SkyPilot reads it only at startup"
            )
    except OSError as error:
        report(
            f"note: cannot write {found.purelib} ({error.strerror}), so SkyPilot asks this service "
            f"about every request: while this service is down, jobs are not recovered and launches fail"
        )
        return Policy(url)
    return configure_gate(place, url)


def configure_gate(place: ServerDir, url: str) -> Policy:
    """Write the gate's address for an environment that has the module; return the policy."""
    write_gate_address(place.home, url)
    return Policy(GATE, edition=hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16])


def install_gate(purelib: Path) -> bool:
    """Ensure the module is in this directory of packages; return whether it had to be written.

    Raises:
        OSError: the module cannot be written.
    """
    target, text = purelib / SOURCE.name, SOURCE.read_text(encoding="utf-8")
    if target.is_file() and target.read_text(encoding="utf-8", errors="replace") == text:
        return False
    write_atomically(target, text, mode=0o644)  # Readable by every user of this Python.
    return True


def write_gate_address(home: Path, url: str) -> None:
    """Write this service's address into the server's HOME, where the module reads it each time."""
    write_atomically(home / ".sky" / "holdfast-gate", f"{url}\n")
