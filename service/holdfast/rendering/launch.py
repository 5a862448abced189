"""What a stored task leaves open, since it must neither depend on a machine nor hold a secret."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

WHEEL_MOUNT: Final = "~/.holdfast-wheel"
"""Where nodes find the service's own wheel and the script that installs it."""
WHEEL_PLACEHOLDER: Final = "holdfast://wheel"
"""Stands for the folder of the service that is mounted there."""
HIDDEN: Final = "<hidden>"
"""Stands for the value of a secret."""


def complete(
    task: Mapping[str, Any], *, secrets: Mapping[str, str], wheelhouse: Path
) -> dict[str, Any]:
    """A stored task with what is known at its launch alone; for a launcher's hands, and to be stored nowhere."""
    whole = dict(task)
    if secrets:
        whole["secrets"] = dict(secrets)
    mounts = dict(whole.get("file_mounts") or {})
    if mounts.get(WHEEL_MOUNT) == WHEEL_PLACEHOLDER:
        whole["file_mounts"] = {**mounts, WHEEL_MOUNT: str(wheelhouse)}
    return whole
