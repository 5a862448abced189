"""What a stored task leaves open, since it must neither depend on a machine nor hold a secret.

Tasks as YAML that reads back as it was written, and that people can read.

What the house brings along to every job: the files of `sky_tasks/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import yaml

WHEEL_MOUNT: Final = "~/.holdfast-wheel"
"""Where nodes find the service's own wheel and the script that installs it."""
WHEEL_PLACEHOLDER: Final = "holdfast://wheel"
"""Stands for the folder of the service that is mounted there."""
HIDDEN: Final = "<hidden>"
"""Stands for the value of a secret."""


def with_launch_values(
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


_UNICODE_BREAK: Final = re.compile("[\x85\u2028\u2029]")


def dump(task: Mapping[str, Any]) -> str:
    """A task as YAML that any YAML 1.1 loader reads back unchanged."""
    text: str = yaml.dump(
        dict(task), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text


def load(text: str) -> dict[str, Any]:
    """The task of a stored rendering."""
    task: dict[str, Any] = yaml.safe_load(text)
    return task


class _Dumper(yaml.CSafeDumper):
    """Safe, with scripts as blocks, since people read what will be launched."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Always: a value that stands in two places is written twice."""
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # Where a block cannot hold the text exactly, the emitter itself falls back to quotes; only at Unicode's own
    # line breaks it errs, and a loader would read a space.
    style = '"' if _UNICODE_BREAK.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def base_task() -> dict[str, Any]:
    """The task that every job starts from."""
    return load((sky_tasks() / "train.yaml").read_text(encoding="utf-8"))


def sky_tasks() -> Traversable:
    """`sky_tasks` of an installed wheel, or of the checkout in an editable install."""
    packaged = resources.files("holdfast") / "_sky_tasks"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "sky_tasks"
