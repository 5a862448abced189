"""Packages that only some need: imported when they are, and named in words where they are absent."""

from __future__ import annotations

import importlib
from typing import Any


def import_optional(module: str, needed: str) -> Any:
    """A module, which comes with the package that is `needed`.

    Raises:
        ImportError: it is not installed; says how it would be.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # It is there, and lacks something itself.
        raise ImportError(
            f"{module} is not installed where this script runs: pip install {needed}"
        ) from error
