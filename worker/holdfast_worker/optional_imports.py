"""Optional packages: imported on first use, with an installation hint where they are absent."""

from __future__ import annotations

import importlib
from typing import Any


def import_optional(module: str, needed: str) -> Any:
    """Import a module that the requirement `needed` installs.

    Raises:
        ImportError: it is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # The module is installed, but one of its dependencies is not.
        raise ImportError(
            f"{module} is not installed where this script runs: pip install {needed}"
        ) from error
