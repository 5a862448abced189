"""What the house brings along to every job: the files of `sky_tasks/`."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from holdfast.rendering.text import load


def base() -> dict[str, Any]:
    """The task that every job starts from."""
    return load((sky_tasks() / "train.yaml").read_text(encoding="utf-8"))


def sky_tasks() -> Traversable:
    """`sky_tasks` of an installed wheel, or of the checkout in an editable install."""
    packaged = resources.files("holdfast") / "_sky_tasks"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "sky_tasks"
