"""The environment of a SkyPilot server: that of whoever starts it, with its own HOME, clock and port."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

_KEPT_BACK: Final = (
    "HOLDFAST_",  # Our own settings, a token among them.
    "PYTHON",  # Of our environment, not of its.
    "VIRTUAL_ENV",
    "SKYPILOT_API_SERVER_",  # Would make the server believe that it is a client of another.
    "SKYPILOT_DISABLE_LOCAL_API_SERVER",
    "SKYPILOT_GLOBAL_CONFIG",
    "SKYPILOT_PROJECT_CONFIG",
    "SKYPILOT_CONFIG",
)


MEMORY_GB: Final = 8
"""What SkyPilot is told to have where there is more: 24 GB make it start 12 jobs controllers of 160 MB each, 8 GB two, which
launch 16 jobs at once and watch 400."""


def environment(home: Path, port: int, python: Path) -> Mapping[str, str]:
    """What the server is given. Keys to clouds that are variables of ours are passed on."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(_KEPT_BACK)}
    has_more = psutil.virtual_memory().total > MEMORY_GB * 2**30
    return {
        **({"SKYPILOT_POD_MEMORY_GB_LIMIT": str(MEMORY_GB)} if has_more else {}),
        **own,
        "HOME": str(home),
        "PATH": f"{python.parent}:{own.get('PATH', os.defpath)}",
        "TZ": "UTC",  # SkyPilot writes naive local times into its database.
        "IS_SKYPILOT_SERVER": "true",  # Without it, the file is read as a client's.
        "SKYPILOT_API_SERVER_LOCAL_PORT": str(port),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "DO_NOT_TRACK": "1",
    }
