"""The base task of all jobs, stored tasks as YAML, and values added only at launch.

The base task and its files are in `sky_tasks/`. A stored task depends on no machine and holds no secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import yaml

from holdfast.domain.jobfile.accelerator_catalog import AcceleratorCatalog

WHEEL_MOUNT: Final = "~/.holdfast-wheel"
"""Directory on the nodes that holds the service's wheel and its installation script."""
WHEEL_PLACEHOLDER: Final = "holdfast://wheel"
"""Placeholder in a stored task for the service's directory that is mounted there."""
REDACTED: Final = "<hidden>"
"""Placeholder for the value of a secret."""


def with_launch_values(
    task: Mapping[str, Any], *, secrets: Mapping[str, str], wheelhouse: Path
) -> dict[str, Any]:
    """Return the task with secrets and mounts filled in.

    Pass the result to a launcher; do not store it.
    """
    complete = dict(task)
    if secrets:
        complete["secrets"] = dict(secrets)
    mounts = dict(complete.get("file_mounts") or {})
    if mounts.get(WHEEL_MOUNT) == WHEEL_PLACEHOLDER:
        complete["file_mounts"] = {**mounts, WHEEL_MOUNT: str(wheelhouse)}
    return complete


_UNICODE_BREAK: Final = re.compile("[\x85\u2028\u2029]")


def dump(task: Mapping[str, Any]) -> str:
    """Serialize a task as YAML that any YAML 1.1 loader reads back unchanged."""
    text: str = yaml.dump(
        dict(task), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text


def load(text: str) -> dict[str, Any]:
    """Parse a task written by `dump`."""
    task: dict[str, Any] = yaml.safe_load(text)
    return task


def dump_all(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Serialize the tasks of a job, each in a document of its own."""
    return "---\n".join(map(dump, tasks))


def load_all(text: str) -> list[dict[str, Any]]:
    """Parse the tasks of a job, written by `dump_all` or `dump`."""
    return list(yaml.safe_load_all(text))


class _Dumper(yaml.CSafeDumper):
    """Safe dumper that writes scripts as blocks, because people read the result."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Return True: a value used twice is written twice, without YAML aliases."""
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # The emitter falls back to quotes where a block cannot hold the text exactly, except at Unicode line breaks: a
    # loader would read those as spaces.
    style = '"' if _UNICODE_BREAK.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def base_task() -> dict[str, Any]:
    """Return the task that every job starts from."""
    return load((sky_tasks() / "train.yaml").read_text(encoding="utf-8"))


@cache
def bundled_accelerators() -> AcceleratorCatalog:
    """Return the accelerator catalog bundled with this version."""
    file = resources.files("holdfast.domain") / "offers.yaml"
    return AcceleratorCatalog.parse(load(file.read_text(encoding="utf-8")))


def sky_tasks() -> Traversable:
    """Return the directory `sky_tasks` of the installed wheel or of the checkout."""
    packaged = resources.files("holdfast") / "_sky_tasks"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "sky_tasks"
