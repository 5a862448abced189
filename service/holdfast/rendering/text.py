"""Tasks as YAML that reads back as it was written, and that people can read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

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
