"""The admission gate put in place: a module beside SkyPilot's packages, and its address in the server's HOME.

The module asks this service about our launches alone. Where it cannot be written, SkyPilot is given the address itself:
launches happen once then, too, and whatever SkyPilot launches waits while this service is away.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from holdfast.skypilot_server.configuration import GATE, Policy
from holdfast.skypilot_server.interpreter import Interpreter
from holdfast.skypilot_server.server_dir import ServerDir, Tell, write_whole

SOURCE: Final = Path(__file__).with_name("holdfast_gate.py")
"""The module, which only SkyPilot can import."""


def install_plugin(place: ServerDir, found: Interpreter, url: str, tell: Tell) -> Policy:
    """What `admin_policy` has to say for a server of this Python and this HOME; all that it needs is in place."""
    try:
        if install_gate(found.purelib):
            tell(
                f"wrote {found.purelib / SOURCE.name}, by which SkyPilot asks this service; it is read at a start only"
            )
    except OSError as error:
        tell(
            f"note: {found.purelib} cannot be written ({error.strerror}), so SkyPilot asks this service "
            f"at its address, about every request: while this service is down, jobs are not recovered and nobody launches"
        )
        return Policy(url)
    return address_gate(place, url)


def address_gate(place: ServerDir, url: str) -> Policy:
    """The same where the module is in SkyPilot's environment already."""
    write_gate_address(place.home, url)
    return Policy(GATE, edition=hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16])


def install_gate(purelib: Path) -> bool:
    """Whether the module had to be written into this folder of packages; it is there now.

    Raises:
        OSError: it cannot be written.
    """
    target, text = purelib / SOURCE.name, SOURCE.read_text(encoding="utf-8")
    if target.is_file() and target.read_text(encoding="utf-8", errors="replace") == text:
        return False
    write_whole(target, text, mode=0o644)  # Whoever may use this Python may read its packages.
    return True


def write_gate_address(home: Path, url: str) -> None:
    """The file in a server's HOME that says where this service is asked; the module reads it for each question."""
    write_whole(home / ".sky" / "holdfast-gate", f"{url}\n")
