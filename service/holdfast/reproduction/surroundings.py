"""What is other on this machine than where a run was made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.domain.differences import Difference, differences

ASK_S: Final = 120.0
"""How long torch may take to come up; a cold disk takes half a minute."""


def ask_machine() -> str:
    """What `holdfast-worker doctor` says of this machine, as JSON.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it fails, as where there is no torch.
    """
    words = [sys.executable, "-P", "-m", "holdfast_worker", "doctor", "--json"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=ASK_S).stdout


def others_here(
    manifest: Mapping[str, Any], *, with_packages: bool, ask: Callable[[], str] = ask_machine
) -> list[Difference] | None:
    """What is other here, what explains most first; None where this machine could not be asked."""
    try:
        here = json.loads(ask())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    known = here.keys() - ({"backends"} if with_packages else {"backends", "lock", "torch"})
    then = {key: manifest[key] for key in known & manifest.keys()}
    return differences(then, {key: here[key] for key in then})
